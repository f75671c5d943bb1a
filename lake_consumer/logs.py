"""Logs are logfmt on stdout: one line per event, `level=info msg="..." key=value`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lake_consumer.terminal import write_log

_PLAIN = re.compile(r"[A-Za-z0-9_./:+,@%<>\-]+")


def format_line(level: str, message: str, **fields: object) -> str:
    pairs = {"level": level, "msg": message, **fields}
    return " ".join(f"{name}={_quote(value)}" for name, value in pairs.items())


def _quote(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def log(level: str, message: str, **fields: object) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    write_log(f"ts={now} {format_line(level, message, **fields)}\n")


def info(message: str, **fields: object) -> None:
    log("info", message, **fields)


def warn(message: str, **fields: object) -> None:
    log("warn", message, **fields)


def error(message: str, **fields: object) -> None:
    log("error", message, **fields)

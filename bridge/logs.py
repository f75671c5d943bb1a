"""Logs: one logfmt line per event on standard output."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from bridge.errors import BadConfiguration


class Logfmt(logging.Formatter):
    """Writes `ts=... level=... logger=... msg="..."`, always on one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        line = (
            f"ts={moment} level={record.levelname.lower()} logger={record.name}"
            f" msg={quote(record.getMessage())}"
        )
        if record.exc_info:
            line += f" trace={quote(self.formatException(record.exc_info))}"
        return line


def quote(text: str) -> str:
    """Quote a logfmt value so that it stays one value on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def set_up(level: str) -> None:
    """Send this program's logs to standard output and leave other libraries' warnings in."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise BadConfiguration(
            f"{level!r} is not a log level", advice="Use debug, info, warning or error."
        )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Logfmt())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("bridge").setLevel(number)
    # nats-py logs what the control plane raises anyway; once is enough.
    logging.getLogger("nats").setLevel(logging.CRITICAL)

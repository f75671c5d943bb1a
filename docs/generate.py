"""Writes what the documents say about the code from the code itself.

The README's tables of options, endpoints, metrics and exit codes stand between two marks; the JSON
Schemas of the contract are files. `make docs` writes them anew; a test fails where they are old.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import bridge.errors
import bridge.options
import lake_consumer.cli
import lake_consumer.config
import lake_consumer.exitcodes
import lake_consumer.exporter
import lake_consumer.metrics
import lake_consumer.options
from bridge.cli import COMMANDS
from bridge.http.server import ROUTES
from bridge.metrics import (
    EVENTS_PUBLISHED,
    METRICS,
    WAL_STATUS,
    WAL_STATUS_HELP,
    WAL_STATUSES,
)
from schemas import jsonschemas

README = Path(__file__).parent.parent / "README.md"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table."""
    lines = [list(head), ["---"] * len(list(head)), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
                     for line in lines)  # fmt: skip


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


Options = tuple[bridge.options.Option, ...] | tuple[lake_consumer.options.Option, ...]


def _options(options: Options) -> str:
    return table(
        ("Flag", "Environment", "Default", "What it does"),
        (
            (_code(option.flag), _code(option.env), _code(option.default), option.help)
            for option in options
        ),
    )


def _summary(documented: object) -> str:
    return (documented.__doc__ or "").splitlines()[0]


def _lake_exit_codes() -> str:
    return table(
        ("Code", "Meaning", "Restart"),
        ((str(row.code), row.meaning, row.restart) for row in lake_consumer.exitcodes.EXIT_CODES),
    )


def _exit_codes() -> str:
    errors = sorted(bridge.errors.BridgeError.__subclasses__(), key=lambda error: error.exit_code)
    return table(
        ("Code", "Failure", "What to do", "Afterwards"),
        (
            (
                str(error.exit_code),
                f"{error.__name__}: {_summary(error)}",
                error.advice,
                "tries again" if error.disposition.name == "RETRY" else "stops",
            )
            for error in errors
        ),
    )


def _metrics() -> str:
    labelled = (
        (_code(EVENTS_PUBLISHED), "counter", "Messages stored, by table and operation"),
        (_code(WAL_STATUS), "gauge", f"{WAL_STATUS_HELP} ({', '.join(WAL_STATUSES)})"),
    )
    return table(
        ("Metric", "Kind", "What it counts"),
        (*labelled, *((_code(row.name), row.kind, row.help) for row in METRICS)),
    )


def _lake_metrics() -> str:
    rows = [(_code(r.name), r.kind, r.help) for r in lake_consumer.metrics.METRICS]
    rows += [(_code(r.name), "gauge", r.help) for r in lake_consumer.metrics.TABLE_METRICS]
    rows += [(_code(lake_consumer.metrics.TABLE_STATE), "gauge",
              lake_consumer.metrics.TABLE_STATE_HELP)]  # fmt: skip
    return table(("Metric", "Kind", "What it counts"), rows)


def _lake_endpoints() -> str:
    return table(
        ("Endpoint", "Answer"),
        ((_code(f"GET {r.path}"), r.help) for r in lake_consumer.exporter.ROUTES),
    )


def _commands(program: str, commands: Iterable[tuple[str, str]]) -> str:
    return table(
        ("Command", "What it does"), ((_code(f"{program} {name}"), what) for name, what in commands)
    )


def _endpoints() -> str:
    return table(
        ("Endpoint", "Answer"), ((_code(f"{r.method} {r.path}{r.query}"), r.help) for r in ROUTES)
    )


SECTIONS: Mapping[str, Callable[[], str]] = {
    "commands": lambda: _commands("bridge", ((c.name, c.help) for c in COMMANDS)),
    "lake-commands": lambda: _commands(
        "lake-consumer", ((c.name, c.help) for c in lake_consumer.cli.COMMANDS)
    ),
    "bridge-options": lambda: _options(bridge.options.OPTIONS),
    "lake-options": lambda: _options(lake_consumer.config.OPTIONS),
    "lake-endpoints": _lake_endpoints,
    "lake-metrics": _lake_metrics,
    "endpoints": _endpoints,
    "metrics": _metrics,
    "exit-codes": _exit_codes,
    "lake-exit-codes": _lake_exit_codes,
}


def render(text: str) -> str:
    """Put every generated section between its marks."""
    for name, write in SECTIONS.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        section = f"{start}\n{write()}\n{end}"
        text, found = pattern.subn(lambda _, section=section: section, text)  # type: ignore[misc]
        if found != 1:
            raise SystemExit(f"{README.name} must hold {start} ... {end} once")
    return text


def main() -> None:
    README.write_text(render(README.read_text()))
    jsonschemas.write()


if __name__ == "__main__":
    main()

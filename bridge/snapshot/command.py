"""`bridge snapshot TABLE`: asks a running bridge for a snapshot and shows how it goes.

On a terminal one line is drawn over and over; elsewhere each step is a line of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TextIO

from bridge.config import NatsConfig
from bridge.jetstream.asking import follow_snapshot
from schemas.names import TableName
from schemas.positions import Lsn

COMPLETE, FAILED = 0, 1
BAR_WIDTH = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `bridge snapshot` takes."""
    parser.add_argument("table", help="users for public.users, sales.orders for any other schema")
    parser.add_argument("--columns", metavar="A,B", help="only these columns")
    first = "first key: a value, or a JSON list for several key columns"
    parser.add_argument("--from", dest="from_key", metavar="KEY", type=_key, help=first)
    behind = "the key behind the last one"
    parser.add_argument("--to", dest="to_key", metavar="KEY", type=_key, help=behind)


def _key(text: str) -> list[Any]:
    """Read a key: a JSON list, or one value as it is."""
    if text.startswith("["):
        key = json.loads(text)
        return list(key)
    return [text]


def build_request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the request's body, leaving out what was not asked for."""
    columns = arguments.columns.split(",") if arguments.columns else None
    parts = {"from": arguments.from_key, "to": arguments.to_key, "columns": columns}
    return {name: part for name, part in parts.items() if part}


async def run(config: NatsConfig, arguments: argparse.Namespace, out: TextIO = sys.stdout) -> int:
    """Ask, show, and give the exit code."""
    table = TableName.parse(arguments.table)
    show = Screen(out)
    notice: Mapping[str, Any] = {}
    async with aclosing(follow_snapshot(config, table, build_request(arguments))) as notices:
        async for notice in notices:
            show(table, notice)
    return COMPLETE if "checksum" in notice else FAILED


class Screen:
    """Writes notices for people."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()

    def __call__(self, table: TableName, notice: Mapping[str, Any]) -> None:
        write: Callable[[str], None] = self._line
        if "state" in notice and self._is_terminal:
            write = self._draw
        write(describe(table, notice))

    def _draw(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}")
        self._out.flush()

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self._is_terminal else ""
        self._out.write(f"{start}{text}\n")
        self._out.flush()


def describe(table: TableName, notice: Mapping[str, Any]) -> str:
    """Say one notice in one line."""
    match notice:
        case {"status": "rejected", "error": error, "available_tables": tables}:
            return f"rejected: {error}\n  available: {', '.join(tables) or 'none'}"
        case {"status": "accepted", "snapshot_id": name, "lsn": lsn}:
            return f"snapshot {name} of {table} at {Lsn(lsn)}"
        case {"error": error, "advice": advice}:
            return f"failed: {error}\n  {advice}"
        case {"checksum": checksum, "row_count": rows, "batch_count": chunks}:
            return f"complete: {rows} rows in {chunks} chunks, {checksum}"
        case {"rows": rows, "estimated_rows": estimated, "rows_per_second": rate}:
            return f"{bar(rows, estimated)} {rows} rows, {rate} rows/s"
    return str(dict(notice))


def bar(done: int, estimated: int) -> str:
    """Draw how far it is; the total is PostgreSQL's estimate, so it never says all of it."""
    share = min(done / estimated, 0.99) if estimated > 0 else 0.0
    filled = round(share * BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:>4.0%}"

"""The life of one row, as its change log tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.catalog import Catalog

from examples.demo.verdict import TEXT_COLUMN, changes_of, scan
from schemas.names import TableName
from schemas.positions import Lsn

_WIDTH = 60


def life_of(catalog: Catalog, table: TableName, key: str, value: object) -> Iterator[str]:
    """One line per change: where and when it was committed, and what became different."""
    log = scan(catalog, changes_of(table))
    ordered = sorted(log.to_pylist(), key=lambda change: (change["commit_lsn"], change["seq"]))
    before: Mapping[str, Any] = {}
    for change in ordered:
        after = change["new"] or change["old"]
        if after[key] != value:
            continue
        unchanged = {*(change["unchanged"] or ()), TEXT_COLUMN}
        different = {
            name: cell
            for name, cell in after.items()
            if name not in unchanged and (name not in before or before[name] != cell)
        }
        cells = ", ".join(f"{name} = {_short(cell)}" for name, cell in different.items())
        moment = change["commit_ts"].strftime("%H:%M:%S.%f")
        kept = f"  (not sent: {', '.join(change['unchanged'])})" if change["unchanged"] else ""
        yield f"{Lsn(change['commit_lsn'])!s:>10}  {moment}  {change['operation']:6}  {cells}{kept}"
        before = {**before, **different}


def _short(cell: object) -> str:
    text = "NULL" if cell is None else str(cell)
    return text if len(text) <= _WIDTH else f"{text[:20]}... ({len(text):,} characters)"

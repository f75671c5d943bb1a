"""Rows for people and for programs: an aligned table, CSV, or one JSON object per line.

CSV and JSON are written as the rows come, with every column. A table has to know its widths, so it
shows the first rows only, and says how many there are. It leaves out the text map unless the SQL
names it, and says so if that hides a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from lake_consumer.columns import TEXT_COLUMN
from lake_consumer.query.textwidth import escape, pad, shorten, width

SHOWN_ROWS = 1_000
SHOWN_WIDTH = 80

Cells = Sequence[str]


def rows_of(reader: pa.RecordBatchReader) -> Iterator[tuple[Any, ...]]:
    """Rows as Python values; two columns of one name stay two."""
    for batch in reader:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def hidden_columns(sql: str) -> frozenset[str]:
    """Columns that a table for people does not show: the text map, unless the SQL names it."""
    return frozenset() if TEXT_COLUMN in sql.lower() else frozenset({TEXT_COLUMN})


def table_lines(
    reader: pa.RecordBatchReader, hide: Collection[str] = (), limit: int = SHOWN_ROWS
) -> Iterator[str]:
    """An aligned table; numbers stand to the right."""
    fields = list(reader.schema)
    seen = [at for at, field in enumerate(fields) if field.name not in hide]
    shown: list[list[str]] = []
    count = noted = 0
    for batch in reader:
        count += batch.num_rows
        for at in set(range(len(fields))) - set(seen):
            noted += batch.num_rows - batch.column(at).null_count
        part = batch.slice(0, limit - len(shown))
        columns = [map(_shown, part.column(at).to_pylist()) for at in seen]
        shown += map(list, zip(*columns, strict=True)) if columns else [[]] * part.num_rows
    numbers = [_is_number(fields[at].type) for at in seen]
    yield from aligned([escape(fields[at].name) for at in seen], shown, numbers)
    yield _footer(count, len(shown))
    if noted:
        yield (
            f"{noted:,} {'row has a value' if noted == 1 else 'rows have values'} without a native "
            f"form, shown as NULL; select {TEXT_COLUMN} to see the text"
        )


def _footer(count: int, shown: int) -> str:
    left_out = f", the first {shown:,} shown; --csv and --json give all" if count > shown else ""
    return f"({count:,} {'row' if count == 1 else 'rows'}{left_out})"


def aligned(head: Cells, rows: Sequence[Cells], right: Sequence[bool] = ()) -> Iterator[str]:
    """Columns under their names, as psql writes them."""
    widths = [max([width(name), *(width(row[at]) for row in rows)]) for at, name in enumerate(head)]
    sides = list(right) or [False] * len(head)
    yield " | ".join(pad(n, w) for n, w in zip(head, widths, strict=True)).rstrip()
    yield "-+-".join("-" * columns for columns in widths)
    for row in rows:
        cells = (
            pad(cell, columns, right=to_right)
            for cell, columns, to_right in zip(row, widths, sides, strict=True)
        )
        yield " | ".join(cells).rstrip(" ")


def csv_lines(reader: pa.RecordBatchReader, _: Collection[str] = ()) -> Iterator[str]:
    """CSV as PostgreSQL writes it: nothing is NULL, "" is the empty text."""
    yield ",".join(_csv(name) for name in reader.schema.names)
    for row in rows_of(reader):
        yield ",".join("" if value is None else _csv(to_text(value)) for value in row)


def json_lines(reader: pa.RecordBatchReader, _: Collection[str] = ()) -> Iterator[str]:
    """One JSON object per row, each on a line of its own."""
    names = reader.schema.names
    for row in rows_of(reader):
        document = {n: to_json(value) for n, value in zip(names, row, strict=True)}
        yield json.dumps(document, ensure_ascii=False)


FORMATS: Mapping[str, Callable[[pa.RecordBatchReader, Collection[str]], Iterable[str]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "json": json_lines,
}


def to_json(value: Any) -> Any:
    """What JSON holds exactly stays as it is; all else becomes its text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else str(value)
        case dict():
            return {str(name): to_json(item) for name, item in value.items()}
        case list():
            # Arrow gives a map as a list of pairs.
            if value and all(isinstance(item, tuple) for item in value):
                return {to_text(name): to_json(item) for name, item in value}
            return [to_json(item) for item in value]
    return to_text(value)


def to_text(value: Any) -> str:
    """A value as PostgreSQL would write it, where it has the type."""
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            # Every time with a zone is in UTC here.
            zone = "" if value.tzinfo is None else "+00"
            return value.replace(tzinfo=None).isoformat(sep=" ") + zone
        case bytes():
            return "\\x" + value.hex()
        case dict() | list():
            return json.dumps(to_json(value), ensure_ascii=False)
    return str(value)


def _shown(value: Any) -> str:
    text = "NULL" if value is None else to_text(value)
    # PostgreSQL writes bytes with a backslash, which is no escape of ours.
    plain = text if isinstance(value, bytes) else escape(text)
    return shorten(plain, SHOWN_WIDTH)


def _csv(text: str) -> str:
    if text and not set(text) & set(',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _is_number(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    )

"""What existing rows hold in a column that was added, as Iceberg's `initial-default`.

PostgreSQL stores the constant once and does not touch the rows (`attmissingval`); the bridge sends
it as `fill`. Iceberg v3 does the same: data files that lack the column are read with its
`initial-default`. A value that has no Iceberg literal (a list, a value that only text states, NaN)
makes the mirror load a snapshot instead, see `tablestates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lake_consumer.evolution import can_hold
from lake_consumer.values import from_contract, from_text
from schemas.shapes import NO_FILL, Column, TableShape
from schemas.types import ContractType
from schemas.values import NO_NATIVE_FORM


@dataclass(frozen=True)
class Fill:
    """A column of a mirror whose value rows of these revisions lack, and what they hold there."""

    column: str
    value: Any
    """As Arrow takes it."""
    revisions: frozenset[int]


def has_fill(column: Column) -> bool:
    """Whether rows that existed when the column was added hold a value in it."""
    return column.fill is not NO_FILL and column.fill is not None


def lake_value(column: Column) -> Any:
    """Give the `fill` of a column as a lake column holds it; `NO_NATIVE_FORM` if it cannot."""
    kind, value = column.type, column.fill
    if kind.spark == "binary":
        return value if isinstance(value, bytes) else from_text(kind, str(value))
    return from_contract(kind, value)


def default_of(column: Column) -> Any:
    """Give the `fill` of a column as JSON of an Iceberg literal; None if Iceberg has none."""
    value = lake_value(column) if has_fill(column) else None
    if value is None or value is NO_NATIVE_FORM or column.type.element is not None:
        return None
    return _WRITE.get(column.type.spark.partition("(")[0], _unchanged)(column.type, value)


def _unchanged(_: ContractType, value: Any) -> Any:
    return value


def _finite(_: ContractType, value: Any) -> Any:
    number = float(value)
    return number if math.isfinite(number) else None


def _text(_: ContractType, value: Any) -> str:
    return str(value)


def _iso(_: ContractType, value: Any) -> str:
    text: str = value.isoformat()
    return text


def _moment(_: ContractType, value: datetime) -> str:
    return value.isoformat(timespec="microseconds")


def _hex(_: ContractType, value: bytes) -> str:
    return value.hex().upper()


_WRITE: Mapping[str, Callable[[ContractType, Any], Any]] = {
    "float": _finite,
    "double": _finite,
    "decimal": _text,
    "date": _iso,
    "timestamp": _moment,
    "timestamp_ntz": _moment,
    "binary": _hex,
}
"""How Iceberg's JSON writes literals, by Spark's name of the type; others are JSON already."""


def defaults_of(shape: TableShape) -> dict[int, Any]:
    """The Iceberg defaults of a shape's columns, by attnum."""
    found = {column.position: default_of(column) for column in shape.columns}
    return {position: default for position, default in found.items() if default is not None}


def inherit_fills(before: TableShape, after: TableShape) -> TableShape:
    """Give columns that are announced again without a `fill` the one they had.

    Bridges of earlier versions forgot it, for example when the type became text. Rows that existed
    when the column was added hold it until the table is rewritten.
    """
    if after.rewritten or before.relation_id != after.relation_id:
        return after
    filled = {column.position: column for column in before.columns if column.fill is not NO_FILL}
    if not filled:
        return after
    columns = (_inherit(filled.get(column.position), column) for column in after.columns)
    return replace(after, columns=tuple(columns))


def _inherit(before: Column | None, after: Column) -> Column:
    if before is None or after.fill is not NO_FILL or not can_hold(before.type, after.type):
        return after
    return replace(after, fill=before.fill)


def fills_in(shapes: Mapping[int, TableShape], newest: TableShape) -> tuple[Fill, ...]:
    """Say which columns of `newest` rows of older revisions lack although they hold a value there.

    A change that precedes the new column in the stream is of a row that existed when it was added.
    """
    found = []
    for column in newest.columns:
        if not has_fill(column):
            continue
        lacking = frozenset(
            revision
            for revision, shape in shapes.items()
            if shape.relation_id == newest.relation_id
            and column.position not in {held.position for held in shape.columns}
        )
        if lacking:
            found.append(Fill(column.name, lake_value(column), lacking))
    return tuple(found)

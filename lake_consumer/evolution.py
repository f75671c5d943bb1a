"""How a lake table follows a change of shape: a pure plan of steps, by column identity.

The mirror follows the shape: add, drop, rename, widen. The change log forgets nothing: a dropped
column stays, and steps aside (`name__attnum`) when a new column takes its name.
What Iceberg cannot do in place raises `IncompatibleShape`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake_consumer.columns import Columns, LakeColumn
from lake_consumer.errors import IncompatibleShape
from schemas.types import ContractType


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column the table does not have yet."""

    column: LakeColumn


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column the shape has no more."""

    column: LakeColumn


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """The same attnum under another name."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """A type that holds every value of the type before; also a type equal in the lake."""

    column: LakeColumn


Step = AddColumn | DropColumn | RenameColumn | WidenColumn

_WIDENS = {("int", "bigint"), ("float", "double")}
"""Pairs of Spark types that Iceberg promotes without touching data files."""


def can_hold(before: ContractType, after: ContractType) -> bool:
    """Whether a column may become `after` in place, keeping every value it holds."""
    old, new = before.spark, after.spark
    if "uuid" in (before.kind, after.kind) and before.kind != after.kind:
        return False
    if old == new or (old, new) in _WIDENS:
        return True
    if old.startswith("decimal(") and new.startswith("decimal("):
        (precision, scale), (wider, same) = _digits(old), _digits(new)
        return wider >= precision and scale == same
    return False


def _digits(spark_decimal: str) -> tuple[int, int]:
    precision, scale = spark_decimal[8:-1].split(",")
    return int(precision), int(scale)


def plan_mirror(table: str, held: Columns, wanted: Columns) -> list[Step]:
    """Make `held` look like `wanted`. Dropping comes first: a new column may reuse the name."""
    kept = {column.position for column in wanted}
    drops: list[Step] = [DropColumn(column) for column in held if column.position not in kept]
    staying = tuple(column for column in held if column.position in kept)
    return [*drops, *_follow(table, staying, wanted)]


def plan_log(table: str, held: Columns, wanted: Columns) -> list[Step]:
    """Like the mirror's plan, but nothing is dropped."""
    wanted_positions = {column.position for column in wanted}
    wanted_names = {column.name for column in wanted}
    aside: list[Step] = [
        RenameColumn(column.name, f"{column.name}__{column.position}")
        for column in held
        if column.position not in wanted_positions and column.name in wanted_names
    ]
    staying = tuple(column for column in held if column.position in wanted_positions)
    return [*aside, *_follow(table, staying, wanted)]


def _follow(table: str, held: Columns, wanted: Columns) -> list[Step]:
    before = {column.position: column for column in held}
    steps: list[Step] = _renames(before, wanted)
    for column in wanted:
        old = before.get(column.position)
        if old is None:
            steps.append(AddColumn(column))
        elif old.type != column.type:
            steps.append(_widen(table, old, column))
    return steps


def _renames(before: dict[int, LakeColumn], wanted: Columns) -> list[Step]:
    pairs = [
        (before[column.position].name, column.name)
        for column in wanted
        if column.position in before and before[column.position].name != column.name
    ]
    taken = {old for old, _ in pairs}
    # Two columns that swap names would collide half-way: go through a name nobody has.
    detours = {old: f"{old}__renaming" for old, new in pairs if new in taken}
    first: list[Step] = [RenameColumn(old, detour) for old, detour in detours.items()]
    return [*first, *(RenameColumn(detours.get(old, old), new) for old, new in pairs)]


def _widen(table: str, old: LakeColumn, new: LakeColumn) -> WidenColumn:
    if not can_hold(old.type, new.type):
        raise IncompatibleShape(
            f"column {new.name} of {table} changed from {old.type} to {new.type}, "
            "which Iceberg cannot do in place"
        )
    return WidenColumn(new)

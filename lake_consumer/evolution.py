"""How a lake table follows a change of shape: a pure plan of steps, by column identity.

The mirror follows the shape: add, drop, rename, widen. What Iceberg cannot do in place is never
asked of a mirror that keeps its rows: it is parked, or rebuilt (`plan_rebuild`), see `tablestates`.
The change log forgets nothing and never waits: a dropped column stays, and steps aside
(`name__attnum`) when a new column takes its name or its attnum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lake_consumer.columns import Columns, LakeColumn
from lake_consumer.errors import IncompatibleShape
from schemas.shapes import TableShape
from schemas.types import ContractType


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column the table does not have yet.

    `default` is the JSON of an Iceberg literal that rows without the column are read with.
    """

    column: LakeColumn
    default: Any = None


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


@dataclass(frozen=True, slots=True)
class SetAside:
    """A column of a change log that keeps its values and makes room for another."""

    before: LakeColumn
    after: LakeColumn


Step = AddColumn | DropColumn | RenameColumn | WidenColumn | SetAside

_WIDENS = {("int", "bigint"), ("float", "double")}
"""Pairs of Spark types that Iceberg promotes without touching data files."""


def can_hold(before: ContractType, after: ContractType) -> bool:
    """Whether a column may become `after` in place, keeping every value it holds."""
    old, new = before.spark, after.spark
    # A JSON document and a text are both strings in the lake, but not in a message.
    kinds = {innermost(before).kind, innermost(after).kind}
    if len(kinds) > 1 and kinds & {"uuid", "json"}:
        return False
    if old == new or (old, new) in _WIDENS:
        return True
    if old.startswith("decimal(") and new.startswith("decimal("):
        (precision, scale), (wider, same) = _digits(old), _digits(new)
        return wider >= precision and scale == same
    return False


def innermost(type: ContractType) -> ContractType:
    return type if type.element is None else innermost(type.element)


def _digits(spark_decimal: str) -> tuple[int, int]:
    precision, scale = spark_decimal[8:-1].split(",")
    return int(precision), int(scale)


def plan_mirror(
    table: str, held: Columns, wanted: Columns, defaults: Mapping[int, Any] = {}
) -> list[Step]:
    """Make `held` look like `wanted`. Dropping comes first: a new column may reuse the name.

    `defaults` are what rows that exist hold in added columns, by attnum.
    """
    kept = {column.position for column in wanted}
    drops: list[Step] = [DropColumn(column) for column in held if column.position not in kept]
    staying = tuple(column for column in held if column.position in kept)
    return [*drops, *_follow(table, staying, wanted, defaults)]


def plan_rebuild(held: Columns, wanted: Columns, *, anew: bool = False) -> list[Step]:
    """Make `held` look like `wanted` where every row is about to be written again.

    A column that cannot follow is dropped and added: an old snapshot still has the one that was.
    Of a table created `anew` nothing is the same column, whatever its name and attnum.
    """
    kept = {column.position: column for column in wanted} if not anew else {}
    staying = tuple(
        column
        for column in held
        if column.position in kept and can_hold(column.type, kept[column.position].type)
    )
    drops: list[Step] = [DropColumn(column) for column in held if column not in staying]
    return [*drops, *_follow("", staying, wanted)]


def plan_log(
    held: Columns, wanted: Columns, *, left: int | None = None, now: int | None = None
) -> list[Step]:
    """Like the mirror's plan, but nothing is dropped and nothing is refused.

    `left` is the relation that all columns so far belong to, where there is another one `now`. If
    the log had that one before, as after two swaps of names, its columns are the table's again.
    """
    types = {column.position: column.type for column in wanted}
    names = {column.name for column in wanted}
    taken = names | {column.name for column in held}
    owned = [column if left is None else _owned(column, left, now) for column in held]
    staying = {
        column.position: column
        for column in owned
        if column.is_current
        and column.position in types
        and can_hold(column.type, types[column.position])
    }
    aside: list[Step] = []
    for column, own in zip(held, owned, strict=True):
        after = own
        if staying.get(own.position) != own:
            yields = own.is_current and own.position in types
            name = _free(own, taken) if yields or own.name in names else own.name
            after = replace(own, name=name, aside=own.aside or yields)
        if after != column:
            aside.append(SetAside(column, after))
    return [*aside, *_follow("", tuple(staying.values()), wanted)]


def _owned(column: LakeColumn, left: int, now: int | None) -> LakeColumn:
    """The column of a log that leaves one relation for another."""
    if column.relation is None:
        return replace(column, relation=left)
    return replace(column, relation=None) if column.relation == now else column


def plan_earlier(held: Columns, earlier: TableShape, newest: TableShape) -> list[Step]:
    """Add the columns of a revision that a change log meets after a later one.

    A log may learn a table's newest shape from KV or from a snapshot while the stream still holds
    changes of earlier revisions. They need a place for columns that the table no longer has.
    """
    relation = None if earlier.relation_id == newest.relation_id else earlier.relation_id
    own = [column for column in held if column.relation == relation]
    current = {column.position for column in newest.columns}
    taken = {column.name for column in held}
    steps: list[Step] = []
    for sent in earlier.columns:
        if any(c.position == sent.position and can_hold(sent.type, c.type) for c in own):
            continue
        column = LakeColumn.of(sent)
        name = _free(column, taken) if column.name in taken else column.name
        taken.add(name)
        aside = relation is None and column.position in current
        steps.append(AddColumn(replace(column, name=name, aside=aside, relation=relation)))
    return steps


def _free(column: LakeColumn, taken: Collection[str]) -> str:
    name = f"{column.name}__{column.position}"
    while name in taken:
        name += "_"
    return name


def names_in(shape: TableShape, columns: Columns) -> tuple[str | None, ...]:
    """What a shape calls each column of a change log; None for those it has no value for."""
    own = [c for c in columns if c.relation == shape.relation_id]
    own = own or [c for c in columns if c.relation is None]
    called: dict[LakeColumn, str] = {}
    for sent in shape.columns:
        fitting = [c for c in own if c.position == sent.position and can_hold(sent.type, c.type)]
        # The one the table has now, else the one that stepped aside last.
        fitting.sort(key=lambda column: not column.aside)
        if fitting:
            called[fitting[-1]] = sent.name
    return tuple(called.get(column) for column in columns)


Renames = Mapping[tuple[int, str], str]
"""What a change log calls a column now, by revision and the name it had there."""


def renames_in(shapes: Mapping[int, TableShape], columns: Columns) -> Renames:
    """Give the columns that revisions call by another name than the change log does now.

    A change names the columns it did not send as its own revision called them.
    """
    return {
        (revision, sent): column.name
        for revision, shape in shapes.items()
        for column, sent in zip(columns, names_in(shape, columns), strict=True)
        if sent is not None and sent != column.name
    }


def _follow(
    table: str, held: Columns, wanted: Columns, defaults: Mapping[int, Any] = {}
) -> list[Step]:
    before = {column.position: column for column in held}
    steps: list[Step] = _renames(before, wanted)
    for column in wanted:
        old = before.get(column.position)
        if old is None:
            steps.append(AddColumn(column, defaults.get(column.position)))
        elif old.type != column.type:
            steps.append(_widen(table, old, column))
    return steps


def _renames(before: dict[int, LakeColumn], wanted: Columns) -> list[Step]:
    pairs = [
        (before[column.position].name, column.name)
        for column in wanted
        if column.position in before and before[column.position].name != column.name
    ]
    wanted_names = {new for _, new in pairs}
    # A name that another column takes over is given up first: columns may swap names in a circle.
    detours = {old: f"{old}__renaming" for old, _ in pairs if old in wanted_names}
    first: list[Step] = [RenameColumn(old, detour) for old, detour in detours.items()]
    return [*first, *(RenameColumn(detours.get(old, old), new) for old, new in pairs)]


def _widen(table: str, old: LakeColumn, new: LakeColumn) -> WidenColumn:
    if not can_hold(old.type, new.type):
        raise IncompatibleShape(
            f"column {new.name} of {table} changed from {old.type} to {new.type}, "
            "which Iceberg cannot do in place"
        )
    return WidenColumn(new)

"""Which DDL changed values of existing rows: what the catalog says of a table, before and after.

PostgreSQL sends no changes for rows that ALTER TABLE rewrites, that a partition brings along or
takes away, or that a publication did not cover for a while. The catalog shows traces of all of it.
`compare` reads them. Where a trace has two explanations it assumes the one that changes values: a
false alarm costs a snapshot, a missed one costs the truth. VACUUM FULL and CLUSTER have traces of
their own and are recognised. Pure; `postgres.storage` reads the facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.shapes import NO_FILL, Column, TableShape, Unfilled
from schemas.values import NO_NATIVE_FORM, Value, reader_for

_TEXT_TYPES = frozenset({25, 1043})
"""text and varchar: the only pair of types that turns into each other without touching a value."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of pg_attribute; `missing` is the text of what rows older than the column hold."""

    written_by: int
    type_oid: int
    type_modifier: int
    is_dropped: bool = False
    has_missing: bool = False
    missing: str | None = field(default=None, compare=False)
    is_swapped: bool = field(default=False, compare=False)
    """VACUUM FULL or CLUSTER wrote the row last: in their transaction, after the new file.

    They clear stored missing values; ALTER TABLE alters a column before it writes a new file.
    """

    def to_list(self) -> list[int]:
        flags = self.is_dropped | self.has_missing << 1
        return [self.written_by, self.type_oid, self.type_modifier, flags]

    @classmethod
    def from_list(cls, parts: list[int]) -> Attribute:
        written_by, type_oid, modifier, flags = parts
        return cls(written_by, type_oid, modifier, bool(flags & 1), bool(flags & 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStorage:
    """What the catalog says of where a table's values are, and of how they are published."""

    filenode: int
    """0 for a partitioned table, which has no file of its own."""

    columns: Mapping[int, Attribute]
    """By attnum, dropped ones included."""

    membership: tuple[int, ...] = ()
    """OIDs of the catalog rows that put the table into the publication."""

    publishing: str = ""
    """Row filter, column list and published operations, as one text."""

    leaves: Mapping[int, int] = field(default_factory=dict)
    """OID and filenode of every partition below a table that is published as their root."""

    types: Mapping[str, str] = field(default_factory=dict)
    """What the text of values depends on besides: labels of enums, attributes of composites."""

    fresh_leaves: frozenset[int] = field(default=frozenset(), compare=False)
    """Partitions without statistics: TRUNCATE wrote their file, not VACUUM FULL or CLUSTER."""

    leaf_writers: Mapping[int, int] = field(default_factory=dict, compare=False)
    """The transaction that wrote each partition's row of pg_class last."""

    empty_leaves: frozenset[int] = field(default=frozenset(), compare=False)
    """Partitions whose file has no page, as far as that was asked and known."""

    def is_covered_by(self, shape: TableShape) -> bool:
        """Whether a shape has all the columns that the catalog has."""
        lives = {at for at, column in self.columns.items() if not column.is_dropped}
        return lives <= {column.position for column in shape.columns}

    def to_map(self) -> dict[str, Any]:
        """Write what KV remembers; keys are text because JSON has no others."""
        return {
            "filenode": self.filenode,
            "columns": {str(n): attribute.to_list() for n, attribute in self.columns.items()},
            "membership": list(self.membership),
            "publishing": self.publishing,
            "leaves": {str(oid): filenode for oid, filenode in self.leaves.items()},
            "types": dict(self.types),
        }

    @classmethod
    def from_map(cls, fields: Any) -> TableStorage | None:
        """Read what `to_map` wrote; anything else counts as nothing remembered."""
        try:
            return cls(
                filenode=int(fields["filenode"]),
                columns={int(n): Attribute.from_list(p) for n, p in fields["columns"].items()},
                membership=tuple(map(int, fields["membership"])),
                publishing=str(fields["publishing"]),
                leaves={int(oid): int(node) for oid, node in fields["leaves"].items()},
                types={str(name): str(text) for name, text in fields["types"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def compare(
    before: TableStorage,
    after: TableStorage,
    *,
    is_watched: bool,
    truncated_by: Collection[int] = (),
) -> tuple[str, ...]:
    """Give the reasons why values of existing rows may have changed without change messages.

    `is_watched` says that only seconds lie between both: then no ANALYZE can have given
    statistics to a partition that was truncated. `truncated_by` are transactions that sent a
    TRUNCATE of the table itself: what they truncated is no news.
    """
    return tuple(_reasons(before, after, is_watched, truncated_by))


def _reasons(
    before: TableStorage, after: TableStorage, is_watched: bool, truncated_by: Collection[int]
) -> Iterator[str]:
    if not set(before.membership) & set(after.membership):
        yield "the table left the publication and joined it again"
    if before.publishing != after.publishing:
        yield "row filter, column list or published operations changed"
    if before.leaves.keys() - after.leaves.keys() or new_leaves(before, after) - after.empty_leaves:
        yield "partitions were attached, detached or dropped"
    moved = {oid for oid, node in before.leaves.items() if after.leaves.get(oid, node) != node}
    told = {oid for oid in moved if after.leaf_writers.get(oid) in truncated_by}
    if moved & after.fresh_leaves - told or (moved - told and not is_watched):
        yield "a partition was truncated"
    is_moved = before.filenode != after.filenode or bool(moved)
    if is_moved and _is_altered(before, after):
        yield "ALTER TABLE rewrote the table"
    elif not is_moved and _changes_form(before, after):
        yield "a column has another type"
    if any(after.types.get(name, text) != text for name, text in before.types.items()):
        yield "labels of an enum or attributes of a composite type changed"


def new_leaves(before: TableStorage, after: TableStorage) -> set[int]:
    """Give the partitions that joined; one without rows changes no value."""
    return set(after.leaves) - set(before.leaves)


def _is_altered(before: TableStorage, after: TableStorage) -> bool:
    """Whether a column was altered, and not only stripped of its stored missing value."""
    for position, now in after.columns.items():
        was = before.columns.get(position)
        if was is None or _form(was) != _form(now):
            return True
        is_cleared = was.has_missing and not now.has_missing
        if was.written_by != now.written_by and not (is_cleared and now.is_swapped):
            return True
    return False


def _form(attribute: Attribute) -> tuple[int, int, bool]:
    return attribute.type_oid, attribute.type_modifier, attribute.is_dropped


def _changes_form(before: TableStorage, after: TableStorage) -> bool:
    """Whether a column that lives on reads its bytes as another type (cidr as inet, say)."""
    for position, now in after.columns.items():
        was = before.columns.get(position)
        if was is None or now.is_dropped:
            continue
        if not reads_alike(was.type_oid, now.type_oid):
            return True
    return False


def reads_alike(before: int, after: int) -> bool:
    """Whether the stored bytes of one type are the same value in another."""
    return before == after or {before, after} <= _TEXT_TYPES


def added_fills(
    shape: TableShape, before: TableStorage, after: TableStorage
) -> dict[int, Value | Unfilled]:
    """Say what existing rows hold in each column of a shape that was added since `before`.

    `NO_FILL` stands for a value that is not known, or that has no exact native form.
    """
    is_moved = before.filenode != after.filenode or any(
        after.leaves.get(oid, node) != node for oid, node in before.leaves.items()
    )
    return {
        column.position: _fill(column, after.columns.get(column.position), is_moved)
        for column in shape.columns
        if column.position not in before.columns
    }


def _fill(column: Column, attribute: Attribute | None, is_moved: bool) -> Value | Unfilled:
    if attribute is None or attribute.is_dropped or is_moved:
        return NO_FILL
    if attribute.type_oid != column.type_oid:
        return NO_FILL
    if not attribute.has_missing or attribute.missing is None:
        return NO_FILL if attribute.has_missing else None
    try:
        value = reader_for(column.type, "json")(attribute.missing)
    except (ValueError, IndexError):
        return NO_FILL
    return NO_FILL if value is NO_NATIVE_FORM else value

"""Which DDL changed values of existing rows: what the catalog says of a table, before and after.

PostgreSQL sends no changes for rows that ALTER TABLE rewrites, that a partition brings along or
takes away, or that a publication did not cover for a while. The catalog shows traces of all of it.
`compare` reads them. If a trace has two explanations it assumes the one that changes values: a
false alarm costs a snapshot, a missed one costs the truth. Pure; `postgres.storage` reads them.

Which statement wrote a new file shows in the TOAST table and in the order of catalog writes:

| Statement                   | OID of the TOAST table | its row in pg_class   | command      |
|-----------------------------|------------------------|-----------------------|--------------|
| VACUUM FULL, CLUSTER        | stays                  | by the same command   | from 2 on    |
| TRUNCATE                    | stays                  | by a later command    | any          |
| ALTER TABLE, SET LOGGED too | changes                |                       | from 1 on    |
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
    is_generated: bool = False
    """It is not published, unless the publication says so."""

    missing: str | None = field(default=None, compare=False)
    is_swapped: bool = field(default=False, compare=False)
    """VACUUM FULL or CLUSTER wrote the row last: in their transaction, after the new file.

    They clear stored missing values; ALTER TABLE alters a column before it writes a new file.
    """

    def to_list(self) -> list[int]:
        flags = self.is_dropped | self.has_missing << 1 | self.is_generated << 2
        return [self.written_by, self.type_oid, self.type_modifier, flags]

    @classmethod
    def from_list(cls, parts: list[int]) -> Attribute:
        written_by, type_oid, modifier, flags = parts
        is_dropped, has_missing, is_generated = (bool(flags & bit) for bit in (1, 2, 4))
        return cls(written_by, type_oid, modifier, is_dropped, has_missing, is_generated)


_FIRST_SWAP = 2
"""VACUUM FULL and CLUSTER make a new table and fill it: two commands before they swap files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Where the rows of a table or a partition are, and how the catalog says that came about."""

    node: int = 0
    """0 for a partitioned table, which has no file of its own."""

    toast: int = 0
    """OID of the TOAST table; 0 if there is none, or if an older bridge did not remember it."""

    written_by: int = field(default=0, compare=False)
    """The transaction that wrote the row of pg_class last."""

    command: int = field(default=_FIRST_SWAP, compare=False)
    """The command of that transaction which did, from 0."""

    toast_command: int | None = field(default=_FIRST_SWAP, compare=False)
    """The same of the TOAST table's row; None if another transaction wrote that one."""

    is_fresh: bool = field(default=False, compare=False)
    """Without statistics, which VACUUM FULL and CLUSTER leave and TRUNCATE removes."""

    is_empty: bool = field(default=False, compare=False)
    """It has no page, as far as that was asked and known."""

    @property
    def may_be_truncated(self) -> bool:
        """Whether TRUNCATE may have written the file; ANALYZE may have given it statistics."""
        if self.is_fresh or self.command < _FIRST_SWAP:
            return True
        return bool(self.toast) and self.toast_command != self.command

    def is_rewritten(self, now: File) -> bool:
        """Whether ALTER TABLE wrote the file that is there now."""
        if self.node == now.node:
            return False
        return bool(self.toast) and self.toast != now.toast


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStorage:
    """What the catalog says of where a table's values are, and of how they are published."""

    file: File
    columns: Mapping[int, Attribute]
    """By attnum, dropped ones included."""

    membership: tuple[int, ...] = ()
    """OIDs of the catalog rows that put the table into the publication."""

    publishing: str = ""
    """Row filter, column list, published operations and who wrote them last, as one text."""

    leaves: Mapping[int, File] = field(default_factory=dict)
    """By OID, the file of every partition below a table that is published as their root."""

    joined: Mapping[int, str] = field(default_factory=dict)
    """The transactions that attached each partition, and what is between it and the root."""

    types: Mapping[str, str] = field(default_factory=dict)
    """What the text of values depends on besides: labels of enums, attributes of composites."""

    def is_covered_by(self, shape: TableShape) -> bool:
        """Whether a shape has all the columns that the catalog has and that may be published."""
        lives = {
            at
            for at, column in self.columns.items()
            if not column.is_dropped and not column.is_generated
        }
        return lives <= {column.position for column in shape.columns}

    def to_map(self) -> dict[str, Any]:
        """Write what KV remembers; keys are text because JSON has no others."""
        return {
            "filenode": self.file.node,
            "toast": self.file.toast,
            "columns": {str(n): attribute.to_list() for n, attribute in self.columns.items()},
            "membership": list(self.membership),
            "publishing": self.publishing,
            "leaves": {str(oid): file.node for oid, file in self.leaves.items()},
            "leaf_toasts": {str(oid): file.toast for oid, file in self.leaves.items()},
            "joined": {str(oid): text for oid, text in self.joined.items()},
            "types": dict(self.types),
        }

    @classmethod
    def from_map(cls, fields: Any) -> TableStorage | None:
        """Read what `to_map` wrote; anything else counts as nothing remembered."""
        try:
            toasts = fields.get("leaf_toasts", {})
            return cls(
                file=File(node=int(fields["filenode"]), toast=int(fields.get("toast", 0))),
                columns={int(n): Attribute.from_list(p) for n, p in fields["columns"].items()},
                membership=tuple(map(int, fields["membership"])),
                publishing=str(fields["publishing"]),
                leaves={
                    int(oid): File(node=int(node), toast=int(toasts.get(oid, 0)))
                    for oid, node in fields["leaves"].items()
                },
                joined={int(oid): str(text) for oid, text in fields.get("joined", {}).items()},
                types={str(name): str(text) for name, text in fields["types"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


NOTHING_KNOWN = TableStorage(file=File(), columns={})
"""Stands for the storage of a table that is gone; nothing is compared with it."""


def compare(
    before: TableStorage,
    after: TableStorage,
    *,
    is_watched: bool,
    truncated_by: Collection[int] = (),
) -> tuple[str, ...]:
    """Give the reasons why values of existing rows may have changed without change messages.

    `is_watched` says that only seconds lie between both: then the last statement that wrote a
    partition's file was the only one. `truncated_by` are transactions that sent a
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
    if before.leaves.keys() - after.leaves.keys() or _brings_rows(before, after):
        yield "partitions were attached, detached or dropped"
    elif any(after.joined.get(oid, text) != text for oid, text in before.joined.items()):
        yield "a partition was detached and attached again"
    moved = {oid: file for oid, file in after.leaves.items() if _is_other(before.leaves, oid, file)}
    untold = [file for file in moved.values() if file.written_by not in truncated_by]
    if untold and (not is_watched or any(file.may_be_truncated for file in untold)):
        yield "a partition was truncated"
    is_moved = before.file.node != after.file.node or bool(moved)
    if is_moved and (_is_altered(before, after) or _is_rewritten(before, after, truncated_by)):
        yield "ALTER TABLE rewrote the table"
    elif not is_moved and _changes_form(before, after):
        yield "a column has another type"
    if _is_published_anew(before, after):
        yield "a column is generated no more, so it is published now"
    if any(after.types.get(name, text) != text for name, text in before.types.items()):
        yield "labels of an enum or attributes of a composite type changed"


def _brings_rows(before: TableStorage, after: TableStorage) -> bool:
    """Whether a partition joined; one without rows changes no value."""
    return any(oid not in before.leaves and not file.is_empty for oid, file in after.leaves.items())


def _is_other(before: Mapping[int, File], oid: int, file: File) -> bool:
    return oid in before and before[oid].node != file.node


def _is_rewritten(before: TableStorage, after: TableStorage, truncated_by: Collection[int]) -> bool:
    """Whether ALTER TABLE wrote a file and left the columns as they were, as SET LOGGED does.

    A table without TOAST only shows it if the file was written by the second command: that is too
    early for VACUUM FULL, and too late for a TRUNCATE in a transaction of its own.
    """
    if any(file.is_rewritten(after.leaves.get(oid, file)) for oid, file in before.leaves.items()):
        return True
    was, now = before.file, after.file
    if was.toast or now.toast:
        return was.is_rewritten(now)
    is_new = was.node != now.node and now.written_by not in truncated_by
    return is_new and now.command == _FIRST_SWAP - 1


def _is_published_anew(before: TableStorage, after: TableStorage) -> bool:
    """Whether values that were never sent belong to a column that is published now."""
    return any(
        was.is_generated and not now.is_generated and not now.is_dropped
        for at, now in after.columns.items()
        if (was := before.columns.get(at)) is not None
    )


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
    is_moved = before.file.node != after.file.node or any(
        _is_other(before.leaves, oid, file) for oid, file in after.leaves.items()
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

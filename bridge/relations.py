"""Tables: the shape of each, and its rows as the contract writes them.

A `Relation` message says what the following changes look like; the catalog adds what it leaves out
(attnum, nullability, defaults, the primary key). Where the catalog has moved on since, the shape
that was known before tells the rest. A relation is encoded by an `Encoder` made for its shape: one
reader per column, chosen once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.attnums import Evidence, is_later, settle
from bridge.errors import MalformedWal
from bridge.protocol.messages import (
    UNCHANGED,
    Delete,
    Insert,
    Relation,
    RelationColumn,
    TupleData,
    Update,
)
from bridge.transactions import EmptiedTable, Placed, TransactionPart
from schemas.events import Change, Row
from schemas.names import TableName
from schemas.shapes import Column, ReplicaIdentity, TableShape
from schemas.subjects import Operation
from schemas.types import CatalogType, resolve_type
from schemas.values import NO_NATIVE_FORM, Format, Reader, Value, reader_for

REPLICA_IDENTITIES: Mapping[str, ReplicaIdentity] = {
    "d": "default",
    "f": "full",
    "i": "index",
    "n": "nothing",
}

_OPERATIONS: Mapping[type, Operation] = {
    Insert: "INSERT",
    Update: "UPDATE",
    Delete: "DELETE",
    EmptiedTable: "TRUNCATE",
}


Images = dict[str, TupleData | None]


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What the catalog knows of a column and the WAL does not say."""

    position: int
    is_nullable: bool
    default: str | None
    type_oid: int
    type_modifier: int
    written_by: int | None = None
    """The transaction that last altered the column; None where that is long ago."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the catalog knows of a table; empty where the table is gone by now."""

    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    key: tuple[int, ...] = ()
    """The key's attnums, in key order."""

    key_written_by: int | None = None
    types: Mapping[int, CatalogType] = field(default_factory=dict)
    type_names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """PostgreSQL's name of each type and modifier."""

    highest: int = 0
    """The highest attnum that the table has ever given out."""


def is_settled(relation: Relation, facts: TableFacts, xid: int) -> bool:
    """Whether the catalog still shows the table as this transaction left it."""
    return not is_later(facts.key_written_by, xid) and all(
        (known := facts.columns.get(column.name)) is not None
        and _same_type(known, column)
        and not is_later(known.written_by, xid)
        for column in relation.columns
    )


def shape_of(
    relation: Relation,
    facts: TableFacts,
    xid: int | None = None,
    before: TableShape | None = None,
) -> TableShape:
    """Join what the WAL and the catalog say; where they disagree the WAL is right.

    `xid` is the transaction whose changes are to be described, None for the catalog as it is;
    `before` is the last shape known to be older, for what the catalog knows no more.
    """
    earlier = {column.name: column.position for column in before.columns} if before else {}
    known = Evidence(
        now={name: column.position for name, column in facts.columns.items()},
        before=earlier,
        moved_on=frozenset(
            name for name, column in facts.columns.items() if is_later(column.written_by, xid)
        ),
        highest=facts.highest,
    )
    positions = settle([column.name for column in relation.columns], known)
    key = _key_positions(relation, positions, facts, xid, before)
    at = {column.position: column for column in before.columns} if before else {}
    return TableShape(
        name=TableName(relation.schema, relation.table),
        relation_id=relation.relation_id,
        replica_identity=REPLICA_IDENTITIES[relation.replica_identity],
        columns=tuple(
            _column(
                column,
                position=position,
                key=key.index(position) if position in key else None,
                facts=facts,
                now=_fresh(facts.columns.get(column.name), position, xid),
                before=at.get(position),
            )
            for column, position in zip(relation.columns, positions, strict=True)
        ),
    )


def _key_positions(
    relation: Relation,
    positions: Sequence[int],
    facts: TableFacts,
    xid: int | None,
    before: TableShape | None,
) -> Sequence[int]:
    """Give the key's attnums in key order.

    Under FULL every column is flagged, which is no key; the primary key in the catalog is. Else the
    flags are right, and the catalog only knows their order.
    """
    pairs = zip(relation.columns, positions, strict=True)
    flagged = [position for column, position in pairs if column.part_of_key]
    keys: list[Sequence[int]] = [facts.key]
    if before is not None:
        older = [column.position for column in before.key]
        is_stale = not facts.columns or is_later(facts.key_written_by, xid)
        keys.insert(0 if is_stale else 1, older)
    if relation.replica_identity == "f" or not flagged:
        return keys[0] if set(keys[0]) <= set(positions) else ()
    return next((key for key in keys if set(key) == set(flagged)), flagged)


def _fresh(now: ColumnFacts | None, position: int, xid: int | None) -> ColumnFacts | None:
    """Trust the catalog only with the same column, as it was when the change was written."""
    is_it = now is not None and now.position == position and not is_later(now.written_by, xid)
    return now if is_it else None


def _column(
    column: RelationColumn,
    *,
    position: int,
    key: int | None,
    facts: TableFacts,
    now: ColumnFacts | None,
    before: Column | None,
) -> Column:
    resolved = resolve_type(column.type_oid, column.type_modifier, facts.types)
    data_type = facts.type_names.get((column.type_oid, column.type_modifier), str(resolved))
    if before is not None and _same_type(before, column):
        # A type that was dropped since is unknown to the catalog, which says nothing of its values.
        resolved, data_type = before.type, before.data_type
    is_nullable, default = True, None
    if now is not None:
        is_nullable, default = now.is_nullable, now.default
    elif before is not None:
        is_nullable, default = before.is_nullable, before.column_default
    return Column(
        name=column.name,
        position=position,
        data_type=data_type,
        type_oid=column.type_oid,
        type_modifier=column.type_modifier,
        type=resolved,
        is_nullable=is_nullable,
        column_default=default,
        key=key,
    )


def _same_type(known: ColumnFacts | Column, column: RelationColumn) -> bool:
    return (known.type_oid, known.type_modifier) == (column.type_oid, column.type_modifier)


class Encoder:
    """Turns the changes of one relation, in one shape, into the contract's changes."""

    def __init__(self, shape: TableShape, schema_revision: int, format: Format) -> None:
        self.shape = shape
        self.schema_revision = schema_revision
        self._columns = [(c.name, reader_for(c.type, format)) for c in shape.columns]
        self._key = [c.name for c in shape.key]
        self._key_at = [n for n, c in enumerate(shape.columns) if c.key is not None]

    def encode(self, placed: Placed) -> Change:
        """Build the change a placed row message stands for."""
        images = _images(placed.message)
        rows, text = self._read(images)
        return Change(
            table=self.shape.name,
            operation=_OPERATIONS[type(placed.message)],
            relation_id=self.shape.relation_id,
            place=placed.place,
            repeat=placed.repeat,
            schema_revision=self.schema_revision,
            data=rows["data"] or {},
            key=self._old_key(images, rows) if isinstance(placed.message, Update) else None,
            old=rows.get("old"),
            unchanged=self._unchanged(images["data"] or ()),
            text=text,
        )

    def _read(self, images: Images) -> tuple[dict[str, Row | None], tuple[str, ...]]:
        """Read every image of the row; a column that is text in one is text in all of them."""
        as_text: set[str] = set()
        rows = {image: self._row(values, as_text) for image, values in images.items()}
        if as_text and len(images) > 1:
            names = [name for name, _ in self._columns]
            for image, values in images.items():
                row = rows[image]
                for name, value in zip(names, values or (), strict=False):
                    if row is not None and name in as_text and name in row:
                        row[name] = value
        return rows, tuple(sorted(as_text))

    def _row(self, values: TupleData | None, as_text: set[str]) -> Row | None:
        if values is None:
            return None
        if values and len(values) != len(self._columns):
            raise MalformedWal(
                f"a row of {len(values)} columns for {self.shape.name},"
                f" which has {len(self._columns)}"
            )
        row: Row = {}
        for (name, read), text in zip(self._columns, values, strict=False):
            if text is UNCHANGED:
                continue
            value = None if text is None else self._value(name, read, text)
            if value is NO_NATIVE_FORM:
                as_text.add(name)
                value = text
            row[name] = value
        return row

    def _value(self, name: str, read: Reader, text: str) -> Value:
        try:
            return read(text)
        except (ValueError, IndexError) as error:
            # A value that cannot be read is never skipped or guessed: its LSN stays unconfirmed.
            raise MalformedWal(
                f"{self.shape.name}.{name} holds text its type does not explain: {text[:80]!r}"
            ) from error

    def _unchanged(self, values: TupleData) -> tuple[str, ...]:
        return tuple(
            name
            for (name, _), value in zip(self._columns, values, strict=False)
            if value is UNCHANGED
        )

    def _old_key(self, images: Images, rows: Mapping[str, Row | None]) -> Row | None:
        """Give an update's old key, only where it changed: texts tell, true and 1 are equal."""
        image = "key" if images["key"] else "old"
        new, texts, before = images["data"], images[image], rows[image]
        if not new or not texts or not before:
            return None
        if all(new[at] == texts[at] for at in self._key_at):
            return None
        return {name: before.get(name) for name in self._key}


def _images(message: TransactionPart) -> Images:
    """Name the tuples a message carries as the contract names them."""
    match message:
        case Insert():
            return {"data": message.new}
        case Update():
            new = _fill_unchanged(message.new, message.old or message.key)
            return {"data": new, "key": message.key, "old": message.old}
        case Delete():
            return {"data": message.old or message.key, "old": message.old}
    return {"data": ()}


def _fill_unchanged(new: TupleData, old: TupleData | None) -> TupleData:
    """Take unchanged values from the old row, whole under REPLICA IDENTITY FULL, else the key.

    A key that is TOASTed is sent as the old key at every update, and not once more as the new one.
    """
    if old is None or UNCHANGED not in new:
        return new
    return tuple(
        before if value is UNCHANGED and before is not None else value
        for value, before in zip(new, old, strict=True)
    )

"""A consumer of the contract in its plainest form: mirrors in memory, by schemas and changes alone.

It follows what the stream says, with the lake's own rules of when a mirror can follow and when it
needs a snapshot (`tablestates`). It is quick, so that every kind of DDL can be tried on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lake_consumer.tablestates import LIVE, TableState, next_state
from schemas.names import TableName
from schemas.shapes import NO_FILL, TableShape
from schemas.subjects import MessageSubject, SchemaSubject, parse_cdc_subject
from schemas.values import NO_NATIVE_FORM, reader_for
from tests.conftest import Connection
from tests.support.stream import StoredMessage

Row = dict[int, Any]
"""Values by attnum."""


@dataclass
class ModelMirror:
    """One table."""

    shape: TableShape
    state: TableState = LIVE
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def follow(self, shape: TableShape, sequence: int) -> None:
        before, self.shape = self.shape, shape
        self.state = next_state(
            self.state,
            before,
            shape,
            since=sequence,
            can_load=True,
            has_defaults=True,
            rewritten=shape.rewritten,
        )
        known = {column.position for column in before.columns}
        for column in shape.columns:
            if column.position not in known and column.fill is not NO_FILL:
                for row in self.rows.values():
                    row[column.position] = column.fill

    def apply(self, change: Mapping[str, Any]) -> None:
        """Apply a change that was made in the newest schema."""
        if change["operation"] == "TRUNCATE":
            self.rows.clear()
            return
        key = self._key(change["data"])
        if change["operation"] == "DELETE":
            self.rows.pop(key, None)
            return
        old = self.rows.pop(self._key(change["key"]) if "key" in change else key, {})
        if "old" in change:
            self.rows.pop(self._key(change["old"]), None)
        sent = {c.position: change["data"][c.name] for c in self.shape.columns
                if c.name in change["data"]}  # fmt: skip
        self.rows[key] = {**old, **sent}

    def _key(self, data: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(repr(data[column.name]) for column in self.shape.key)

    def shown(self) -> list[Row]:
        positions = [column.position for column in self.shape.columns]
        return [{at: row.get(at) for at in positions} for row in self.rows.values()]


def follow(messages: Iterable[StoredMessage]) -> dict[TableName, ModelMirror]:
    """Follow a stream from its beginning; a table keeps its OID when it gets another name."""
    mirrors: dict[int, ModelMirror] = {}
    named: dict[TableName, ModelMirror] = {}
    for message in messages:
        fields, about = message.fields, parse_cdc_subject(message.subject)
        if isinstance(about, MessageSubject):
            continue
        if not isinstance(about, SchemaSubject):
            mirror = mirrors[fields["relation_id"]]
            if mirror.state.is_live and mirror.shape.key:
                mirror.apply(fields)
            continue
        shape = TableShape.from_map(fields)
        if shape.relation_id in mirrors:
            mirrors[shape.relation_id].follow(shape, message.sequence)
        else:
            mirrors[shape.relation_id] = ModelMirror(shape)
        named[shape.name] = mirrors[shape.relation_id]
    return named


def expected_rows(
    connection: Connection, table: TableName, shape: TableShape, only: str = "true"
) -> list[Row]:
    """Read a table from PostgreSQL, by the contract's value rule."""
    # Written by the type's own output function, as the stream has it; a cast may differ.
    cells = ", ".join(
        f"""CASE WHEN "{c.name}" IS DISTINCT FROM NULL THEN format('%s', "{c.name}") END"""
        for c in shape.columns
    )
    name = f'"{table.schema}"."{table.table}"'
    kind = connection.execute("SELECT relkind::text FROM pg_class WHERE oid = %s::regclass", [name])
    one = kind.fetchone()
    # Rows of a table that merely inherits are not the table's own in the stream.
    of = "ONLY " if one is not None and one[0] == "r" else ""
    rows = connection.execute(f"SELECT {cells} FROM {of}{name} WHERE {only}").fetchall()
    readers = [(column.position, reader_for(column.type, "msgpack")) for column in shape.columns]
    return [
        {at: _value(read, text) for (at, read), text in zip(readers, row, strict=True)}
        for row in rows
    ]


def _value(read: Any, text: Any) -> Any:
    if text is None:
        return None
    try:
        value = read(text)
    except (ValueError, IndexError):
        return text
    return text if value is NO_NATIVE_FORM else value

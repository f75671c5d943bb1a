"""What the CDC stream carries: row changes, table shapes and logical messages, as maps.

`operation` says which of them a map is, so a reader does not need the subject for it.
`last` is the last key of every map: whether a change ends its transaction is the last thing that is
known about it, and what was encoded before then needs no second pass (`codecs.Codec.ends`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.names import TableName, escape
from schemas.positions import Position
from schemas.shapes import TableShape
from schemas.subjects import (
    LOGICAL_MESSAGES,
    MESSAGE_OPERATION,
    SCHEMA_OPERATION,
    Operation,
    change_subject,
    message_id,
    message_subject,
    schema_subject,
    source_token,
)
from schemas.values import Value

Row = dict[str, Value]

POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def iso_timestamp(microseconds: int) -> str:
    """Write a protocol timestamp (microseconds since 2000) as ISO-8601 in UTC."""
    moment = POSTGRES_EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which transaction a message belongs to, and where in it: the same fields on every message.

    `commit_ts` is None only for a logical message written outside any transaction.
    """

    lsn: int
    commit_lsn: int
    commit_ts: str | None
    xid: int
    seq: int
    last: bool

    @property
    def position(self) -> Position:
        return Position(self.commit_lsn, self.seq)

    def to_map(self) -> dict[str, Any]:
        return {
            "lsn": self.lsn,
            "commit_lsn": self.commit_lsn,
            "commit_ts": self.commit_ts,
            "xid": self.xid,
            "seq": self.seq,
        }

    @classmethod
    def from_map(cls, fields: Mapping[str, Any]) -> Place:
        return cls(**{name: fields[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row change (or a truncate) of one table."""

    table: TableName
    operation: Operation
    relation_id: int
    place: Place
    repeat: int = 0
    schema_revision: int
    data: Row
    key: Row | None = None
    old: Row | None = None
    unchanged: tuple[str, ...] = ()
    text: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return change_subject(self.table, self.operation)

    @property
    def msg_id(self) -> str:
        return message_id(self.place.lsn, self.table.token, self.operation.lower(), self.repeat)

    def to_map(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "subject": self.subject,
            "msg_id": self.msg_id,
            "schema": self.table.schema,
            "table": self.table.table,
            "operation": self.operation,
            "relation_id": self.relation_id,
            **self.place.to_map(),
            "schema_revision": self.schema_revision,
            "data": self.data,
        }
        if self.key is not None:
            fields["key"] = self.key
        if self.old is not None:
            fields["old"] = self.old
        if self.unchanged:
            fields["unchanged"] = list(self.unchanged)
        if self.text:
            fields["text"] = list(self.text)
        fields["last"] = self.place.last
        return fields

    @classmethod
    def from_map(cls, fields: Mapping[str, Any]) -> Change:
        suffix = fields["msg_id"].rpartition(f"-{fields['operation'].lower()}")[2]
        return cls(
            table=TableName(fields["schema"], fields["table"]),
            operation=fields["operation"],
            relation_id=fields["relation_id"],
            place=Place.from_map(fields),
            repeat=int(suffix[1:]) if suffix else 0,
            schema_revision=fields["schema_revision"],
            data=fields["data"],
            key=fields.get("key"),
            old=fields.get("old"),
            unchanged=tuple(fields.get("unchanged", ())),
            text=tuple(fields.get("text", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeChange:
    """A table's new shape, stored before the first change that needs it.

    It shares the place of that change and takes no ordinal of its own: whether a bridge has to
    announce a shape depends on what it knew before, and ordinals must depend on the WAL alone.

    A shape that the bridge announces between transactions stands `alone`: it has a place of its
    own, which no transaction can have, and is the last message there.
    """

    shape: TableShape
    place: Place
    schema_revision: int
    source: str
    alone: bool = False

    @property
    def subject(self) -> str:
        return schema_subject(self.shape.name)

    @property
    def msg_id(self) -> str:
        # By the ordinal: a logical message has the LSN at which the next record begins, so a shape
        # announced with it and one announced with the change after it would be one and the same.
        return message_id(self.place.lsn, self.shape.name.token, "schema", self.place.seq)

    def to_map(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "msg_id": self.msg_id,
            "operation": SCHEMA_OPERATION,
            **self.shape.to_map(
                timestamp=self.place.commit_ts or "", lsn=self.place.lsn, source=self.source
            ),
            **self.place.to_map(),
            "schema_revision": self.schema_revision,
            "last": self.alone,
        }

    @classmethod
    def from_map(cls, fields: Mapping[str, Any]) -> ShapeChange:
        return cls(
            shape=TableShape.from_map(fields),
            place=Place.from_map(fields),
            schema_revision=fields["schema_revision"],
            source=fields["source"],
            alone=fields["last"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMessage:
    """What `pg_logical_emit_message` wrote; one outside a transaction is its own transaction.

    Messages that the bridge itself puts between transactions may share a commit LSN and then
    differ by their ordinal, which is part of their id. So is the source: two slots of one database
    are often at the same place, and what they say there is about other tables.
    """

    prefix: str
    content: Value
    transactional: bool
    place: Place
    source: str

    @property
    def subject(self) -> str:
        return message_subject(self.prefix)

    @property
    def msg_id(self) -> str:
        repeat = 0 if self.transactional else self.place.seq
        token = f"{LOGICAL_MESSAGES}-{source_token(self.source)}"
        return message_id(self.place.lsn, token, escape(self.prefix), repeat)

    def to_map(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "msg_id": self.msg_id,
            "operation": MESSAGE_OPERATION,
            "prefix": self.prefix,
            "transactional": self.transactional,
            "source": self.source,
            **self.place.to_map(),
            "content": self.content,
            "last": self.place.last,
        }

    @classmethod
    def from_map(cls, fields: Mapping[str, Any]) -> LogicalMessage:
        return cls(
            prefix=fields["prefix"],
            content=fields["content"],
            transactional=fields["transactional"],
            place=Place.from_map(fields),
            source=fields["source"],
        )


Event = Change | ShapeChange | LogicalMessage

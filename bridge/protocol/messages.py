"""pgoutput's messages, in the protocol manual's own words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class _Unchanged(Enum):
    UNCHANGED = "a TOASTed value PostgreSQL did not send because it did not change"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = _Unchanged.UNCHANGED

ColumnText = str | _Unchanged | None
"""A column's value as PostgreSQL writes it, NULL, or not sent at all."""

TupleData = tuple[ColumnText, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction's changes follow; it committed at `commit_lsn`."""

    commit_lsn: int
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete; confirming `end_lsn` confirms all of it."""

    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came from another server by logical replication."""

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column; `part_of_key` speaks of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    part_of_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the following changes see it."""

    relation_id: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in."""

    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_id: int
    new: TupleData


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row; `key` if the key changed, `old` under REPLICA IDENTITY FULL."""

    relation_id: int
    new: TupleData
    key: TupleData | None = None
    old: TupleData | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A removed row; `key` holds the key columns only, `old` the whole row."""

    relation_id: int
    key: TupleData | None = None
    old: TupleData | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Emptied tables, in one statement."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """What `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


WalMessage = (
    Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | Message
)

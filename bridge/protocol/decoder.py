"""pgoutput, protocol version 1, text format: bytes to messages.

Any bytes either parse or raise `MalformedWal`. One row per message kind; a kind without a row is an
error, because a message that is skipped is a change that is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from bridge.errors import MalformedWal
from bridge.protocol.framing import Cursor, decode_text
from bridge.protocol.messages import (
    UNCHANGED,
    Begin,
    ColumnText,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    TupleData,
    Type,
    Update,
    WalMessage,
)

_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_OID = struct.Struct("!I")
_LENGTH = struct.Struct("!i")
_COUNT = struct.Struct("!h")
_TYPE_AND_MODIFIER = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!iB")
_MESSAGE = struct.Struct("!BQ")
_LSN = struct.Struct("!Q")


def decode_message(payload: bytes) -> WalMessage:
    """Read one message of the replication stream."""
    decode = _DECODERS.get(payload[:1])
    if decode is None:
        raise MalformedWal(f"unknown message kind {payload[:1]!r} ({len(payload)} bytes)")
    cursor = Cursor(payload)
    cursor.byte()
    message = decode(cursor)
    cursor.finish()
    return message


def _begin(cursor: Cursor) -> Begin:
    commit_lsn, commit_time, xid = cursor.unpack(_BEGIN)
    return Begin(commit_lsn, commit_time, xid)


def _commit(cursor: Cursor) -> Commit:
    _, commit_lsn, end_lsn, commit_time = cursor.unpack(_COMMIT)
    return Commit(commit_lsn, end_lsn, commit_time)


def _origin(cursor: Cursor) -> Origin:
    (commit_lsn,) = cursor.unpack(_LSN)
    return Origin(commit_lsn, cursor.string())


def _relation(cursor: Cursor) -> Relation:
    (relation_id,) = cursor.unpack(_OID)
    schema = cursor.string() or "pg_catalog"
    table = cursor.string()
    replica_identity = chr(cursor.byte())
    (count,) = cursor.unpack(_COUNT)
    columns = tuple(_relation_column(cursor) for _ in range(count))
    return Relation(relation_id, schema, table, replica_identity, columns)


def _relation_column(cursor: Cursor) -> RelationColumn:
    flags = cursor.byte()
    name = cursor.string()
    type_oid, modifier = cursor.unpack(_TYPE_AND_MODIFIER)
    return RelationColumn(name, type_oid, modifier, bool(flags & 1))


def _type(cursor: Cursor) -> Type:
    (type_oid,) = cursor.unpack(_OID)
    return Type(type_oid, cursor.string() or "pg_catalog", cursor.string())


def _insert(cursor: Cursor) -> Insert:
    (relation_id,) = cursor.unpack(_OID)
    _expect(cursor, b"N")
    return Insert(relation_id, _tuple(cursor))


def _update(cursor: Cursor) -> Update:
    (relation_id,) = cursor.unpack(_OID)
    key = old = None
    marker = cursor.take(1)
    if marker in (b"K", b"O"):
        before = _tuple(cursor)
        key, old = (before, None) if marker == b"K" else (None, before)
        marker = cursor.take(1)
    if marker != b"N":
        raise MalformedWal(f"an update with a tuple of kind {marker!r}")
    return Update(relation_id, _tuple(cursor), key, old)


def _delete(cursor: Cursor) -> Delete:
    (relation_id,) = cursor.unpack(_OID)
    marker = cursor.take(1)
    if marker not in (b"K", b"O"):
        raise MalformedWal(f"a delete with a tuple of kind {marker!r}")
    before = _tuple(cursor)
    return Delete(relation_id, key=before) if marker == b"K" else Delete(relation_id, old=before)


def _truncate(cursor: Cursor) -> Truncate:
    count, options = cursor.unpack(_TRUNCATE)
    relation_ids = tuple(cursor.unpack(_OID)[0] for _ in range(count))
    return Truncate(relation_ids, bool(options & 1), bool(options & 2))


def _message(cursor: Cursor) -> Message:
    flags, lsn = cursor.unpack(_MESSAGE)
    prefix = cursor.string()
    (length,) = cursor.unpack(_LENGTH)
    return Message(bool(flags & 1), lsn, prefix, cursor.take(length))


def _tuple(cursor: Cursor) -> TupleData:
    (count,) = cursor.unpack(_COUNT)
    return tuple(_column(cursor) for _ in range(count))


def _column(cursor: Cursor) -> ColumnText:
    kind = cursor.take(1)
    if kind == b"t":
        (length,) = cursor.unpack(_LENGTH)
        return decode_text(cursor.take(length))
    if kind == b"n":
        return None
    if kind == b"u":
        return UNCHANGED
    raise MalformedWal(f"a column of kind {kind!r} where text was asked for")


def _expect(cursor: Cursor, marker: bytes) -> None:
    found = cursor.take(1)
    if found != marker:
        raise MalformedWal(f"a tuple of kind {found!r} where {marker!r} belongs")


_DECODERS: Mapping[bytes, Callable[[Cursor], WalMessage]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _message,
}

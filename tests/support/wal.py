"""pgoutput messages as bytes, the way PostgreSQL writes them: the other side of the decoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence

Column = str | None | bytes
"""Text, NULL, or b"u" for an unchanged TOASTed value."""


def begin(commit_lsn: int, xid: int = 7, commit_time: int = 0) -> bytes:
    return b"B" + struct.pack("!QqI", commit_lsn, commit_time, xid)


def commit(commit_lsn: int, end_lsn: int, commit_time: int = 0) -> bytes:
    return b"C" + struct.pack("!BQQq", 0, commit_lsn, end_lsn, commit_time)


def relation(
    relation_id: int,
    name: str,
    columns: Sequence[tuple[str, int, bool]],
    *,
    schema: str = "public",
    identity: str = "d",
) -> bytes:
    """Describe a table; a column is its name, type OID and whether it is in the key."""
    body = struct.pack("!I", relation_id) + text(schema) + text(name) + identity.encode()
    body += struct.pack("!h", len(columns))
    for column, type_oid, is_key in columns:
        body += bytes([is_key]) + text(column) + struct.pack("!Ii", type_oid, -1)
    return b"R" + body


def insert(relation_id: int, new: Sequence[Column]) -> bytes:
    return b"I" + struct.pack("!I", relation_id) + b"N" + row(new)


def update(
    relation_id: int, new: Sequence[Column], before: Sequence[Column] | None = None, kind: str = "K"
) -> bytes:
    old = b"" if before is None else kind.encode() + row(before)
    return b"U" + struct.pack("!I", relation_id) + old + b"N" + row(new)


def delete(relation_id: int, before: Sequence[Column], kind: str = "K") -> bytes:
    return b"D" + struct.pack("!I", relation_id) + kind.encode() + row(before)


def truncate(relation_ids: Sequence[int], options: int = 0) -> bytes:
    ids = b"".join(struct.pack("!I", relation_id) for relation_id in relation_ids)
    return b"T" + struct.pack("!iB", len(relation_ids), options) + ids


def message(lsn: int, prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    head = b"M" + struct.pack("!BQ", transactional, lsn) + text(prefix)
    return head + struct.pack("!i", len(content)) + content


def row(columns: Sequence[Column]) -> bytes:
    return struct.pack("!h", len(columns)) + b"".join(map(_column, columns))


def _column(value: Column) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bytes):
        return value
    raw = value.encode()
    return b"t" + struct.pack("!i", len(raw)) + raw


def text(value: str) -> bytes:
    return value.encode() + b"\0"

"""What all changes of one table and operation share, packed once before the first of them.

A frame is its kind, two LSNs and a clock; then the message's kind, the relation's id, the tuple's
kind and size; then the row, from byte 33 on. The eight bytes in front of the row name operation,
table and sort of row: whoever finds a table's function by them knows that a change is plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bridge.packing import Packer, Rule, map_header, pack, packer_for, rule_of
from schemas.codecs import MSGPACK
from schemas.shapes import TableShape
from schemas.subjects import Operation, change_subject

PackedRow = tuple[bytes, bytes, bytes]
"""Subject, message id and body, which says that the change is not its transaction's last."""

Encode = Callable[[bytes, bytes, int, int, bytes], PackedRow | None]
"""From a frame, its LSN, ordinal, repeat and packed transaction.

None says that a change is not plain (an old row or key, a date that is infinity, anything
malformed): the caller goes the long way, which is the definition of what is right. A document or
another value without native form is plain where the loops are compiled, and text.
"""

OPERATIONS: Mapping[bytes, tuple[Operation, bytes]] = {
    b"I": ("INSERT", b"N"),
    b"U": ("UPDATE", b"N"),
    b"D": ("DELETE", b"K"),
}
"""The operations by the protocol's letters, and which tuple makes a plain one."""

_KEYS = 14
"""What a plain change has: subject, msg_id, schema, table, operation, relation_id, lsn, commit_lsn,
commit_ts, xid, seq, schema_revision, data and last."""

# An integer of any size may be written as eight bytes, which are the frame's own.
LSN_KEY = pack("lsn") + b"\xcf"
DATA_KEY = pack("data")
UNCHANGED_KEY = pack("unchanged")
TEXT_KEY = pack("text")
NOT_LAST = pack("last") + MSGPACK.ends[False]


class ColumnParts(NamedTuple):
    """A column's name, packed, and how its values are."""

    name: bytes
    rule: Rule
    pack: Packer


@dataclass(frozen=True, slots=True, kw_only=True)
class RowParts:
    """The constant parts of a table's changes of one operation."""

    key: bytes
    """What their frames have at byte 25."""
    subject: bytes
    id_suffix: bytes
    """Of message ids, behind the LSN."""
    heads: tuple[bytes, bytes, bytes]
    """A body's beginning, up to where the message id is written: with no, one or two more keys.

    `unchanged` and `text`, which name columns, are only there if they name any.
    """
    columns: tuple[ColumnParts, ...]


def row_parts(shape: TableShape, schema_revision: int, letter: bytes) -> RowParts:
    operation, tuple_kind = OPERATIONS[letter]
    subject = change_subject(shape.name, operation)
    shared = {
        "subject": subject,
        "schema": shape.name.schema,
        "table": shape.name.table,
        "operation": operation,
        "relation_id": shape.relation_id,
        "schema_revision": schema_revision,
    }
    head = b"".join(pack(part) for pair in shared.items() for part in pair) + pack("msg_id")
    count = len(shape.columns)
    return RowParts(
        key=letter + shape.relation_id.to_bytes(4) + tuple_kind + count.to_bytes(2),
        subject=subject.encode(),
        id_suffix=f"-{shape.name.token}-{operation.lower()}".encode(),
        heads=(
            map_header(_KEYS) + head,
            map_header(_KEYS + 1) + head,
            map_header(_KEYS + 2) + head,
        ),
        columns=tuple(
            ColumnParts(pack(column.name), rule_of(column.type.kind), packer_for(column.type))
            for column in shape.columns
        ),
    )

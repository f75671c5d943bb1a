"""Row code: a function per table and operation, from a change's bytes to its message.

A table's columns are known when its first change arrives, so the loop over them is unrolled once:
the source of a function is written from a template per kind of column, and compiled. Whatever is
constant (names, headers, the fields all changes share) is packed beforehand, what is text in
PostgreSQL and in MessagePack alike is copied, and one join makes the message.

There are two ways through a row. Values are text without zero bytes, and one shorter than 256 has
`t 0 0 0` and its size in front of it. So a row of short values can be split at `t 0 0 0`, once for
all columns, and each part is what MessagePack writes behind its mark for a short string: a byte of
size and the text. Where that does not give as many parts as there are columns, there are NULLs,
long or unchanged values, and the row is walked column by column. For a table with the columns
`id bigint` and `name text`, the function reads

    def encode(frame, ordinal, repeat, transaction):
        ...
        parts = frame[33:].split(MARK)
        if len(parts) == 3:
            _, p0, p1 = parts
            if p0[0] + 1 != len(p0) or p1[0] + 1 != len(p1): return None
            return SUBJECT, msg_id, join((..., DATA, N0, pack(int(p0[1:])), S1, p1, NOT_LAST))
        keys, row = walk(frame)
        return SUBJECT, msg_id, join((keys, ..., *row, NOT_LAST))

None in place of a message says that a change is not plain (an old row or key, a value without
native form, anything malformed): the caller goes the long way, which is the definition of what is
right. No name and no value of a table is ever part of the source; they stay data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple, cast

import msgpack

from bridge.packing import Packer, pack, packer_for, str_header
from schemas.codecs import MSGPACK
from schemas.shapes import TableShape
from schemas.subjects import Operation, change_subject
from schemas.types import ContractType, Kind

PackedRow = tuple[bytes, bytes, bytes]
"""Subject, message id and body, which says that the change is not its transaction's last."""

Encode = Callable[[bytes, int, int, bytes], PackedRow | None]
"""From a frame, its ordinal, its repeat and its packed transaction; None for the long way."""

OPERATIONS: Mapping[bytes, tuple[Operation, bytes]] = {
    b"I": ("INSERT", b"N"),
    b"U": ("UPDATE", b"N"),
    b"D": ("DELETE", b"K"),
}
"""The operations by the protocol's letters, and which tuple makes a plain one."""

PROBLEMS = (IndexError, KeyError, ValueError, OverflowError, struct.error)

_TEXT, _NULL, _UNCHANGED = b"tnu"
_SHORT = 256
_STR8 = b"\xd9"
_length_at = struct.Struct("!i").unpack_from
_SHORT_SIZES = {b"t" + size.to_bytes(4): size for size in range(_SHORT)}
"""The size of a short value by the five bytes in front of it: one look-up for kind and length."""


# A frame: its kind, two LSNs and a clock; then the message's kind, the relation's id, the tuple's
# kind and size; then the row, from byte 33 on.
_ENCODE = """\
def encode(frame, ordinal, repeat, transaction):
    if frame[30:33] != TUPLE: return None
    lsn = frame[1:9]
    msg_id = MSG_ID % from_bytes(lsn)
    if repeat: msg_id = b"%b-%d" % (msg_id, repeat)
    seq = ORDINALS[ordinal] if ordinal < 1_000 else pack(ordinal)
    try:
        parts = frame[33:].split(MARK)
        if len(parts) == PARTS:
            first, {parts} = parts
            if first {problems}: return None
            return SUBJECT, msg_id, join((KEYS, HEAD, STR[len(msg_id)], msg_id, LSN, lsn,
                transaction, seq, DATA, {values} NOT_LAST))
        keys, row = walk(frame)
        return SUBJECT, msg_id, join((keys, HEAD, STR[len(msg_id)], msg_id, LSN, lsn,
            transaction, seq, *row, NOT_LAST))
    except PROBLEMS: return None
"""
_WALK = """\
def walk(frame):
    at, unchanged = 33, []
"""
_WALK_COLUMN = """\
    size = short_size(frame[at : at + 5])
    if size is None: h{n}, v{n}, at = other{n}(frame, at, unchanged)
    else:
        p{n} = frame[at + 4 : at + 5 + size]
        if {problem}: raise ValueError
        h{n}, v{n} = {head}, {value}
        at += 5 + size
"""
_WALK_END = """\
    if at != len(frame): raise ValueError
    if unchanged: return with_unchanged(({values}), unchanged)
    return KEYS, (DATA, {values})
"""


class _Template(NamedTuple):
    """How a part becomes MessagePack: what makes it impossible, the name in front, the value."""

    problem: str
    head: str
    value: str


# Dates and moments that are infinity, BC or past the year 9999 differ in length or in the bytes
# that are checked.
_MISSIZED = "p{n}[0] + 1 != len(p{n})"
_ANY = _Template(_MISSIZED, "N{n}", "pack{n}(p{n}[1:])")
_INT = _Template(_MISSIZED, "N{n}", "pack(int(p{n}[1:]))")
_STR = _Template(_MISSIZED, "S{n}", "p{n}")
_BOOL = _Template("False", "N{n}", "BOOLS[p{n}]")
_DATE = _Template("p{n}[0] != 10 or len(p{n}) != 11", "S{n}", "p{n}")
_TIMESTAMP = _Template(
    _MISSIZED + " or p{n}[0] < 19 or p{n}[11] != 32 or p{n}[-1] == 67",
    "S{n}",
    'b"%bT%b" % (p{n}[:11], p{n}[12:])',
)
_TIMESTAMPTZ = _Template(
    _MISSIZED + " or p{n}[0] < 22 or p{n}[11] != 32 or p{n}[-3:] != UTC",
    "S{n}",
    'b"%c%bT%bZ" % (p{n}[0] - 2, p{n}[1:11], p{n}[12:-3])',
)

_VALUES: Mapping[Kind, _Template] = {
    "bool": _BOOL,
    "int16": _INT,
    "int32": _INT,
    "int64": _INT,
    "uint32": _INT,
    "decimal": _STR,
    "text": _STR,
    "uuid": _STR,
    "time": _STR,
    "date": _DATE,
    "timestamp": _TIMESTAMP,
    "timestamptz": _TIMESTAMPTZ,
}

_KEYS = 14
"""What a plain change has: subject, msg_id, schema, table, operation, relation_id, lsn, commit_lsn,
commit_ts, xid, seq, schema_revision, data and last."""


def _map_header(count: int) -> bytes:
    return cast("bytes", msgpack.Packer().pack_map_header(count))


_SHARED: Mapping[str, object] = {
    "KEYS": _map_header(_KEYS),
    "MARK": b"t\0\0\0",
    "BOOLS": {b"\x01t": b"\xc3", b"\x01f": b"\xc2"},
    "UTC": b"+00",
    "STR": [str_header(size) for size in range(1_024)],
    "ORDINALS": [pack(ordinal) for ordinal in range(1_000)],
    # An integer of any size may be written as eight bytes, which are the frame's own.
    "LSN": pack("lsn") + b"\xcf",
    "NOT_LAST": pack("last") + MSGPACK.ends[False],
    "PROBLEMS": PROBLEMS,
    "short_size": _SHORT_SIZES.get,
    "pack": pack,
    "join": b"".join,
    "from_bytes": int.from_bytes,
}


def row_code(shape: TableShape, schema_revision: int) -> dict[bytes, Encode]:
    """Write and compile a table's functions, by the letter and the relation id of its frames."""
    count = len(shape.columns)
    names: dict[str, Any] = {
        **_SHARED,
        "PARTS": count + 1,
        "DATA": pack("data") + _map_header(count),
        "with_unchanged": _with_unchanged,
    }
    for n, column in enumerate(shape.columns):
        name = pack(column.name)
        names |= {
            f"N{n}": name,
            f"S{n}": name + _STR8,
            f"pack{n}": _demanding(packer_for(column.type)),
            f"other{n}": _other(name, column.type),
        }
    exec(_compiled(tuple(c.type.kind for c in shape.columns)), names)  # noqa: S102
    relation_id = shape.relation_id.to_bytes(4)
    return {
        letter + relation_id: _bind(names, shape, schema_revision, letter) for letter in OPERATIONS
    }


@lru_cache(maxsize=256)
def _compiled(kinds: tuple[Kind, ...]) -> CodeType:
    """Compile once for all tables with such columns: it takes milliseconds."""
    # The source is made of the templates above and of numbers.
    return compile(_source(kinds), f"<row code of {len(kinds)} columns>", "exec")


def _source(kinds: Sequence[Kind]) -> str:
    walk, problems, parts, values, walked = _WALK, "", "", "", ""
    for n, kind in enumerate(kinds):
        template = _VALUES.get(kind, _ANY)
        problem, head, value = (piece.format(n=n) for piece in template)
        walk += _WALK_COLUMN.format(n=n, problem=problem, head=head, value=value)
        problems += "" if problem == "False" else f" or {problem}"
        parts += f"p{n}, "
        values += f"{head}, {value}, "
        walked += f"h{n}, v{n}, "
    encode = _ENCODE.format(parts=parts, problems=problems, values=values)
    return walk + _WALK_END.format(values=walked) + encode


def _demanding(packer: Packer) -> Callable[[bytes], bytes]:
    """Make a packer fail where a value has no native form."""

    def pack_value(raw: bytes) -> bytes:
        packed = packer(raw)
        if packed is None:
            raise ValueError("no native form")
        return packed

    return pack_value


Other = Callable[[bytes, int, list[bytes]], tuple[bytes, bytes, int]]


def _other(name: bytes, column_type: ContractType) -> Other:
    """Make what takes a column that holds no short value: NULL, unchanged, or a long one."""
    null, pack_value = name + pack(None), _demanding(packer_for(column_type))

    def take(frame: bytes, at: int, unchanged: list[bytes]) -> tuple[bytes, bytes, int]:
        kind = frame[at]
        if kind == _NULL:
            return null, b"", at + 1
        if kind == _UNCHANGED:
            unchanged.append(name)
            return b"", b"", at + 1
        start, size = at + 5, _length_at(frame, at + 1)[0]
        if kind != _TEXT or size < 0:
            raise ValueError("not a column")
        return name, pack_value(frame[start : start + size]), start + size

    return take


def _with_unchanged(
    values: Sequence[bytes], unchanged: Sequence[bytes]
) -> tuple[bytes, Sequence[bytes]]:
    """Name the columns that are not in `data`; that is one more key."""
    data = pack("data") + _map_header(len(values) // 2 - len(unchanged))
    names = cast("bytes", msgpack.Packer().pack_array_header(len(unchanged)))
    return _map_header(_KEYS + 1), (data, *values, pack("unchanged"), names, *unchanged)


def _bind(
    names: Mapping[str, Any], shape: TableShape, schema_revision: int, letter: bytes
) -> Encode:
    """Bind the code to what all changes of one operation share."""
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
    head = b"".join(pack(part) for pair in shared.items() for part in pair)
    suffix = f"-{shape.name.token}-{operation.lower()}".replace("%", "%%")
    bound = {
        **names,
        "TUPLE": tuple_kind + len(shape.columns).to_bytes(2),
        "SUBJECT": subject.encode(),
        "HEAD": head + pack("msg_id"),
        "MSG_ID": b"%x" + suffix.encode(),
    }
    encode = names["encode"]
    return cast("Encode", type(encode)(encode.__code__, bound))

"""Row code in Python: the function that takes a table's changes, written for its columns.

The loop over a table's columns is unrolled once: the source of a function is made from a template
per rule of a column, and Python compiles it. Used where the compiled loops are missing.

There are two ways through a row. Values are text without zero bytes, and one shorter than 256 has
`t 0 0 0` and its size in front of it. So a row of short values can be split at `t 0 0 0`, once for
all columns, and each part is what MessagePack writes behind its mark for a short string: a byte of
size and the text. Where that does not give as many parts as there are columns, there are NULLs,
long or unchanged values, and the row is walked column by column. For a table with the columns
`id bigint` and `name text`, the function reads

    def encode(frame, lsn, ordinal, repeat, transaction):
        ...
        parts = frame[33:].split(MARK)
        if len(parts) == 3:
            _, p0, p1 = parts
            if p0[0] + 1 != len(p0) or p1[0] + 1 != len(p1): return None
            return SUBJECT, msg_id, join((..., DATA, N0, pack(int(p0[1:])), S1, p1, NOT_LAST))
        head, row = walk(frame)
        return SUBJECT, msg_id, join((head, ..., *row, NOT_LAST))

No name and no value of a table is ever part of the source; they stay data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgpack

from bridge.packing import PROBLEMS, Packer, Rule, map_header, pack, str_header
from bridge.rowparts import DATA_KEY, LSN_KEY, NOT_LAST, UNCHANGED_KEY, Encode, RowParts

_TEXT, _NULL, _UNCHANGED = b"tnu"
_SHORT = 256
_STR8 = b"\xd9"
_length_at = struct.Struct("!i").unpack_from
_SHORT_SIZES = {b"t" + size.to_bytes(4): size for size in range(_SHORT)}
"""The size of a short value by the five bytes in front of it: one look-up for kind and length."""


# What is in capitals differs by table and operation. As cells of a closure these are found faster
# than globals, whose look-ups the interpreter can prepare for one operation at a time only: a mix
# of them paid 0.5 us more for each change.
_BIND = """\
def bind({names}):
{walk}
{encode}
    return encode
"""
_ENCODE = """\
    def encode(frame, lsn, ordinal, repeat, transaction):
        msg_id = MSG_ID % from_bytes(lsn)
        if repeat: msg_id = b"%b-%d" % (msg_id, repeat)
        seq = ORDINALS[ordinal] if ordinal < 1_000 else pack(ordinal)
        try:
            parts = frame[33:].split(MARK)
            if len(parts) == PARTS:
                first, {parts} = parts
                if first {problems}: return None
                return SUBJECT, msg_id, join((HEAD, STR[len(msg_id)], msg_id, LSN, lsn,
                    transaction, seq, DATA, {pieces} NOT_LAST))
            head, row = walk(frame)
            return SUBJECT, msg_id, join((head, STR[len(msg_id)], msg_id, LSN, lsn,
                transaction, seq, *row, NOT_LAST))
        except PROBLEMS: return None
"""
_WALK = """\
    def walk(frame):
        at, row, unchanged = 33, [], []
"""
_WALK_COLUMN = """\
        size = short_size(frame[at : at + 5])
        if size is None: at = other{n}(frame, at, row, unchanged)
        else:
            p{n} = frame[at + 4 : at + 5 + size]
            if {problem}: raise ValueError
            row += ({pieces})
            at += 5 + size
"""
_WALK_END = """\
        if at != len(frame): raise ValueError
        if unchanged: return HEAD_UNCHANGED, with_unchanged(COUNT, row, unchanged)
        return HEAD, (DATA, *row)
"""


class _Template(NamedTuple):
    """How a part becomes MessagePack: what makes it impossible, and what it is put together of."""

    problem: str
    pieces: str


# Dates and moments that are infinity, BC or past the year 9999 differ in length or in the bytes
# that are checked.
_MISSIZED = "p{n}[0] + 1 != len(p{n})"
_ANY = _Template(_MISSIZED, "N{n}, pack{n}(p{n}[1:]), ")
_INT = _Template(_MISSIZED, "N{n}, pack(int(p{n}[1:])), ")
_STR = _Template(_MISSIZED, "S{n}, p{n}, ")
_BOOL = _Template("False", "N{n}, BOOLS[p{n}], ")
_DATE = _Template("p{n}[0] != 10 or len(p{n}) != 11", "S{n}, p{n}, ")
_TIMESTAMP = _Template(
    _MISSIZED + " or p{n}[0] < 19 or p{n}[11] != 32 or p{n}[-1] == 67",
    'S{n}, p{n}[:11], b"T", p{n}[12:], ',
)
_TIMESTAMPTZ = _Template(
    _MISSIZED + " or p{n}[0] < 22 or p{n}[11] != 32 or p{n}[-3:] != UTC",
    'S{n}, BYTE[p{n}[0] - 2], p{n}[1:11], b"T", p{n}[12:-3], b"Z", ',
)

_TEMPLATES: Mapping[Rule, _Template] = {
    Rule.OTHER: _ANY,
    Rule.TEXT: _STR,
    Rule.INTEGER: _INT,
    Rule.BOOLEAN: _BOOL,
    Rule.DATE: _DATE,
    Rule.TIMESTAMP: _TIMESTAMP,
    Rule.TIMESTAMPTZ: _TIMESTAMPTZ,
}

_SHARED: Mapping[str, object] = {
    "MARK": b"t\0\0\0",
    "BOOLS": {b"\x01t": b"\xc3", b"\x01f": b"\xc2"},
    "UTC": b"+00",
    "BYTE": [bytes([byte]) for byte in range(256)],
    "STR": [str_header(size) for size in range(1_024)],
    "ORDINALS": [pack(ordinal) for ordinal in range(1_000)],
    "LSN": LSN_KEY,
    "NOT_LAST": NOT_LAST,
    "PROBLEMS": PROBLEMS,
    "short_size": _SHORT_SIZES.get,
    "pack": pack,
    "join": b"".join,
    "from_bytes": int.from_bytes,
}


_OF_TABLE = ("COUNT", "PARTS", "DATA", "with_unchanged")
_OF_OPERATION = ("SUBJECT", "HEAD", "HEAD_UNCHANGED", "MSG_ID")


def generated(parts: RowParts) -> Encode:
    """Make a table's function for an operation."""
    count = len(parts.columns)
    names: dict[str, Any] = {
        **_SHARED,
        "SUBJECT": parts.subject,
        "HEAD": parts.heads[0],
        "HEAD_UNCHANGED": parts.heads[1],
        "MSG_ID": b"%x" + parts.id_suffix.replace(b"%", b"%%"),
        "COUNT": count,
        "PARTS": count + 1,
        "DATA": DATA_KEY + map_header(count),
        "with_unchanged": _with_unchanged,
    }
    for n, column in enumerate(parts.columns):
        pack_value = _demanding(column.pack)
        names |= {
            f"N{n}": column.name,
            f"S{n}": column.name + _STR8,
            f"pack{n}": pack_value,
            f"other{n}": _other(column.name, pack_value),
        }
    return _compiled(tuple(column.rule for column in parts.columns))(**names)


@lru_cache(maxsize=256)
def _compiled(rules: tuple[Rule, ...]) -> Callable[..., Encode]:
    """Compile once for all tables with such columns: it takes milliseconds."""
    made: dict[str, Any] = {}
    # The source is made of the templates above and of numbers.
    exec(compile(_source(rules), f"<row code of {len(rules)} columns>", "exec"), made)  # noqa: S102
    return cast("Callable[..., Encode]", made["bind"])


def _source(rules: Sequence[Rule]) -> str:
    walk, problems, parts, all_pieces = _WALK, "", "", ""
    names = [*_SHARED, *_OF_TABLE, *_OF_OPERATION]
    for n, rule in enumerate(rules):
        problem, pieces = (text.format(n=n) for text in _TEMPLATES[rule])
        walk += _WALK_COLUMN.format(n=n, problem=problem, pieces=pieces)
        problems += "" if problem == "False" else f" or {problem}"
        parts += f"p{n}, "
        all_pieces += pieces
        names += [f"N{n}", f"S{n}", f"pack{n}", f"other{n}"]
    encode = _ENCODE.format(parts=parts, problems=problems, pieces=all_pieces)
    return _BIND.format(names=", ".join(names), walk=walk + _WALK_END, encode=encode)


def _demanding(packer: Packer) -> Callable[[bytes], bytes]:
    """Make a packer that fails where a value has no native form."""

    def pack_value(raw: bytes) -> bytes:
        packed = packer(raw)
        if packed is None:
            raise ValueError("no native form")
        return packed

    return pack_value


Other = Callable[[bytes, int, list[bytes], list[bytes]], int]


def _other(name: bytes, pack_value: Callable[[bytes], bytes]) -> Other:
    """Make what takes a column that holds no short value: NULL, unchanged, or a long one."""
    null = name + pack(None)

    def take(frame: bytes, at: int, row: list[bytes], unchanged: list[bytes]) -> int:
        kind = frame[at]
        if kind == _NULL:
            row.append(null)
            return at + 1
        if kind == _UNCHANGED:
            unchanged.append(name)
            return at + 1
        start = at + 5
        size: int = _length_at(frame, at + 1)[0]
        if kind != _TEXT or size < 0:
            raise ValueError("not a column")
        row += (name, pack_value(frame[start : start + size]))
        return start + size

    return take


def _with_unchanged(
    columns: int, row: Sequence[bytes], unchanged: Sequence[bytes]
) -> Sequence[bytes]:
    """Name the columns that are not in `data`; that is one more key."""
    data = DATA_KEY + map_header(columns - len(unchanged))
    names = cast("bytes", msgpack.Packer().pack_array_header(len(unchanged)))
    return (data, *row, UNCHANGED_KEY, names, *unchanged)

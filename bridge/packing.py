"""A value's text to MessagePack, by the kind of its column, unread where both write it alike.

What is said here of one value is done for many elsewhere, and comes out the same: the changes' row
code (`rowsource`), a snapshot's columns (`snapshot.bulk`), and both of them compiled (`compiled`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, cast

import msgpack

from schemas.types import ContractType, Kind
from schemas.values import NO_NATIVE_FORM, reader_for

Packer = Callable[[bytes], bytes | None]
"""From a value's text to MessagePack; None where the long way must decide."""

PROBLEMS = (IndexError, KeyError, ValueError, OverflowError, struct.error)
"""What a packer raises where a value's text is not what its type writes."""


class Rule(IntEnum):
    """What is done with a value's text; `OTHER` reads the value and writes it anew."""

    OTHER = 0
    TEXT = 1
    INTEGER = 2
    BOOLEAN = 3
    DATE = 4
    TIMESTAMP = 5
    TIMESTAMPTZ = 6


RULES: Mapping[Kind, Rule] = {
    "bool": Rule.BOOLEAN,
    "int16": Rule.INTEGER,
    "int32": Rule.INTEGER,
    "int64": Rule.INTEGER,
    "uint32": Rule.INTEGER,
    "decimal": Rule.TEXT,
    "text": Rule.TEXT,
    "uuid": Rule.TEXT,
    "time": Rule.TEXT,
    "date": Rule.DATE,
    "timestamp": Rule.TIMESTAMP,
    "timestamptz": Rule.TIMESTAMPTZ,
}


def rule_of(kind: Kind) -> Rule:
    return RULES.get(kind, Rule.OTHER)


pack = cast("Callable[[Any], bytes]", msgpack.Packer().pack)


def str_header(size: int) -> bytes:
    """Write what MessagePack puts in front of a string."""
    if size < 32:
        return bytes([0xA0 | size])
    if size < 1 << 8:
        return bytes([0xD9, size])
    if size < 1 << 16:
        return b"\xda" + size.to_bytes(2)
    return b"\xdb" + size.to_bytes(4)


def map_header(count: int) -> bytes:
    return cast("bytes", msgpack.Packer().pack_map_header(count))


_STR_HEADERS = [str_header(size) for size in range(256)]


def _pack_text(raw: bytes) -> bytes:
    size = len(raw)
    return (_STR_HEADERS[size] if size < 256 else str_header(size)) + raw


def _pack_int(raw: bytes) -> bytes:
    return pack(int(raw))


def _pack_bool(raw: bytes) -> bytes:
    return b"\xc3" if raw == b"t" else b"\xc2"


def _pack_date(raw: bytes) -> bytes | None:
    return b"\xaa" + raw if len(raw) == 10 else None


def _pack_timestamp(raw: bytes) -> bytes | None:
    # Anything but YYYY-MM-DD in front and a digit behind is infinity, BC or past the year 9999.
    if raw[10:11] != b" " or raw[-1:] == b"C":
        return None
    return b"%b%bT%b" % (_STR_HEADERS[len(raw)], raw[:10], raw[11:])


def _pack_timestamptz(raw: bytes) -> bytes | None:
    if raw[10:11] != b" " or raw[-3:] != b"+00":
        return None
    return b"%b%bT%bZ" % (_STR_HEADERS[len(raw) - 2], raw[:10], raw[11:-3])


def pack_any(column_type: ContractType) -> Packer:
    """Read the value as the contract does, then pack it."""
    read = reader_for(column_type, "msgpack")

    def pack_value(raw: bytes) -> bytes | None:
        value = read(raw.decode())
        return None if value is NO_NATIVE_FORM else pack(value)

    return pack_value


_PACKERS: Mapping[Rule, Packer] = {
    Rule.TEXT: _pack_text,
    Rule.INTEGER: _pack_int,
    Rule.BOOLEAN: _pack_bool,
    Rule.DATE: _pack_date,
    Rule.TIMESTAMP: _pack_timestamp,
    Rule.TIMESTAMPTZ: _pack_timestamptz,
}


def packer_for(column_type: ContractType) -> Packer:
    """Choose the packer once per column; PostgreSQL's text is UTF-8, as MessagePack's is."""
    return _PACKERS.get(rule_of(column_type.kind)) or pack_any(column_type)

r"""COPY's text format as PostgreSQL writes it: tabs between fields, `\N` for NULL, few escapes.

A tab, newline or backslash inside a value is always escaped, so a line can be cut at its tabs
before anything else is looked at.
"""

from __future__ import annotations

import re

from bridge.errors import MalformedWal

NULL = rb"\N"

_ESCAPED = re.compile(rb"\\(.?)", re.DOTALL)
_MEANINGS = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
}


def unescape(field: bytes) -> bytes:
    """Give a value's own bytes; the caller has looked for `NULL` before."""
    try:
        return _ESCAPED.sub(lambda found: _MEANINGS[found[1]], field)
    except KeyError as unknown:
        raise MalformedWal(f"COPY wrote an escape it does not have: {unknown}") from None


def split_line(line: bytes, count: int) -> list[bytes | None]:
    """Cut a line into its values; None is NULL."""
    if line[-1:] != b"\n":
        raise MalformedWal("COPY sent a line without an end")
    fields: list[bytes] = line[:-1].split(b"\t") if count else []
    if len(fields) != count:
        raise MalformedWal(f"COPY sent {len(fields)} values where {count} belong")
    if b"\\" not in line:
        return list(fields)
    return [None if field == NULL else unescape(field) for field in fields]

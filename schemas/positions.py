"""Where something is: a byte position in the WAL, and a place in commit order.

An LSN is an integer on the wire because consumers compare it; people read it as `0/191BFD0`.
`lsn` is not monotonic across transactions. `Position`, which is (commit LSN, ordinal), is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LIMIT = 1 << 64
_READABLE = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A log sequence number: a byte position in PostgreSQL's WAL."""

    def __new__(cls, value: int) -> Lsn:
        if not 0 <= value < _LIMIT:
            raise ValueError(f"{value} is not a WAL position: it must fit 64 bits")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read the form people and PostgreSQL use, such as `0/191BFD0`."""
        found = _READABLE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a WAL position such as 0/191BFD0")
        return cls(int(found[1], 16) << 32 | int(found[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"


class Position(NamedTuple):
    """A place in commit order; positions of one slot only ever grow along the stream."""

    commit_lsn: int
    ordinal: int


ORIGIN = Position(0, -1)
"""Before every change."""

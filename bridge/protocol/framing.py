"""Replication frames: what travels inside CopyData, in both directions.

Bytes are distrusted here once: `Cursor` cannot overrun, and whatever does not fit raises
`MalformedWal`. Inside, values speak for themselves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from bridge.errors import MalformedWal

_XLOG_DATA = struct.Struct("!QQQ")
_KEEPALIVE = struct.Struct("!QQB")
_STATUS = struct.Struct("!cQQQQB")


@dataclass(frozen=True, slots=True)
class XLogData:
    """One pgoutput message, at the WAL position it comes from."""

    start: int
    wal_end: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How far the server has read; everything committed before it has been sent."""

    wal_end: int
    reply_requested: bool


Frame = XLogData | Keepalive


def decode_frame(data: bytes) -> Frame:
    """Read one CopyData body."""
    kind = data[:1]
    if kind == b"w" and len(data) > _XLOG_DATA.size:
        start, wal_end, _ = _XLOG_DATA.unpack_from(data, 1)
        return XLogData(start, wal_end, data[1 + _XLOG_DATA.size :])
    if kind == b"k" and len(data) == 1 + _KEEPALIVE.size:
        wal_end, _, reply = _KEEPALIVE.unpack_from(data, 1)
        return Keepalive(wal_end, reply == 1)
    raise MalformedWal(f"not a replication frame: {data[:32]!r} ({len(data)} bytes)")


def encode_status(confirmed: int, now: int, *, reply_requested: bool = False) -> bytes:
    """Write a standby status update that lets the server discard WAL before `confirmed`."""
    return _STATUS.pack(b"r", confirmed, confirmed, confirmed, now, reply_requested)


class Cursor:
    """Reads the parts of a message one after the other and never past its end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise MalformedWal(f"needed {size} bytes at {start} of {len(self._data)}")
        return self._data[start : self._at]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def byte(self) -> int:
        return self.take(1)[0]

    def string(self) -> str:
        """Read a zero-terminated string."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise MalformedWal(f"a string at {self._at} of {len(self._data)} has no end")
        start, self._at = self._at, end + 1
        return decode_text(self._data[start:end])

    def finish(self) -> None:
        if self._at != len(self._data):
            raise MalformedWal(f"{len(self._data) - self._at} bytes left over at {self._at}")


def decode_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedWal(f"text is not UTF-8: {error}") from None

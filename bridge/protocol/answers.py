"""A server's answer to one command, as bytes of the wire come: its CopyData, and how it ended.

Two commands are answered over the socket itself, because libpq's call per message is a large part
of what a row costs: COPY TO STDOUT (`copyout`) and START_REPLICATION (`copyboth`). Both are a
beginning, CopyData messages and an end, with notices and settings anywhere between them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from bridge.errors import MalformedWal

HEADER_BYTES = 5
_LENGTH = struct.Struct("!xI")
_COPY_DATA, _ERROR, _READY = b"d", b"E", b"Z"

# CopyDone and CommandComplete; and what may come at any time: notices, settings, notifications.
_PASSED_OVER = frozenset({b"c", b"C", b"N", b"S", b"A"})

MOST_BYTES_OF_A_MESSAGE = 1 << 30
"""PostgreSQL allocates no more than this for a row."""


def query_message(query: str) -> bytes:
    """Write a simple query."""
    text = query.encode() + b"\0"
    return b"Q" + (len(text) + 4).to_bytes(4) + text


def copy_data(payload: bytes) -> bytes:
    """Write one CopyData message."""
    return _COPY_DATA + (len(payload) + 4).to_bytes(4) + payload


class Answer:
    """Takes bytes as they arrive; `begins_with` is how the server says that CopyData follow."""

    begins_with: bytes

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = HEADER_BYTES
        self.has_begun = False
        self.is_over = False
        """Whether the server is ready for the next query: everything was given."""

        self.failure: Mapping[str, str] | None = None
        """The fields of the error that ended it, by their one-letter names."""

    def _whole(self, data: bytes) -> bytes:
        """Add bytes; gives all that are held, or none while a message is incomplete."""
        self._pieces.append(data)
        self._held += len(data)
        # A row of many megabytes comes in many pieces, which are put together once.
        return b"" if self._held < self._wanted else b"".join(self._pieces)

    def _walk(self, data: bytes) -> list[bytes]:
        """Read message by message as far as they are complete; gives what CopyData carry."""
        bodies: list[bytes] = []
        at, end, wanted = 0, len(data), HEADER_BYTES
        while end - at >= HEADER_BYTES and not self.is_over:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 4 <= length <= MOST_BYTES_OF_A_MESSAGE:
                raise MalformedWal(f"not an answer of PostgreSQL: {data[at : at + 32]!r}")
            if end - at <= length:
                wanted = length + 1
                break
            kind, body = data[at : at + 1], data[at + HEADER_BYTES : at + 1 + length]
            at += 1 + length
            if kind == _COPY_DATA and self.has_begun:
                bodies.append(body)
            else:
                self._note(kind, body)
        rest = data[at:]
        self._pieces, self._held, self._wanted = [rest], len(rest), wanted
        return bodies

    def _note(self, kind: bytes, body: bytes) -> None:
        """Take what is not CopyData."""
        # Zero is the text format.
        if kind == self.begins_with and body[:1] == b"\0" and not self.has_begun:
            self.has_begun = True
        elif kind == _ERROR:
            self.failure = read_fields(body)
        elif kind == _READY:
            self.is_over = True
        elif kind not in _PASSED_OVER:
            raise MalformedWal(f"a copy was answered with {kind!r}: {body[:32]!r}")


def read_fields(body: bytes) -> dict[str, str]:
    """Read an error's fields: a letter and a string each."""
    return {
        part[:1].decode(errors="replace"): part[1:].decode(errors="replace")
        for part in body.split(b"\0")
        if part
    }

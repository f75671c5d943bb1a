"""Rows from COPY's lines to a chunk's body, in either codec, by the same rule as changes.

A row is encoded once and its bytes are joined into the chunk, so a chunk's size is known before it
is built. A value without native form is PostgreSQL's text, and its column is named for that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgpack

from bridge.errors import MalformedWal
from bridge.packing import packer_for
from bridge.snapshot.copytext import split_line
from schemas.codecs import JSON
from schemas.shapes import Column
from schemas.types import TEXT
from schemas.values import NO_NATIVE_FORM, Format, reader_for

Texts = Mapping[str, Sequence[str]]
"""A row's ordinal in its chunk, as a string, to the columns that carry PostgreSQL's text."""


class Bodies(Protocol):
    """One codec's way to write rows and chunks."""

    def row(self, line: bytes) -> tuple[bytes, Sequence[str]]:
        """Encode a line of COPY; also name the columns that are text."""

    def chunk(self, head: Mapping[str, Any], rows: Sequence[bytes], texts: Texts) -> bytes:
        """Build the body of a chunk from rows that are already encoded."""


class MsgpackBodies:
    """Packs values straight from PostgreSQL's bytes, as the hot path of changes does."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [(c.name, msgpack.packb(c.name), packer_for(c.type)) for c in columns]
        self._count = len(columns)
        self._head = msgpack.Packer().pack_map_header(self._count)
        self._pack_text = packer_for(TEXT)

    def row(self, line: bytes) -> tuple[bytes, Sequence[str]]:
        texts: list[str] = []
        parts = [self._head]
        append = parts.append
        name = ""
        try:
            for (name, key, pack), value in zip(
                self._columns, split_line(line, self._count), strict=True
            ):
                append(key)
                if value is None:
                    append(b"\xc0")
                    continue
                packed = pack(value)
                if packed is None:
                    texts.append(name)
                    packed = self._pack_text(value) or b""
                append(packed)
        except (ValueError, IndexError) as error:
            raise _unexplained(name, line) from error
        return b"".join(parts), texts

    def chunk(self, head: Mapping[str, Any], rows: Sequence[bytes], texts: Texts) -> bytes:
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(head) + 1 + bool(texts))
        for part in (part for pair in head.items() for part in pair):
            packer.pack(part)
        if texts:
            packer.pack("text")
            packer.pack(texts)
        packer.pack("data")
        packer.pack_array_header(len(rows))
        before: bytes = packer.bytes()
        return before + b"".join(rows)


class JsonBodies:
    """Reads values as the contract does and writes them as JSON."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [(c.name, reader_for(c.type, "json")) for c in columns]

    def row(self, line: bytes) -> tuple[bytes, Sequence[str]]:
        texts: list[str] = []
        row: dict[str, Any] = {}
        name = ""
        try:
            values = split_line(line, len(self._columns))
            for (name, read), raw in zip(self._columns, values, strict=True):
                text = None if raw is None else raw.decode()
                value = None if text is None else read(text)
                if value is NO_NATIVE_FORM:
                    texts.append(name)
                    value = text
                row[name] = value
        except (ValueError, IndexError) as error:
            raise _unexplained(name, line) from error
        return JSON.encode(row), texts

    def chunk(self, head: Mapping[str, Any], rows: Sequence[bytes], texts: Texts) -> bytes:
        before = {**head, "text": texts} if texts else head
        return JSON.encode(before)[:-1] + b',"data":[' + b",".join(rows) + b"]}"


def bodies_for(columns: Sequence[Column], format: Format) -> Bodies:
    return JsonBodies(columns) if format == "json" else MsgpackBodies(columns)


def _unexplained(name: str, line: bytes) -> MalformedWal:
    return MalformedWal(f"column {name} holds text its type does not explain, in {line[:80]!r}")

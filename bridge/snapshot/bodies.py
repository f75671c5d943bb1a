"""Rows from COPY's lines to a chunk's body, in either codec, by the same rule as changes.

Lines are encoded block by block and the blocks are joined into the chunk, so a chunk's size is
known before it is built. A value without native form is PostgreSQL's text, and its column is named
for that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgpack

from bridge.errors import MalformedWal
from bridge.protocol.copylines import Lines
from bridge.snapshot.columns import Block, BlockPacker, Texts
from bridge.snapshot.copytext import split_line
from schemas.codecs import JSON
from schemas.shapes import Column
from schemas.values import NO_NATIVE_FORM, Format, reader_for


class Bodies(Protocol):
    """One codec's way to write rows and chunks."""

    def block(self, lines: Lines) -> Block:
        """Encode lines of COPY."""

    def chunk(self, head: Mapping[str, Any], blocks: Sequence[Block]) -> bytes:
        """Build the body of a chunk from rows that are already encoded."""


def gather_texts(blocks: Sequence[Block]) -> dict[str, Sequence[str]]:
    """Give the columns that are text by the row's ordinal in the chunk, as a string."""
    gathered: dict[str, Sequence[str]] = {}
    first = 0
    for block in blocks:
        for row, names in sorted(block.texts.items()):
            gathered[str(first + row)] = names
        first += block.rows
    return gathered


class MsgpackBodies:
    """Packs values straight from PostgreSQL's bytes, as the hot path of changes does."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.block = BlockPacker(columns).pack

    def chunk(self, head: Mapping[str, Any], blocks: Sequence[Block]) -> bytes:
        texts = gather_texts(blocks)
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(head) + 1 + bool(texts))
        for part in (part for pair in head.items() for part in pair):
            packer.pack(part)
        if texts:
            packer.pack("text")
            packer.pack(texts)
        packer.pack("data")
        packer.pack_array_header(sum(block.rows for block in blocks))
        return b"".join((packer.bytes(), *(block.body for block in blocks)))


class JsonBodies:
    """Reads values as the contract does and writes them as JSON."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [(c.name, reader_for(c.type, "json")) for c in columns]

    def block(self, lines: Lines) -> Block:
        texts: Texts = {}
        rows = []
        for number, line in enumerate(lines.each()):
            row, odd = self._row(line)
            rows.append(row)
            if odd:
                texts[number] = odd
        return Block(lines.count, b",".join(rows), texts)

    def _row(self, line: bytes) -> tuple[bytes, list[str]]:
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

    def chunk(self, head: Mapping[str, Any], blocks: Sequence[Block]) -> bytes:
        texts = gather_texts(blocks)
        before = {**head, "text": texts} if texts else head
        rows = b",".join(block.body for block in blocks)
        return JSON.encode(before)[:-1] + b',"data":[' + rows + b"]}"


def bodies_for(columns: Sequence[Column], format: Format) -> Bodies:
    return JsonBodies(columns) if format == "json" else MsgpackBodies(columns)


def _unexplained(name: str, line: bytes) -> MalformedWal:
    return MalformedWal(f"column {name} holds text its type does not explain, in {line[:80]!r}")

"""Chunks: how many rows go into one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bridge.protocol.copylines import Lines
from bridge.snapshot.columns import Block
from schemas.codecs import JSON

MAX_ROWS = 10_000
HEADROOM_BYTES = 4_096
"""Kept free of max_payload for headers and for the fields before the rows."""

_TEXT_ENTRY_BYTES = 16

Encode = Callable[[Lines], Block]


@dataclass(slots=True)
class Chunk:
    """Encoded rows that travel together."""

    blocks: list[Block] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, block: Block, size: int) -> None:
        self.blocks.append(block)
        self.rows += block.rows
        self.size += size


def size_of(block: Block) -> int:
    """Say how many bytes of a chunk a block takes, at most."""
    names = (name for names in block.texts.values() for name in names)
    entries = len(block.texts) * _TEXT_ENTRY_BYTES + sum(len(JSON.encode(n)) + 4 for n in names)
    return len(block.body) + 1 + entries


class Chunker:
    """Collects blocks of rows until a chunk is full; a row too large for any has one to itself.

    Rows are never cut out of a block that is encoded. A block that finds too little room closes the
    chunk before it, and one that is too large even for an empty chunk is halved and encoded again.
    """

    def __init__(self, encode: Encode, max_bytes: int, max_rows: int = MAX_ROWS) -> None:
        self._encode = encode
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._open = Chunk()

    def add(self, lines: Lines) -> Iterator[Chunk]:
        """Take lines, and give the chunks that they filled."""
        while (room := self._max_rows - self._open.rows) < lines.count:
            if not room:
                yield from self.rest()
                continue
            now, lines = lines.split(room)
            yield from self._add(now)
        yield from self._add(lines)

    def _add(self, lines: Lines) -> Iterator[Chunk]:
        block = self._encode(lines)
        size = size_of(block)
        if size > self._max_bytes and lines.count > 1:
            for half in lines.split(lines.count // 2):
                yield from self._add(half)
            return
        if self._open.size + size > self._max_bytes:
            yield from self.rest()
        self._open.add(block, size)

    def rest(self) -> Iterator[Chunk]:
        """Give what is collected, if anything."""
        chunk, self._open = self._open, Chunk()
        if chunk.rows:
            yield chunk


def ctid_ranges(pages: int, readers: int) -> list[tuple[int, int | None]]:
    """Divide a table's pages; the last range has no end, and together they are the whole table."""
    shares = max(1, min(readers, pages))
    starts = [pages * share // shares for share in range(shares)]
    return list(zip(starts, [*starts[1:], None], strict=True))

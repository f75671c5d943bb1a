"""Chunks: how many rows go into one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.codecs import JSON

MAX_ROWS = 10_000
HEADROOM_BYTES = 4_096
"""Kept free of max_payload for headers and for the fields before the rows."""

_TEXT_ENTRY_BYTES = 16


@dataclass(slots=True)
class Chunk:
    """Encoded rows that travel together."""

    rows: list[bytes] = field(default_factory=list)
    texts: dict[str, Sequence[str]] = field(default_factory=dict)
    size: int = 0


class Chunker:
    """Collects rows until a chunk is full; a row too large for any chunk has one to itself."""

    def __init__(self, max_bytes: int, max_rows: int = MAX_ROWS) -> None:
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._open = Chunk()

    def add(self, row: bytes, texts: Sequence[str] = ()) -> Chunk | None:
        """Take a row, and give the chunk that was full before it."""
        size = len(row) + 1
        if texts:
            size += _TEXT_ENTRY_BYTES + sum(len(JSON.encode(name)) + 4 for name in texts)
        full = None
        chunk = self._open
        if chunk.rows and (
            len(chunk.rows) >= self._max_rows or chunk.size + size > self._max_bytes
        ):
            full, chunk = chunk, Chunk()
            self._open = chunk
        if texts:
            chunk.texts[str(len(chunk.rows))] = texts
        chunk.rows.append(row)
        chunk.size += size
        return full

    def rest(self) -> Chunk | None:
        """Give what is left at the end, if anything."""
        chunk, self._open = self._open, Chunk()
        return chunk if chunk.rows else None


def ctid_ranges(pages: int, readers: int) -> list[tuple[int, int | None]]:
    """Divide a table's pages; the last range has no end, and together they are the whole table."""
    shares = max(1, min(readers, pages))
    starts = [pages * share // shares for share in range(shares)]
    return list(zip(starts, [*starts[1:], None], strict=True))

"""Chunks between their readers and the publisher: first in, first out, bounded in bytes.

Bytes count until JetStream has stored them, so a table of any size passes through the same memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from bridge.outbox import Outgoing


@dataclass(slots=True)
class PackedChunk:
    """A chunk on its way, and what it counts for."""

    message: Outgoing
    rows: int
    size: int


class Outflow:
    """A queue with several writers and one reader, all in one event loop."""

    def __init__(self, max_bytes: int, writers: int = 1) -> None:
        self._max_bytes = max_bytes
        self._writers = writers
        self._waiting: deque[PackedChunk] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._freed = asyncio.Event()

    async def room(self) -> None:
        """Wait until there is room; one chunk always has room, however large."""
        while self._bytes >= self._max_bytes:
            self._freed.clear()
            await self._freed.wait()

    def add(self, chunk: PackedChunk) -> None:
        self._waiting.append(chunk)
        self._bytes += chunk.size
        self._filled.set()

    async def take(self, most: int) -> list[PackedChunk]:
        """Wait for chunks; none says that there will be no more."""
        while not self._waiting:
            if not self._writers:
                return []
            self._filled.clear()
            await self._filled.wait()
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def release(self, size: int) -> None:
        """Forget bytes that are stored."""
        self._bytes -= size
        self._freed.set()

    def close(self) -> None:
        """Say that one of the writers has no more."""
        self._writers -= 1
        self._filled.set()

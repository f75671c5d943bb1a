"""What waits to be published and what is on its way: first in, first out, bounded in bytes.

One message is held back until the next one, or the end of the transaction, tells whether it was the
last. The reader waits when the outbox is full, so memory is bounded and PostgreSQL keeps the WAL;
bytes count until JetStream has stored them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

_OVERHEAD = 300
"""Protocol line, headers and Python objects around a body, roughly."""


@dataclass(slots=True)
class Outgoing:
    """One message; its body is open, but for the value of `last`, until the outbox seals it."""

    subject: str
    msg_id: str
    body: bytes
    size: int = 0
    """Bytes it counts for, from when it is sealed."""

    headers: str = ""
    """Header lines beyond those of every message: how the body is compressed, where it is."""


class Outbox:
    """A queue between the WAL reader and the publisher; both run in one event loop."""

    def __init__(self, max_bytes: int, ends: tuple[bytes, bytes]) -> None:
        self._max_bytes = max_bytes
        self._not_last, self._last = ends
        self._held: Outgoing | None = None
        self._waiting: deque[Outgoing] = deque()
        self._in_flight: deque[Outgoing] = deque()
        self._bytes = 0
        self._closed = False
        self._filled = asyncio.Event()
        self._freed = asyncio.Event()

    @property
    def bytes_held(self) -> int:
        return self._bytes

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._max_bytes

    @property
    def is_empty(self) -> bool:
        """Whether everything that may be sent has been taken."""
        return not self._waiting

    def add(self, message: Outgoing) -> None:
        """Queue a message. It is held back until it is known whether it ends its transaction."""
        if self._held is not None:
            self._seal(self._held, self._not_last)
        self._held = message

    def end_transaction(self) -> None:
        """Let the message held back go, as its transaction's last."""
        if self._held is not None:
            self._seal(self._held, self._last)
            self._held = None

    def _seal(self, message: Outgoing, end: bytes) -> None:
        message.body += end
        message.size = len(message.body) + _OVERHEAD
        self._waiting.append(message)
        self._bytes += message.size
        self._filled.set()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self.is_full:
            self._freed.clear()
            await self._freed.wait()

    async def take(self, most: int) -> list[Outgoing]:
        """Wait for messages; none says that the outbox is closed and empty."""
        while not self._waiting:
            if self._closed:
                return []
            self._filled.clear()
            await self._filled.wait()
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._in_flight.extend(taken)
        return taken

    def release(self, count: int) -> list[Outgoing]:
        """Let go of the first `count` messages in flight, which are stored, and give them back."""
        stored = [self._in_flight.popleft() for _ in range(count)]
        self._bytes -= sum(message.size for message in stored)
        self._freed.set()
        return stored

    def close(self) -> None:
        """Take no more; what is queued is still handed out."""
        self._closed = True
        self._filled.set()

"""What waits to be published: bounded in bytes, taken in batches that end where transactions end.

The reader waits when the outbox is full, so memory is bounded and PostgreSQL keeps the WAL. Bytes
count until JetStream has acknowledged them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.config import PublishLimits

_FRAME_OVERHEAD = 200
"""Protocol line, headers and Python objects around a body, roughly."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message ready to be published."""

    subject: str
    msg_id: str
    body: bytes
    ends_transaction: bool

    @property
    def size(self) -> int:
        return len(self.body) + _FRAME_OVERHEAD


def plan_batch(queued: int, ends: Sequence[int], *, most: int, urgent: bool) -> int:
    """Say how many of the queued messages make the next batch; 0 is to wait for more.

    `ends` counts the messages up to each transaction end in the queue. A batch ends with the last
    transaction that fits. One larger than a batch is cut where the batch is full, and `urgent`
    (no room for the rest of it, or no rest to come) takes what there is.
    """
    fitting = 0
    for end in ends:
        if end > most:
            break
        fitting = end
    if fitting:
        return fitting
    return min(queued, most) if queued >= most or urgent else 0


class Outbox:
    """A queue between the WAL reader and the publisher."""

    def __init__(self, limits: PublishLimits) -> None:
        self._limits = limits
        self._queue: deque[Outgoing] = deque()
        self._ends: deque[int] = deque()
        self._taken = 0
        self._put = 0
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Condition()

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._limits.max_bytes

    async def put(self, message: Outgoing) -> None:
        """Queue a message, waiting for room first."""
        async with self._changed:
            while self.is_full:
                await self._changed.wait()
            self._queue.append(message)
            self._put += 1
            self._bytes += message.size
            if message.ends_transaction:
                self._ends.append(self._put)
            if message.ends_transaction or self.is_full or len(self._queue) >= self._most:
                self._changed.notify_all()

    async def take(self) -> list[Outgoing]:
        """Wait for the next batch; an empty one says that the outbox is closed and drained."""
        async with self._changed:
            while not (count := self._plan()):
                if self._closed:
                    return []
                await self._changed.wait()
            batch = [self._queue.popleft() for _ in range(count)]
            self._taken += count
            while self._ends and self._ends[0] <= self._taken:
                self._ends.popleft()
            return batch

    async def release(self, batch: Sequence[Outgoing]) -> None:
        """Give the room of an acknowledged batch back."""
        async with self._changed:
            self._bytes -= sum(message.size for message in batch)
            self._changed.notify_all()

    async def close(self) -> None:
        """Take no more; what ends with a whole transaction is still handed out."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def _most(self) -> int:
        return self._limits.batch_messages

    def _plan(self) -> int:
        ends = [end - self._taken for end in self._ends]
        return plan_batch(
            len(self._queue), ends, most=self._most, urgent=self.is_full and not self._closed
        )

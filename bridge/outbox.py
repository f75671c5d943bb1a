"""What waits to be published and what is on its way: first in, first out, bounded in bytes.

One message is held back until the next one, or the end of the transaction, tells whether it was the
last. The reader waits when the outbox is full, so memory is bounded and PostgreSQL keeps the WAL;
bytes count until JetStream has stored them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeGuard

from bridge.rowparts import PackedRow

_OVERHEAD = 300
"""Protocol line, headers and Python objects around a body, roughly."""


@dataclass(slots=True)
class Outgoing:
    """A message that needs more than most: a compressed body, or one that is elsewhere."""

    subject: str
    msg_id: str
    body: bytes
    headers: str = ""
    """Header lines beyond those of every message: how the body is compressed, where it is."""


Message = Outgoing | PackedRow


def all_packed(messages: Sequence[Message]) -> TypeGuard[Sequence[PackedRow]]:
    """Say whether messages are all rows that need nothing beyond what every message has."""
    return set(map(type, messages)) <= {tuple}


def outgoing(row: PackedRow) -> Outgoing:
    subject, msg_id, body = row
    return Outgoing(subject.decode(), msg_id.decode(), body)


def as_outgoing(message: Message) -> Outgoing:
    return message if isinstance(message, Outgoing) else outgoing(message)


_subject, _body = itemgetter(0), itemgetter(2)


@dataclass(slots=True)
class Chunk:
    """Messages that are published together; what they count for outlives them."""

    rows: list[PackedRow] = field(default_factory=list)
    count: int = 0
    size: int = 0
    largest: int = 0
    """The size of the largest body."""

    subjects: dict[str, int] = field(default_factory=dict)
    """How many were sent on each subject."""

    def add(self, rows: list[PackedRow]) -> int:
        """Take more rows, and say what they count for."""
        sizes = list(map(len, map(_body, rows)))
        size = sum(sizes) + _OVERHEAD * len(rows)
        self.rows += rows
        self.count += len(rows)
        self.size += size
        self.largest = max(self.largest, *sizes)
        return size

    def give(self) -> list[PackedRow]:
        """Give the rows away. They are not kept on their way: what is lost is read again."""
        rows, self.rows = self.rows, []
        counted = Counter(map(_subject, rows))
        self.subjects = {subject.decode(): count for subject, count in counted.items()}
        return rows


class Outbox:
    """A queue between the WAL reader and the publisher; both run in one event loop."""

    def __init__(
        self, max_bytes: int, ends: tuple[bytes, bytes], chunk_messages: int = 500
    ) -> None:
        self._max_bytes = max_bytes
        self._chunk_messages = chunk_messages
        self._not_last, self._last = ends
        self._held: PackedRow | None = None
        self._waiting: deque[Chunk] = deque()
        self._in_flight: deque[Chunk] = deque()
        self._stored = 0
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

    def add(self, row: PackedRow) -> None:
        """Queue a message. It is held back until it is known whether it ends its transaction."""
        if self._held is not None:
            self._queue([self._held])
        self._held = row

    def end_transaction(self) -> None:
        """Let the message held back go, as its transaction's last."""
        if self._held is not None:
            self._queue([self.as_last(self._held)])
            self._held = None

    def take_held(self) -> list[PackedRow]:
        """Give up the message held back, to whoever queues it with its successors."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def extend(self, rows: list[PackedRow], *, hold: bool) -> None:
        """Queue messages in order; `hold` keeps the last of them back."""
        if hold:
            self._held = rows.pop()
        if rows:
            self._queue(rows)

    def as_last(self, row: PackedRow) -> PackedRow:
        """Make a message say that it ends its transaction."""
        subject, msg_id, body = row
        return subject, msg_id, body.removesuffix(self._not_last) + self._last

    def _queue(self, rows: list[PackedRow]) -> None:
        if not self._waiting or self._waiting[-1].count >= self._chunk_messages:
            self._waiting.append(Chunk())
        self._bytes += self._waiting[-1].add(rows)
        self._filled.set()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self.is_full:
            self._freed.clear()
            await self._freed.wait()

    async def take(self) -> Chunk | None:
        """Wait for messages; None says that the outbox is closed and empty."""
        while not self._waiting:
            if self._closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        chunk = self._waiting.popleft()
        self._in_flight.append(chunk)
        return chunk

    async def more_within(self, seconds: float) -> bool:
        """Wait for messages, or for the outbox to be closed, but no longer than so."""
        self._filled.clear()
        if self._waiting or self._closed:
            return bool(self._waiting)
        try:
            async with asyncio.timeout(seconds):
                await self._filled.wait()
        except TimeoutError:
            return False
        return bool(self._waiting)

    def release(self, count: int) -> list[Chunk]:
        """Count messages in flight as stored, and give the chunks that are stored whole."""
        self._stored += count
        stored = []
        while self._in_flight and self._in_flight[0].count <= self._stored:
            chunk = self._in_flight.popleft()
            self._stored -= chunk.count
            self._bytes -= chunk.size
            stored.append(chunk)
        self._freed.set()
        return stored

    def close(self) -> None:
        """Take no more; what is queued is still handed out."""
        self._closed = True
        self._filled.set()

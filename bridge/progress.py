"""Which LSN is safe: the only place that decides what PostgreSQL may be told.

Messages are counted in stream order. A transaction's end is confirmed when every message sent up to
it has been acknowledged, and under `synced` durability only when that was longer ago than the
server's sync interval. A keepalive moves the mark only when nothing at all is in flight: confirming
its WAL end while changes wait would confirm them unsent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from datetime import timedelta

AGING_STEP_SECONDS = 0.25


class Progress:
    """Counts what was sent and acknowledged, and keeps the marks *acked* and *safe*."""

    def __init__(self, start_lsn: int, *, hold: timedelta = timedelta(0)) -> None:
        self.acked_lsn = start_lsn
        self.read_lsn = start_lsn
        """Everything that was committed before has been read, and nothing that is not whole."""

        self._safe_lsn = start_lsn
        self._hold = hold.total_seconds()
        self._sent = 0
        self._acked = 0
        self._ends: deque[tuple[int, int]] = deque()
        self._aging: deque[tuple[float, int]] = deque()

    @property
    def in_flight(self) -> int:
        """Messages sent and not yet acknowledged."""
        return self._sent - self._acked

    @property
    def newest_end(self) -> int:
        """The end of the last transaction that was read; at idle, what a keepalive named."""
        return self._ends[-1][1] if self._ends else self.acked_lsn

    @property
    def total_acknowledged(self) -> int:
        return self._acked

    @property
    def total_sent(self) -> int:
        return self._sent

    def sent(self, count: int = 1) -> None:
        self._sent += count

    def transaction_ended(self, end_lsn: int, now: float) -> None:
        """Note that all messages of the transactions up to `end_lsn` have been sent."""
        self.transactions_ended([(self._sent, end_lsn)], now)

    def transactions_ended(self, ends: Iterable[tuple[int, int]], now: float) -> None:
        """Note transactions' ends in order, each with how many messages were sent up to it."""
        self._ends.extend(ends)
        if self._ends:
            self.read_lsn = max(self.read_lsn, self._ends[-1][1])
        self._advance(now)

    def acknowledged(self, count: int, now: float) -> None:
        """Note that JetStream has stored the next `count` messages."""
        if count > self.in_flight:
            raise ValueError(f"{count} acknowledged with {self.in_flight} in flight")
        self._acked += count
        self._advance(now)

    def idle_at(self, wal_end: int, now: float) -> None:
        """Follow a keepalive, which the caller received outside any transaction."""
        self.read_lsn = max(self.read_lsn, wal_end)
        if self.in_flight == 0 and not self._ends and wal_end > self.acked_lsn:
            self._mark(wal_end, now)

    def safe_lsn(self, now: float) -> int:
        """The position PostgreSQL may be told now; it never goes back."""
        while self._aging and self._aging[0][0] <= now:
            self._safe_lsn = self._aging.popleft()[1]
        return self._safe_lsn

    def _advance(self, now: float) -> None:
        reached = self.acked_lsn
        while self._ends and self._ends[0][0] <= self._acked:
            reached = max(reached, self._ends.popleft()[1])
        if reached > self.acked_lsn:
            self._mark(reached, now)

    def _mark(self, lsn: int, now: float) -> None:
        self.acked_lsn = lsn
        if not self._hold:
            self._safe_lsn = lsn
            return
        # One mark per step of time: thousands of transactions a second would fill memory else.
        due = math.ceil((now + self._hold) / AGING_STEP_SECONDS) * AGING_STEP_SECONDS
        if self._aging and self._aging[-1][0] >= due:
            self._aging.pop()
        self._aging.append((due, lsn))

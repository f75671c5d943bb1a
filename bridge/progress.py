"""Which LSN is safe: the only place that decides what PostgreSQL may be told.

Messages are counted in stream order. A transaction's end is confirmed when every message sent up to
it has been acknowledged, and under `synced` durability only when that was longer ago than the
server's sync interval. A keepalive moves the mark only when nothing at all is in flight: confirming
its WAL end while changes wait would confirm them unsent.

The interval counts from the moment when the stream had everything before a mark: the last
acknowledgement, or, while a session has sent nothing yet, what the server's own time stamps say
(`ages`). So it neither begins again with every session, nor holds a keepalive back at idle.

Each mark also has its proof: the last transaction before it that sent anything was committed at
`acked_proof` or later, because every other that was read before it had ended there. A stream that
ends before that has lost something it had acknowledged (`tails`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from datetime import timedelta

from bridge.ages import StoredSince

AGING_STEP_SECONDS = 0.25


class Progress:
    """Counts what was sent and acknowledged, and keeps the marks *acked* and *safe*."""

    def __init__(
        self,
        start_lsn: int,
        *,
        hold: timedelta = timedelta(0),
        stored: StoredSince | None = None,
    ) -> None:
        self.acked_lsn = start_lsn
        self.read_lsn = start_lsn
        """Everything that was committed before has been read, and nothing that is not whole."""

        self._stored = stored or StoredSince()
        self._safe_lsn = start_lsn
        self._hold = hold.total_seconds()
        self._sent = 0
        self._acked = 0
        self._acked_at = 0.0
        self._ends: deque[tuple[int, int]] = deque()
        self._safe = 0
        self._aging: deque[tuple[float, int, int, int]] = deque()
        """When a mark becomes safe, its LSN, how many messages were acknowledged, its proof."""

        self._published = 0
        self._passed = start_lsn
        self.acked_proof = 0
        self.safe_proof = 0

    @property
    def in_flight(self) -> int:
        """Messages sent and not yet acknowledged."""
        return self._sent - self._acked

    @property
    def newest_end(self) -> int:
        """The end of the last transaction that was read; at idle, what a keepalive named."""
        return self._ends[-1][1] if self._ends else self.acked_lsn

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
        self._acked_at = now
        self._mark(self._reached(), now)

    def trust_stored(self, now: float) -> None:
        """Count what the stream held at the start, once it is known to be of this history.

        A commit that is stored proves all before it, and none before it is needed again.
        """
        for lsn in self._stored.lsns:
            if lsn > self.acked_lsn and not self._acked:
                self._passed = lsn
                self._mark(lsn, now)

    def idle_at(self, wal_end: int, now: float) -> None:
        """Follow a keepalive, which the caller received outside any transaction."""
        self.read_lsn = max(self.read_lsn, wal_end)
        if self.in_flight == 0 and not self._ends and wal_end > self.acked_lsn:
            self._passed = wal_end
            self._mark(wal_end, now)

    def safe_lsn(self, now: float) -> int:
        """The position PostgreSQL may be told now; it never goes back."""
        self._age(now)
        return self._safe_lsn

    def total_safe(self, now: float) -> int:
        """How many messages are stored as durably as those before `safe_lsn`."""
        self._age(now)
        return self._safe

    def proof_at(self, moment: float) -> int:
        """Give the proof of the mark that is safe by a moment, as far as is known now."""
        due = [proof for at, _, _, proof in self._aging if at <= moment]
        return due[-1] if due else self.safe_proof

    def _age(self, now: float) -> None:
        while self._aging and self._aging[0][0] <= now:
            _, self._safe_lsn, self._safe, self.safe_proof = self._aging.popleft()

    def _advance(self, now: float) -> None:
        reached = self._reached()
        if reached > self.acked_lsn:
            self._mark(reached, now)

    def _reached(self) -> int:
        """The end of the last transaction of which every message is acknowledged."""
        reached = self.acked_lsn
        while self._ends and self._ends[0][0] <= self._acked:
            count, end_lsn = self._ends.popleft()
            if count > self._published:
                self._published = count
                self.acked_proof = self._passed
            self._passed = max(self._passed, end_lsn)
            reached = max(reached, end_lsn)
        return reached

    def _mark(self, lsn: int, now: float) -> None:
        self.acked_lsn = lsn
        since = self._acked_at if self._acked else self._stored.moment(lsn)
        due = since + self._hold
        if due <= now:
            # What was stored before is as old at least.
            self._aging.clear()
            self._safe_lsn, self._safe, self.safe_proof = lsn, self._acked, self.acked_proof
            return
        # One mark per step of time: thousands of transactions a second would fill memory else.
        due = math.ceil(due / AGING_STEP_SECONDS) * AGING_STEP_SECONDS
        while self._aging and self._aging[-1][0] >= due:
            self._aging.pop()
        self._aging.append((due, lsn, self._acked, self.acked_proof))

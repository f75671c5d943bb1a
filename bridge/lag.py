"""Lag in seconds: how old the oldest commit may be that the stream does not hold yet.

PostgreSQL does not say when the next unread transaction was committed, so the lag is bounded from
above by marks. A mark is a position and a time: every commit up to that time lies at or below that
position. Two sources set marks: each look at the slot (the end of the WAL, and PostgreSQL's clock)
and each transaction that was read (its end, and its commit time). Once everything up to a mark is
stored, no unstored commit is older than the mark.

- Caught up, with or without traffic: 0. All of the WAL that the last look saw is stored.
- Behind or stuck: the age of the newest mark that is stored. It shrinks while a backlog drains and
  grows in real time while nothing is stored, whichever server is the reason.
- No fresh look (PostgreSQL does not answer): it grows from the last look on, because nobody knows.

WAL that holds no change of a published table counts as well until it has been read. Looks are five
seconds apart, and so is the resolution while traffic flows. All times are PostgreSQL's.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

FRESH_SECONDS = 30.0
"""How long a look at the slot proves that nothing more was written."""


def moment_of(commit_ts: str) -> float:
    """Give a commit time of the contract in seconds since 1970."""
    return datetime.fromisoformat(commit_ts).timestamp()


class Mark(NamedTuple):
    """No commit up to `time` lies above `lsn`."""

    lsn: int
    time: float


class Marks:
    """The oldest mark that is not stored yet, and the newest: enough to move on step by step."""

    def __init__(self) -> None:
        self.newest: Mark | None = None
        self._next: Mark | None = None

    def add(self, mark: Mark) -> None:
        if self._next is None or mark.lsn < self._next.lsn:
            # Positions go back only where another server took over: older marks mean nothing there.
            self._next = mark
        self.newest = mark

    def stored(self, lsn: int) -> float | None:
        """Give the time of the newest mark at or below a position, and move on behind it."""
        if self.newest is None or self._next is None:
            return None
        if self.newest.lsn <= lsn:
            self._next, passed = None, self.newest
        elif self._next.lsn <= lsn:
            self._next, passed = self.newest, self._next
        else:
            return None
        return passed.time


class LagMeter:
    """Bounds the age of the oldest commit that is not stored."""

    def __init__(self, started: float) -> None:
        self._stored_until = started
        self._looks = Marks()
        self._commits = Marks()
        self._stored_lsn = 0

    def looked(self, wal_end: int, at: float) -> None:
        """Note where the WAL ended at a time."""
        self._looks.add(Mark(wal_end, at))

    def read(self, end_lsn: int, commit_time: float) -> None:
        """Note the last transaction that was read."""
        self._commits.add(Mark(end_lsn, commit_time))

    def stored(self, lsn: int) -> None:
        """Note up to where everything is stored."""
        self._stored_lsn = lsn
        for marks in (self._looks, self._commits):
            if (until := marks.stored(lsn)) is not None:
                self._stored_until = max(self._stored_until, until)

    def seconds(self, now: float) -> float:
        newest = self._looks.newest
        is_fresh = newest is not None and now - newest.time <= FRESH_SECONDS
        if is_fresh and newest is not None and newest.lsn <= self._stored_lsn:
            return 0.0
        return max(0.0, now - self._stored_until)

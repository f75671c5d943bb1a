"""Since when the stream holds what it holds, by the server's own time. Pure.

Under durability `synced` a change is safe when JetStream has held it for longer than the sync
interval. A session cannot begin to count at its own start: where sessions are shorter than the
interval, none would ever confirm anything. So each session reads the time stamps of some stored
messages at its start (`jetstream/stored_times`). The stream is in commit order, hence a message
proves that everything committed before it was stored no later than the message itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

NEVER = -math.inf
"""The moment at which nothing was stored: there is nothing whose age would matter."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One stored message: the commit that it belongs to, and when the server stored it."""

    commit_lsn: int
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class StoredSince:
    """Moments on this process's monotonic clock, rising with the commits they belong to."""

    lsns: tuple[int, ...] = ()
    moments: tuple[float, ...] = ()

    def moment(self, lsn: int) -> float:
        """Give the moment since when all that the stream holds of commits before `lsn` is there."""
        if not self.lsns:
            return NEVER
        return self.moments[min(bisect_left(self.lsns, lsn), len(self.moments) - 1)]


def stored_since(
    samples: Iterable[Sample], last_lsn: int, server_now: datetime, read_at: float
) -> StoredSince:
    """Turn server times into moments; `read_at` is when `server_now` was received.

    What is younger than every sample, up to `last_lsn`, counts as stored just now. A message that
    claims to be older than the one before it, as after a change of leader, is not believed.
    """
    lsns, moments = list[int](), list[float]()
    latest = NEVER
    for sample in sorted(samples, key=lambda each: (each.commit_lsn, each.stored_at)):
        if sample.commit_lsn > last_lsn:
            break
        age = max(server_now - sample.stored_at, timedelta(0))
        latest = max(latest, read_at - age.total_seconds())
        lsns.append(sample.commit_lsn)
        moments.append(latest)
    if last_lsn and (not lsns or lsns[-1] < last_lsn):
        lsns.append(last_lsn)
        moments.append(read_at)
    return StoredSince(tuple(lsns), tuple(moments))

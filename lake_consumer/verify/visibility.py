"""Which transactions a PostgreSQL snapshot sees, said by their ids: exact, where an LSN is not.

`pg_current_snapshot()` gives `xmin:xmax:in-progress`. A transaction of the change log committed for
certain; the snapshot sees it if its id is below xmax and not in progress. Ids in the log are the
WAL's 32 bits and the snapshot's have 64, so they are read as the nearest id to xmax.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROUND = 1 << 32
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class SeenTransactions:
    """What one snapshot sees."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> SeenTransactions:
        """Read `10:20:10,14`, as PostgreSQL writes a `pg_snapshot`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        """Say whether a committed transaction is in the snapshot."""
        whole = self.xmax - self.xmax % _ROUND + xid
        if whole > self.xmax + _HALF:
            whole -= _ROUND
        elif whole < self.xmax - _HALF:
            whole += _ROUND
        return whole < self.xmax and whole not in self.in_progress

    @property
    def oldest_unseen(self) -> tuple[int, int | None]:
        """Bounds that every unseen id of the log is within: from, and to where ids have wrapped.

        Without a second bound, unseen ids are at or above the first. With one, they are at or
        above the first or at or below the second.
        """
        low = self.xmin % _ROUND
        high = low + _HALF
        return low, (high - _ROUND if high >= _ROUND else None)

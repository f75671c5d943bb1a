"""An eye on the slot: warns before retention hurts, and names a lost slot for what it is.

Pure: `judge` takes what PostgreSQL shows and gives what a person should hear, once per step of it
getting worse, so that a slot that lags for a day does not fill the log.
"""

from __future__ import annotations

import math

from bridge.errors import SlotLost
from bridge.postgres.slot import Slot

WARN_RETAINED_BYTES = 1 << 30
WARN_SAFE_BYTES = 1 << 30
RATE_SECONDS = 60.0
"""Over which time the rate of the WAL is averaged."""

_WAL_STATUS = {
    "extended": "keeps more WAL than max_wal_size for this slot",
    "unreserved": "is about to remove WAL this slot still needs: the next checkpoint may lose it",
}


class WalRate:
    """How fast WAL is written, as an average that forgets within minutes."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self._wal_end = 0
        self._at: float | None = None

    def add(self, wal_end: int, at: float) -> None:
        if self._at is not None and at > self._at and wal_end >= self._wal_end:
            elapsed = at - self._at
            rate = (wal_end - self._wal_end) / elapsed
            weight = 1 - math.exp(-elapsed / RATE_SECONDS)
            self.bytes_per_second += (rate - self.bytes_per_second) * weight
        self._wal_end, self._at = wal_end, at


def seconds_left(safe_wal_size: int | None, bytes_per_second: float) -> float | None:
    """How long until the slot is lost if it stays where it is; None if WAL has no limit."""
    if safe_wal_size is None:
        return None
    if safe_wal_size <= 0:
        return 0.0
    return safe_wal_size / bytes_per_second if bytes_per_second > 0 else math.inf


class SlotWatcher:
    """Remembers what was said already."""

    def __init__(self) -> None:
        self.wal_rate = WalRate()
        self._said_status: str | None = None
        self._said_safe = False
        self._next_retained = WARN_RETAINED_BYTES

    def judge(self, slot: Slot) -> list[str]:
        """Give the warnings that are new; raise when the slot is lost."""
        if slot.wal_lost:
            raise SlotLost(f"slot {slot.name} is lost: PostgreSQL removed WAL it still needed")
        return [*self._status(slot), *self._retained(slot), *self._safe(slot)]

    def _status(self, slot: Slot) -> list[str]:
        changed = slot.wal_status != self._said_status
        self._said_status = slot.wal_status
        meaning = _WAL_STATUS.get(slot.wal_status or "")
        return [f"PostgreSQL {meaning}; {_remedy(slot)}"] if changed and meaning else []

    def _retained(self, slot: Slot) -> list[str]:
        """Warn at each doubling, and again from the start once it has been caught up."""
        retained = slot.retained_bytes or 0
        if retained < WARN_RETAINED_BYTES:
            self._next_retained = WARN_RETAINED_BYTES
        if retained < self._next_retained:
            return []
        while self._next_retained <= retained:
            self._next_retained *= 2
        return [f"PostgreSQL keeps {_mib(retained)} of WAL for slot {slot.name}; {_remedy(slot)}"]

    def _safe(self, slot: Slot) -> list[str]:
        is_short = slot.safe_wal_size is not None and slot.safe_wal_size < WARN_SAFE_BYTES
        is_new, self._said_safe = is_short and not self._said_safe, is_short
        if not is_new:
            return []
        return [
            f"slot {slot.name} is lost after {_mib(slot.safe_wal_size or 0)} more of WAL;"
            " raise max_slot_wal_keep_size"
        ]


def _remedy(slot: Slot) -> str:
    if slot.active_pid is None:
        return "start the bridge, or drop the slot if nobody needs it"
    return "check that JetStream takes changes, and that no transaction stays open for long"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"

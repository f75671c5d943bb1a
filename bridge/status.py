"""What the bridge is doing, for people and machines: one object that everybody writes to.

The loop only adds to plain numbers; whoever asks (`/status`, `/metrics`, the METRICS line) reads
them. Nothing in here holds a secret.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.lag import LagMeter
from schemas.positions import Lsn

State = Literal["starting", "standby", "streaming", "reconnecting", "stopping"]


@dataclass(slots=True)
class SlotWatch:
    """The slot as PostgreSQL last showed it."""

    active: bool = False
    confirmed_lsn: int = 0
    lag_bytes: int = 0
    retained_bytes: int = 0
    wal_status: str | None = None
    safe_wal_size: int | None = None
    seconds_left: float | None = None
    """Until the slot is lost, if it stays where it is and WAL is written as fast as now."""

    looked_at: float | None = None
    """When this was seen, by the clock of this process."""

    clock_ahead: float = 0.0
    """By how many seconds PostgreSQL's clock is ahead of this process's."""

    @property
    def age_seconds(self) -> float | None:
        return None if self.looked_at is None else max(0.0, time.time() - self.looked_at)

    def to_map(self) -> dict[str, Any]:
        left, age = self.seconds_left, self.age_seconds
        return {
            "active": self.active,
            "confirmed_lsn": str(Lsn(self.confirmed_lsn)),
            "lag_bytes": self.lag_bytes,
            "retained_bytes": self.retained_bytes,
            "wal_status": self.wal_status,
            "safe_wal_size": self.safe_wal_size,
            # JSON has no infinity: without WAL being written there is no end in sight.
            "seconds_left": None if left is None or math.isinf(left) else round(left),
            "checked_seconds_ago": None if age is None else round(age, 1),
        }


@dataclass(slots=True)
class SnapshotProgress:
    """A snapshot that is being taken."""

    table: str
    snapshot_id: str
    state: Literal["waiting", "exporting", "copying"] = "waiting"
    lsn: int = 0
    rows: int = 0
    estimated_rows: int = 0
    bytes: int = 0
    chunks: int = 0
    wal_kept_bytes: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def rows_per_second(self) -> float:
        return self.rows / max(time.monotonic() - self.started, 0.001)

    def to_map(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "state": self.state,
            "lsn": str(Lsn(self.lsn)),
            "rows": self.rows,
            "estimated_rows": self.estimated_rows,
            "bytes": self.bytes,
            "chunks": self.chunks,
            "wal_kept_bytes": self.wal_kept_bytes,
            "rows_per_second": round(self.rows_per_second),
        }


@dataclass(slots=True)
class SnapshotTotals:
    """Snapshots since the process started."""

    completed: int = 0
    failed: int = 0
    rows: int = 0
    bytes: int = 0
    last_error: dict[str, Any] | None = None
    untold: int = 0
    """Failures that are not stored yet, because the stream did not take them."""
    handed_back: set[tuple[str, str]] = field(default_factory=set)
    """Stored requests that could not be served yet and come again: token and body, in hex."""


@dataclass(slots=True)
class Status:
    """Counters and marks since the process started."""

    slot: str
    publication: str
    started: float = field(default_factory=time.time)
    state: State = "starting"
    sessions: int = 0
    wal_messages: int = 0
    published: Counter[str] = field(default_factory=Counter)
    published_bytes: int = 0
    skipped: int = 0
    forks: int = 0
    source_reconnects: int = 0
    sink_reconnects: int = 0
    acked_lsn: int = 0
    safe_lsn: int = 0
    confirmed_lsn: int = 0
    last_sequence: int = 0
    lost_tails: int = 0
    """How often the stream had lost what it had acknowledged."""

    lost_messages: int = 0
    gaps_marked: int = 0
    last_commit_ts: str | None = None
    last_processing_us: int = 0
    in_flight_messages: int = 0
    in_flight_bytes: int = 0
    durability: str = ""
    tables: set[str] = field(default_factory=set)
    last_error: str | None = None
    """Why the last session ended; None again once the next one streams."""

    last_error_at: float | None = None
    catalog_error: str | None = None
    """Why the catalog cannot be watched for DDL; None again once it can."""

    lag: LagMeter = field(default_factory=lambda: LagMeter(time.time()))
    watch: SlotWatch = field(default_factory=SlotWatch)
    snapshots: list[SnapshotProgress] = field(default_factory=list)
    snapshot_totals: SnapshotTotals = field(default_factory=SnapshotTotals)

    @property
    def connected(self) -> bool:
        return self.state == "streaming"

    @property
    def events_published(self) -> int:
        return sum(self.published.values())

    @property
    def uptime_seconds(self) -> float:
        return time.time() - self.started

    @property
    def lag_seconds(self) -> float | None:
        """Seconds by which the stream may be behind; None for a standby, which follows nothing."""
        if self.state == "standby":
            return None
        self.lag.stored(self.acked_lsn)
        return self.lag.seconds(time.time() + self.watch.clock_ahead)

    @property
    def last_error_age_seconds(self) -> float | None:
        return None if self.last_error_at is None else max(0.0, time.time() - self.last_error_at)

    @property
    def snapshots_running(self) -> int:
        return sum(snapshot.state != "waiting" for snapshot in self.snapshots)

    @property
    def snapshots_waiting(self) -> int:
        """Requests that wait for their turn, or to be delivered again."""
        waiting = len(self.snapshots) - self.snapshots_running
        return waiting + len(self.snapshot_totals.handed_back)

    def failed(self, error: str) -> None:
        """Note why a session ended."""
        self.last_error = error
        self.last_error_at = time.time()

    def to_map(self) -> dict[str, Any]:
        """Show everything, with positions as people write them."""
        return {
            "state": self.state,
            "slot": self.slot,
            "publication": self.publication,
            "uptime_seconds": round(self.uptime_seconds, 1),
            "durability": self.durability,
            "tables": sorted(self.tables),
            "wal_messages_received": self.wal_messages,
            "events_published": self.events_published,
            "published": dict(self.published),
            "events_skipped": self.skipped,
            "forks_marked": self.forks,
            "bytes_published": self.published_bytes,
            "in_flight": {"messages": self.in_flight_messages, "bytes": self.in_flight_bytes},
            "acked_lsn": str(Lsn(self.acked_lsn)),
            "safe_lsn": str(Lsn(self.safe_lsn)),
            "confirmed_lsn": str(Lsn(self.confirmed_lsn)),
            "last_stream_sequence": self.last_sequence,
            "lost_tails": {
                "count": self.lost_tails,
                "messages": self.lost_messages,
                "gaps_marked": self.gaps_marked,
            },
            "last_commit_ts": self.last_commit_ts,
            "reconnects": {"postgres": self.source_reconnects, "nats": self.sink_reconnects},
            "lag_seconds": _rounded(self.lag_seconds),
            "slot_state": self.watch.to_map(),
            "snapshots": {
                "waiting": self.snapshots_waiting,
                "running": [snapshot.to_map() for snapshot in self.snapshots],
                "completed": self.snapshot_totals.completed,
                "failed": self.snapshot_totals.failed,
                "rows": self.snapshot_totals.rows,
                "bytes": self.snapshot_totals.bytes,
                "last_error": self.snapshot_totals.last_error,
                "untold": self.snapshot_totals.untold,
            },
            "catalog_error": self.catalog_error,
            "last_error": self.last_error,
            "last_error_seconds_ago": _rounded(self.last_error_age_seconds),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)

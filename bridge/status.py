"""What the bridge is doing, for people and machines: one object that everybody writes to.

The loop only adds to plain numbers; whoever asks (`/status`, `/metrics`, the METRICS line) reads
them. Nothing in here holds a secret.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

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
    source_reconnects: int = 0
    sink_reconnects: int = 0
    acked_lsn: int = 0
    safe_lsn: int = 0
    confirmed_lsn: int = 0
    last_sequence: int = 0
    last_commit_ts: str | None = None
    last_processing_us: int = 0
    in_flight_messages: int = 0
    in_flight_bytes: int = 0
    durability: str = ""
    tables: set[str] = field(default_factory=set)
    last_error: str | None = None
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
            "bytes_published": self.published_bytes,
            "in_flight": {"messages": self.in_flight_messages, "bytes": self.in_flight_bytes},
            "acked_lsn": str(Lsn(self.acked_lsn)),
            "safe_lsn": str(Lsn(self.safe_lsn)),
            "confirmed_lsn": str(Lsn(self.confirmed_lsn)),
            "last_stream_sequence": self.last_sequence,
            "last_commit_ts": self.last_commit_ts,
            "reconnects": {"postgres": self.source_reconnects, "nats": self.sink_reconnects},
            "slot_state": {
                "active": self.watch.active,
                "confirmed_lsn": str(Lsn(self.watch.confirmed_lsn)),
                "lag_bytes": self.watch.lag_bytes,
                "retained_bytes": self.watch.retained_bytes,
                "wal_status": self.watch.wal_status,
                "safe_wal_size": self.watch.safe_wal_size,
            },
            "snapshots": {
                "running": [snapshot.to_map() for snapshot in self.snapshots],
                "completed": self.snapshot_totals.completed,
                "failed": self.snapshot_totals.failed,
                "rows": self.snapshot_totals.rows,
                "bytes": self.snapshot_totals.bytes,
                "last_error": self.snapshot_totals.last_error,
                "untold": self.snapshot_totals.untold,
            },
            "last_error": self.last_error,
        }

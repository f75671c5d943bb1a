"""When a table needs care, and what may be let go: decided here, done in `iceberg/maintenance`.

Many small commits leave many small files, deleted rows that every reader has to skip, and a long
list of snapshots. Three rules keep what is still needed:

- a cut that is kept can be read: every snapshot it names stays;
- the newest stamped snapshot stays, with all after it: it says how far the table is;
- what a branch or tag names stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lake_consumer.cuts import CutRow
from lake_consumer.watermark import STREAM_SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class CareOptions:
    """How well the lake is kept, and what it may cost."""

    interval_seconds: float = 600
    """From one round of care in `run` to the next; 0 is never."""

    budget_seconds: float = 30
    small_files: int = 20
    delete_ratio: float = 0.1
    keep: timedelta = timedelta(days=7)
    orphan_age: timedelta = timedelta(days=3)
    target_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a table's files are like."""

    data_files: int
    small_files: int
    """Files below three quarters of the target, one per partition not counted."""

    rows: int
    deleted_rows: int
    manifests: int
    snapshots: int

    @property
    def delete_ratio(self) -> float:
        return self.deleted_rows / self.rows if self.rows else 0.0


MANY_MANIFESTS = 20


def needs_compaction(health: Health, options: CareOptions) -> bool:
    if health.small_files >= options.small_files:
        return True
    return health.deleted_rows > 0 and health.delete_ratio >= options.delete_ratio


def needs_manifests(health: Health) -> bool:
    return health.manifests >= MANY_MANIFESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """One snapshot of a table, as its metadata tell of it."""

    snapshot_id: int
    parent_id: int | None
    committed_at: datetime
    summary: Mapping[str, str]


def plan_expiry(
    snapshots: Iterable[SnapshotFacts],
    current: int | None,
    named: Collection[int],
    older_than: datetime,
) -> list[int]:
    """Say which snapshots may go: old, named by no kept cut and no branch, and behind the stamp."""
    known = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    needed = set(named) | _up_to_the_stamp(known, current)
    return [
        snapshot.snapshot_id
        for snapshot in known.values()
        if snapshot.snapshot_id not in needed and snapshot.committed_at < older_than
    ]


def _up_to_the_stamp(known: Mapping[int, SnapshotFacts], current: int | None) -> set[int]:
    """The current snapshot and all before it up to the newest that is stamped."""
    needed: set[int] = set()
    while current is not None and current in known:
        needed.add(current)
        if STREAM_SEQUENCE in known[current].summary:
            break
        current = known[current].parent_id
    return needed


@dataclass(frozen=True, slots=True)
class CutsToKeep:
    """From which stream sequence on cuts are kept, and rows that the first of them lacks."""

    first: int
    restated: tuple[CutRow, ...]


def plan_cuts(rows: Iterable[CutRow], keep_from: datetime) -> CutsToKeep | None:
    """Keep the newest cut at or before a time and all after it; None where all are kept.

    A table that the first kept cut did not touch stands in an older row. That row is restated at
    the cut, so that every kept cut tells of every table, and all older rows can go.
    """
    ordered = sorted(rows, key=lambda row: row.stream_seq)
    past = [row for row in ordered if row.commit_ts <= keep_from]
    if not past:
        return None
    edge = past[-1]
    older = [row for row in ordered if row.stream_seq < edge.stream_seq]
    if not older:
        return None
    there = {row.table for row in ordered if row.stream_seq == edge.stream_seq}
    newest = {row.table: row for row in older if row.table is not None}
    restated = tuple(
        CutRow(
            table=table,
            commit_lsn=edge.commit_lsn,
            commit_ts=edge.commit_ts,
            stream_seq=edge.stream_seq,
            snapshot_id=row.snapshot_id,
            changes_snapshot_id=row.changes_snapshot_id,
        )
        for table, row in newest.items()
        if table not in there
    )
    return CutsToKeep(edge.stream_seq, restated)

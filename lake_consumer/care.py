"""When a table needs care, and what may be let go: decided here, done in `iceberg/maintenance`.

Many small commits leave many small files, deleted rows that every reader has to skip, and a long
list of snapshots. Three rules keep what is still needed:

- a cut that is kept can be read: every snapshot it names stays;
- the newest stamped snapshot stays, with all after it: it says how far the table is;
- what a branch or tag names stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

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
    keep_cuts: int = 500
    """So many of the newest cuts are all kept; of those before, one an hour."""

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
GRACE = timedelta(hours=1)
"""A snapshot that no kept cut names stays so long, for readers that are at it."""


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
    """Stream sequences of the cuts that stay, and rows that have to be said again at them."""

    kept: frozenset[int]
    restated: tuple[CutRow, ...]


def plan_cuts(
    rows: Iterable[CutRow], now: datetime, keep: timedelta, newest: int
) -> CutsToKeep | None:
    """Keep the newest cuts, one an hour of those before, and none older than `keep`.

    None where all are kept. A cut has rows of the tables that it touched; what a cut that goes said
    of a table is said again at the next one that stays, so that every kept cut stays what it was.
    """
    ordered = sorted(rows, key=lambda row: row.stream_seq)
    moments = {row.stream_seq: row.commit_ts for row in ordered}
    kept = _kept(moments, now - keep, newest)
    if len(kept) == len(moments):
        return None
    restated: list[CutRow] = []
    told: dict[str, CutRow] = {}
    """What cuts that go have said since the last one that stays, by table."""
    for sequence, group in groupby(ordered, key=lambda row: row.stream_seq):
        found = {row.table: row for row in group}
        lost = [row for table, row in told.items() if table not in found]
        if sequence in kept:
            place = next(iter(found.values()))
            restated += [
                replace(row, commit_lsn=place.commit_lsn, commit_ts=place.commit_ts,
                        stream_seq=sequence, fork_seq=place.fork_seq)
                for row in lost
            ]  # fmt: skip
            told = {}
        else:
            told |= {table: row for table, row in found.items() if table is not None}
    return CutsToKeep(frozenset(kept), tuple(restated))


def _kept(moments: Mapping[int, datetime], oldest: datetime, newest: int) -> set[int]:
    sequences = sorted(moments)
    hourly = {
        moments[sequence].replace(minute=0, second=0, microsecond=0): sequence
        for sequence in sequences
        if moments[sequence] >= oldest
    }
    # The state at the oldest moment that is kept is the one that the cut before it shows.
    before = [sequence for sequence in sequences if moments[sequence] <= oldest][-1:]
    return {*sequences[-newest:], *hourly.values(), *before}

"""What care may let go, and what it must keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lake_consumer.care import (
    CareOptions,
    Health,
    SnapshotFacts,
    needs_compaction,
    plan_cuts,
    plan_expiry,
)
from lake_consumer.cuts import CutRow
from lake_consumer.watermark import Watermark

START = datetime(2025, 12, 1, tzinfo=UTC)


def _snapshot(number: int, *, stamped: bool = True) -> SnapshotFacts:
    return SnapshotFacts(
        snapshot_id=number,
        parent_id=number - 1 if number > 1 else None,
        committed_at=START + timedelta(hours=number),
        summary=Watermark(number, number).to_summary() if stamped else {},
    )


def test_old_snapshots_go_unless_a_cut_or_a_branch_names_them() -> None:
    history = [_snapshot(number) for number in range(1, 7)]

    gone = plan_expiry(history, 6, {2}, older_than=START + timedelta(hours=5))

    assert gone == [1, 3, 4]


def test_the_newest_stamp_stays_behind_unstamped_commits() -> None:
    """Without it the table would seem to be empty, and everything would be applied again."""
    history = [_snapshot(1), _snapshot(2), _snapshot(3, stamped=False), _snapshot(4, stamped=False)]

    gone = plan_expiry(history, 4, (), older_than=START + timedelta(days=1))

    assert gone == [1]


def _row(table: str | None, sequence: int, snapshot: int | None = None) -> CutRow:
    return CutRow(
        table=table,
        commit_lsn=sequence,
        commit_ts=START + timedelta(hours=sequence),
        stream_seq=sequence,
        snapshot_id=snapshot,
        changes_snapshot_id=snapshot,
    )


def test_kept_cuts_tell_of_every_table() -> None:
    """A quiet table's row is older than the first kept cut, so it is said again there."""
    rows = [_row("quiet", 1, 10), _row("busy", 1, 20), _row("busy", 2, 21), _row("busy", 3, 22)]

    plan = plan_cuts(rows, START + timedelta(hours=2.5))

    assert plan is not None
    assert plan.first == 2
    assert [(row.table, row.stream_seq, row.snapshot_id) for row in plan.restated] == [
        ("quiet", 2, 10)
    ]
    kept = [row for row in rows if row.stream_seq >= plan.first]
    assert plan_cuts([*kept, *plan.restated], START + timedelta(hours=2.5)) is None


def test_the_newest_cut_is_always_kept() -> None:
    """However old it is: it is what the lake shows."""
    plan = plan_cuts([_row("a", 1, 10), _row("a", 2, 11)], START + timedelta(days=400))

    assert plan is not None
    assert plan.first == 2
    assert plan_cuts([_row("a", 1, 10)], START + timedelta(days=400)) is None
    assert plan_cuts([_row("a", 1, 10)], START) is None


@pytest.mark.parametrize(
    ("small", "deleted", "due"), [(19, 0, False), (20, 0, True), (0, 99, False), (0, 100, True)]
)
def test_compaction_is_due_by_small_files_or_by_deleted_rows(
    small: int, deleted: int, *, due: bool
) -> None:
    health = Health(
        data_files=50, small_files=small, rows=1000, deleted_rows=deleted, manifests=1, snapshots=1
    )

    assert needs_compaction(health, CareOptions(small_files=20, delete_ratio=0.1)) is due

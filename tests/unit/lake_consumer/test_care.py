"""What care may let go, and what it must keep."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lake_consumer.care import (
    MANY_MANIFESTS,
    CareOptions,
    Health,
    SnapshotFacts,
    needs_compaction,
    needs_manifests,
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


def test_the_way_to_a_stamp_ends_where_history_does() -> None:
    """A parent may have expired already, and is then none of the table's snapshots."""
    history = [_snapshot(3, stamped=False), _snapshot(4, stamped=False), _snapshot(9)]

    gone = plan_expiry(history, 4, (), older_than=START + timedelta(days=1))

    assert gone == [9]


def _row(table: str | None, sequence: int, snapshot: int | None = None) -> CutRow:
    return CutRow(
        table=table,
        commit_lsn=sequence,
        commit_ts=START + timedelta(hours=sequence),
        stream_seq=sequence,
        snapshot_id=snapshot,
        changes_snapshot_id=snapshot,
    )


def _states(rows: list[CutRow], cuts: Collection[int]) -> dict[int, dict[str | None, int | None]]:
    """What every one of these cuts shows: the newest row of each table up to it."""
    ordered = sorted(rows, key=lambda row: row.stream_seq)
    return {
        cut: {row.table: row.snapshot_id for row in ordered if row.stream_seq <= cut and row.table}
        for cut in cuts
    }


def test_kept_cuts_stay_what_they_were() -> None:
    """Whatever goes: a table that a kept cut did not touch is said again there."""
    chance = random.Random(3)
    for _ in range(200):
        rows = [
            _row(table, sequence, 100 * sequence + number)
            for sequence in range(1, 30)
            for number, table in enumerate(("a", "b", "c", None))
            if chance.random() < 0.4
        ]
        sequences = {row.stream_seq for row in rows}
        now = START + timedelta(hours=chance.randrange(1, 40))

        plan = plan_cuts(rows, now, timedelta(hours=chance.randrange(20)), chance.randrange(1, 9))

        if plan is not None:
            left = [row for row in rows if row.stream_seq in plan.kept]
            assert _states(rows, plan.kept) == _states([*left, *plan.restated], plan.kept)
            assert plan.kept < sequences
            assert max(sequences) in plan.kept


def test_the_newest_cuts_are_kept_and_one_an_hour_before_them() -> None:
    rows = [
        CutRow(table="a", commit_lsn=n, commit_ts=START + timedelta(minutes=10 * n), stream_seq=n,
               snapshot_id=n, changes_snapshot_id=n)
        for n in range(60)
    ]  # fmt: skip

    plan = plan_cuts(rows, START + timedelta(minutes=600), timedelta(hours=4), 3)

    assert plan is not None
    assert sorted(plan.kept) == [36, 41, 47, 53, 57, 58, 59]


def test_the_newest_cut_is_always_kept() -> None:
    """However old it is: it is what the lake shows."""
    rows, later = [_row("a", 1, 10), _row("a", 2, 11)], START + timedelta(days=400)

    plan = plan_cuts(rows, later, timedelta(days=7), 1)

    assert plan is not None
    assert plan.kept == {2}
    assert plan_cuts(rows[:1], later, timedelta(days=7), 1) is None
    assert plan_cuts(rows, later, timedelta(days=7), 2) is None


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


def test_a_table_without_deleted_rows_is_left_alone() -> None:
    """With a ratio of zero every deleted row is too many, and none is still none."""
    options = CareOptions(small_files=20, delete_ratio=0.0)
    clean = Health(
        data_files=5, small_files=0, rows=0, deleted_rows=0, manifests=MANY_MANIFESTS, snapshots=1
    )

    assert not needs_compaction(clean, options)
    assert needs_compaction(replace(clean, rows=100, deleted_rows=1), options)
    assert needs_manifests(clean)
    assert not needs_manifests(replace(clean, manifests=MANY_MANIFESTS - 1))


def test_a_snapshot_goes_only_when_it_is_older_than_the_limit() -> None:
    history = [_snapshot(1), _snapshot(2), _snapshot(3)]

    assert plan_expiry(history, 3, (), older_than=START + timedelta(hours=2)) == [1]
    assert plan_expiry(history, None, (), older_than=START + timedelta(hours=9)) == [1, 2, 3]

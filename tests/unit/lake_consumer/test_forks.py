"""What a fork means for logs, cuts and the order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lake_consumer.cuts import CutBook, CutRow
from lake_consumer.errors import NotReached, NotReadable
from lake_consumer.forks import (
    FORKS_AT_MOST,
    ForkMark,
    dead_cuts,
    dead_rows,
    describe_fork,
    note_fork,
    read_forks,
)
from lake_consumer.gaps import next_gap
from lake_consumer.iceberg.forking import is_only
from lake_consumer.order import Rung
from schemas.forks import Fork
from schemas.positions import Lsn

MARK = ForkMark.of(10, "7/1/s", Fork("7", 2, 100, "s", "promoted"))
START = datetime(2025, 12, 8, tzinfo=UTC)


def cut(sequence: int, lsn: int, fork: int | None = None) -> CutRow:
    return CutRow(
        table="t",
        commit_lsn=lsn,
        commit_ts=START + timedelta(seconds=sequence),
        stream_seq=sequence,
        snapshot_id=sequence,
        changes_snapshot_id=sequence,
        fork_seq=fork,
    )


def test_positions_start_again_just_below_the_switch() -> None:
    """A commit at the switch itself is of the surviving history."""
    assert MARK.rung == Rung(99, 0)
    assert ForkMark.of(1, "s", Fork("7", 2, 0, "s")).rung == Rung(0, 0)


def test_a_fork_is_noted_once_and_the_oldest_are_let_go() -> None:
    """It is crossed again after a kill."""
    properties = note_fork(note_fork({}, MARK), MARK)

    assert read_forks(properties) == [MARK]
    for sequence in range(11, 11 + FORKS_AT_MOST):
        mark = ForkMark.of(sequence, "7/1/s", Fork("7", 2, 100, "s"))
        properties = note_fork(properties, mark)
    assert min(one.sequence for one in read_forks(properties)) == 11
    assert describe_fork(10, read_forks(properties)) == "fork at stream sequence 10"


def test_rows_are_dead_from_the_switch_on_and_before_the_fork() -> None:
    """Those that an earlier fork marked keep that mark: it made them invalid first."""
    assert dead_rows(MARK) == "commit_lsn >= 100 AND stream_seq < 10 AND fork_seq IS NULL"


def test_a_cut_is_dead_that_holds_a_dead_row() -> None:
    """Its LSN tells only if no other source can have given it."""
    both = dead_cuts(MARK, 5, is_only_source=False)
    alone = dead_cuts(MARK, None, is_only_source=True)

    assert both.endswith("(stream_seq >= 5 OR false)")
    assert alone.endswith("(false OR commit_lsn >= 100)")
    assert is_only("a", ["a", ""])
    assert not is_only("a", ["a", "b"])


def test_a_fork_stops_a_batch_like_a_gap() -> None:
    """No batch holds messages of both histories."""
    gap = next_gap(5, 1, (), None, MARK)

    assert gap is not None
    assert (gap.first, gap.last, gap.fork) == (10, 10, MARK)
    assert next_gap(11, 1, (), None, MARK) is None
    assert next_gap(5, 1, ((7, 7),), None, MARK).fork is None  # type: ignore[union-attr]


def test_a_dead_cut_is_refused_with_the_forks_name() -> None:
    """Another state than the one that was asked for must not pass for it."""
    book = CutBook([cut(2, 90), cut(4, 110, 10), cut(12, 130)], [MARK])

    assert [one.stream_seq for one in book.cuts()] == [2, 12]
    assert book.at(Lsn(95)).stream_seq == 2
    assert book.at(None).stream_seq == 12
    for when in (Lsn(115), START + timedelta(seconds=5)):
        with pytest.raises(NotReadable, match="fork at stream sequence 10, timeline 2") as error:
            book.at(when)
        assert "0/5A" in error.value.advice


def test_until_a_cut_follows_the_fork_there_is_no_newest_one() -> None:
    """An older one would show the database as it was long ago."""
    book = CutBook([cut(2, 90), cut(4, 110, 10)], [MARK])

    with pytest.raises(NotReadable, match="fork at stream sequence 10"):
        book.at(None)
    with pytest.raises(NotReached):
        CutBook([cut(2, 90)], [MARK]).at(Lsn(95))

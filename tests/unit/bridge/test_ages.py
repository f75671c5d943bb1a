"""Since when the stream holds a commit, by the server's time stamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bridge.ages import NEVER, Sample, stored_since
from bridge.jetstream.stored_times import SAMPLES, last_older, sample_points

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ago(lsn: int, seconds: float) -> Sample:
    return Sample(lsn, NOW - timedelta(seconds=seconds))


def test_a_message_proves_the_age_of_everything_before_it() -> None:
    since = stored_since([ago(100, 30), ago(200, 10)], 200, NOW, read_at=1_000)

    assert since.moment(50) == 970
    assert since.moment(100) == 970
    assert since.moment(101) == 990
    assert since.moment(5_000) == 990, "nothing is stored behind the last"


def test_what_no_sample_covers_counts_as_stored_just_now() -> None:
    since = stored_since([ago(100, 30)], 200, NOW, read_at=1_000)
    assert (since.moment(100), since.moment(150), since.moment(900)) == (970, 1_000, 1_000)
    assert stored_since([], 200, NOW, read_at=1_000).moment(1) == 1_000


def test_a_sample_beyond_what_is_stored_proves_nothing() -> None:
    """It is of another history, or came from somebody else."""
    since = stored_since([ago(100, 30), ago(900, 99)], 100, NOW, read_at=1_000)
    assert since.moment(2_000) == 970


def test_clocks_that_differ_make_nothing_older_than_what_came_before_it() -> None:
    """A new leader's clock may be behind the old one's, or a message ahead of the server's."""
    since = stored_since([ago(100, 5), ago(200, 60), ago(300, -7)], 300, NOW, read_at=1_000)
    assert (since.moment(100), since.moment(200), since.moment(300)) == (995, 995, 1_000)


def test_an_empty_stream_holds_nothing_back() -> None:
    assert stored_since([], 0, NOW, read_at=1_000).moment(77) == NEVER


@pytest.mark.parametrize(("age", "found"), [(0, 10), (3, 7), (3.5, 6), (9, 1), (9.5, 0), (99, 0)])
async def test_the_last_message_of_an_age_is_found_by_halves(age: float, found: int) -> None:
    """Ten messages, the last of them stored just now, one every second; the fifth was removed."""
    asked: list[int] = []

    async def time_of(sequence: int) -> datetime | None:
        asked.append(sequence)
        shown = 6 if sequence == 5 else sequence
        return NOW - timedelta(seconds=10 - shown)

    assert await last_older(time_of, 1, 10, NOW - timedelta(seconds=age)) == found
    assert len(asked) <= 4


def test_few_messages_are_read_however_many_there_are() -> None:
    assert sample_points(0, 3) == [1, 2, 3]
    assert sample_points(7, 7) == [7]
    many = sample_points(1_000_000, 9_000_000)
    assert (len(many), many[0], many[-1]) == (SAMPLES + 1, 1_000_000, 9_000_000)

from __future__ import annotations

import pytest

from lake_consumer.errors import StreamShorter
from lake_consumer.watermark import EMPTY, Resume, Watermark, plan_resume


def at(sequence: int) -> Watermark:
    return Watermark(sequence, sequence * 10, "2025-12-08T13:45:21.719719Z")


def test_a_stamp_comes_back_from_the_summary_it_went_into() -> None:
    """The snapshot summary is the only checkpoint there is."""
    assert Watermark.from_summary(at(7).to_summary()) == at(7)


def test_a_snapshot_of_somebody_else_has_no_stamp() -> None:
    """Compaction makes snapshots too, and says nothing of positions."""
    assert Watermark.from_summary({"operation": "replace"}) is None


def test_reading_goes_on_behind_the_cuts() -> None:
    """A table that was not touched lately has an old mark and lacks nothing."""
    assert plan_resume(at(50), [at(50), at(3)], 1, 80) == Resume(51)


def test_an_interrupted_batch_is_taken_again_to_the_same_end() -> None:
    """Only then is one commit LSN true for all tables of the cut."""
    assert plan_resume(at(50), [at(60), at(50)], 1, 80) == Resume(51, 60)


def test_a_new_lake_begins_where_the_stream_begins() -> None:
    """What expired before the lake existed was never its to read."""
    assert plan_resume(EMPTY, [], 41, 80) == Resume(41)


def test_a_first_batch_that_was_interrupted_is_taken_again() -> None:
    """There is no cut yet, but one table already has its changes."""
    assert plan_resume(EMPTY, [at(20)], 1, 80) == Resume(1, 20)


def test_a_stream_that_is_shorter_than_what_was_applied_is_waited_for() -> None:
    """NATS lost its newest messages, which the bridge sends again, or another stream is there."""
    with pytest.raises(StreamShorter, match="ends at 10"):
        plan_resume(at(50), [at(50)], 1, 10)


def test_an_empty_stream_after_everything_was_read_is_no_gap() -> None:
    """Age may empty the stream; its next message will be the one that is due."""
    assert plan_resume(at(50), [at(50)], 51, 50) == Resume(51)


def test_an_interrupted_batch_of_one_message_is_taken_again() -> None:
    resume = plan_resume(Watermark(4, 40), [Watermark(5, 50)], 1, 5)

    assert resume == Resume(5, 5)

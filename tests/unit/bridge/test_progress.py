"""Which LSN PostgreSQL may be told, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.progress import AGING_STEP_SECONDS, Progress


def test_a_transaction_is_safe_only_when_all_of_it_is_acknowledged() -> None:
    progress = Progress(10)
    progress.sent(3)
    progress.transaction_ended(100, now=0)
    progress.acknowledged(2, now=0)
    assert progress.safe_lsn(0) == 10

    progress.acknowledged(1, now=0)

    assert progress.safe_lsn(0) == 100


def test_a_later_transaction_in_flight_does_not_hold_an_earlier_one_back() -> None:
    progress = Progress(10)
    progress.sent()
    progress.transaction_ended(100, now=0)
    progress.sent()
    progress.transaction_ended(200, now=0)

    progress.acknowledged(1, now=0)

    assert progress.safe_lsn(0) == 100


def test_a_keepalive_does_not_pass_what_is_in_flight() -> None:
    """Confirming a keepalive's WAL end would confirm changes that are not stored."""
    progress = Progress(10)
    progress.sent()
    progress.idle_at(500, now=0)
    assert progress.safe_lsn(0) == 10

    progress.transaction_ended(100, now=0)
    progress.idle_at(500, now=0)
    assert progress.safe_lsn(0) == 10


def test_an_idle_slot_follows_keepalives() -> None:
    """Else the WAL of other tables and databases would pile up behind an idle one."""
    progress = Progress(10)
    progress.idle_at(500, now=0)
    assert progress.safe_lsn(0) == 500


def test_a_transaction_without_published_changes_moves_the_mark() -> None:
    progress = Progress(10)
    progress.transaction_ended(100, now=0)
    assert progress.safe_lsn(0) == 100


def test_synced_waits_until_the_server_has_written_to_disk() -> None:
    """JetStream acknowledges before it syncs; a power loss inside that time may take the tail."""
    progress = Progress(10, hold=timedelta(seconds=120))
    progress.sent()
    progress.transaction_ended(100, now=0)
    progress.acknowledged(1, now=50)

    assert progress.acked_lsn == 100
    assert progress.safe_lsn(169.9) == 10
    assert progress.safe_lsn(170.0) == 100


def test_waiting_marks_take_little_memory_however_many_transactions_there_are() -> None:
    """Two minutes of ten thousand transactions a second must not pile up, nor be held longer."""
    progress = Progress(0, hold=timedelta(seconds=10))
    for number in range(1, 10_001):
        progress.transaction_ended(number, now=number / 1_000)

    assert len(progress._aging) <= 10 / AGING_STEP_SECONDS + 1
    assert progress.safe_lsn(10.9) <= 900
    assert progress.safe_lsn(15.0) >= 5_000 - 1_000 * AGING_STEP_SECONDS
    assert progress.safe_lsn(21.0) == 10_000


def test_an_ack_of_more_than_was_sent_is_a_bug() -> None:
    with pytest.raises(ValueError, match="in flight"):
        Progress(0).acknowledged(1, now=0)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["end", "ack", "idle", "more"]))))
def test_the_safe_mark_never_passes_the_first_unacknowledged_change(
    steps: list[tuple[int, str]],
) -> None:
    """Checked against a model that remembers the LSN of every single change."""
    progress, lsn = Progress(0), 0
    pending: list[int] = []
    is_open = False
    for count, step in steps:
        lsn += 10
        if step == "more" and count:
            progress.sent(count)
            pending += [lsn] * count
            is_open = True
        elif step == "end":
            progress.transaction_ended(lsn, now=0)
            is_open = False
        elif step == "ack":
            done = min(count, len(pending))
            progress.acknowledged(done, now=0)
            del pending[:done]
        elif not is_open:
            progress.idle_at(lsn, now=0)
        assert progress.safe_lsn(0) < min(pending, default=lsn + 1)

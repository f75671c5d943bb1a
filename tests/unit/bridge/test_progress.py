"""Which LSN PostgreSQL may be told, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.ages import StoredSince
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


def test_keepalives_are_followed_again_when_all_is_stored() -> None:
    progress = Progress(10)
    progress.sent(2)
    progress.transaction_ended(100, now=0)
    assert (progress.in_flight, progress.newest_end) == (2, 100)

    progress.acknowledged(2, now=0)
    progress.idle_at(500, now=0)

    assert (progress.in_flight, progress.safe_lsn(0), progress.newest_end) == (0, 500, 500)


def test_what_was_read_is_known_before_it_is_stored_and_never_goes_back() -> None:
    """Messages of the bridge's own get their place behind all that was read."""
    progress = Progress(10)
    progress.sent()
    progress.transactions_ended([(1, 100), (1, 200)], now=0)
    assert (progress.read_lsn, progress.newest_end, progress.acked_lsn) == (200, 200, 10)

    progress.idle_at(300, now=0)
    assert progress.read_lsn == 300
    progress.idle_at(250, now=0)
    progress.transaction_ended(280, now=0)
    progress.transactions_ended([], now=0)

    assert (progress.read_lsn, progress.newest_end, progress.acked_lsn) == (300, 280, 10)


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


def test_messages_count_as_safe_when_the_server_has_synced_them() -> None:
    """Also those outside any transaction, whose position is no transaction's end."""
    progress = Progress(10, hold=timedelta(seconds=120))
    progress.sent(2)
    progress.acknowledged(1, now=0)
    progress.acknowledged(1, now=50)

    assert [progress.total_safe(now) for now in (0, 119.9, 120, 169.9, 170)] == [0, 0, 1, 1, 2]
    assert progress.safe_lsn(170) == 10


def test_acknowledged_messages_are_safe_at_once_if_the_server_always_syncs() -> None:
    progress = Progress(10)
    progress.sent(2)
    progress.acknowledged(1, now=0)

    assert progress.total_safe(0) == 1


def test_what_was_stored_before_the_session_has_aged_already() -> None:
    """A hold that began again with each session would never end where sessions are short."""
    stored = StoredSince((40, 60, 80), (-30.0, -5.0, -1.0))
    progress = Progress(10, hold=timedelta(seconds=20), stored=stored)
    for end_lsn in (30, 50, 70, 90):
        progress.transaction_ended(end_lsn, now=1)

    assert progress.acked_lsn == 90
    assert progress.safe_lsn(1) == 30
    assert progress.safe_lsn(15) == 50
    assert progress.safe_lsn(19) == 90


def test_sessions_shorter_than_the_interval_move_the_mark_in_the_end() -> None:
    """Each session lasts 14 s, the interval is 20 s, and a transaction comes every second."""
    safe, stored = 0, list[tuple[int, float]]()
    for session in range(5):
        begin = session * 14.0
        ages = StoredSince(tuple(lsn for lsn, _ in stored), tuple(at for _, at in stored))
        progress = Progress(safe, hold=timedelta(seconds=20), stored=ages)
        for lsn, _ in stored:
            progress.transaction_ended(lsn + 1, now=begin)
        for second in range(14):
            now = begin + second
            lsn = 10 * (session * 14 + second) + 10
            progress.sent()
            progress.transaction_ended(lsn + 1, now)
            progress.acknowledged(1, now)
            stored.append((lsn, now))
        safe = progress.safe_lsn(begin + 13.9)

        assert all(begin + 13.9 - at >= 20 for lsn, at in stored if lsn < safe)

    assert safe >= 10 * (5 * 14 - 14 - 20)


def test_what_this_session_stored_is_as_old_as_its_ack() -> None:
    """Time stamps of another history, or of a message that was lost since, prove nothing of it."""
    progress = Progress(10, hold=timedelta(seconds=20), stored=StoredSince((500,), (-100.0,)))
    progress.sent()
    progress.transaction_ended(100, now=0)
    progress.acknowledged(1, now=2)

    assert progress.safe_lsn(21.9) == 10
    assert progress.safe_lsn(22.0) == 100


def test_a_keepalive_at_idle_is_as_safe_as_the_last_change() -> None:
    """WAL of other tables and databases must not pile up while sessions are short."""
    progress = Progress(10, hold=timedelta(seconds=20), stored=StoredSince((9,), (-100.0,)))
    progress.idle_at(500, now=1)
    assert progress.safe_lsn(1) == 500

    progress.sent()
    progress.transaction_ended(600, now=5)
    progress.acknowledged(1, now=6)
    progress.idle_at(700, now=25)

    assert progress.safe_lsn(25.9) == 500
    assert progress.safe_lsn(26.0) == 700


def test_waiting_marks_take_little_memory_however_many_transactions_there_are() -> None:
    """Two minutes of ten thousand transactions a second must not pile up, nor be held longer."""
    progress = Progress(0, hold=timedelta(seconds=10))
    for number in range(1, 10_001):
        progress.sent()
        progress.transaction_ended(number, now=number / 1_000)
        progress.acknowledged(1, now=number / 1_000)

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


def test_the_proof_of_what_is_safe_ages_with_it() -> None:
    """What is only acknowledged may be lost without leaving a gap."""
    progress = Progress(10, hold=timedelta(seconds=20))
    for number, end_lsn in enumerate((100, 200)):
        progress.sent()
        progress.transaction_ended(end_lsn, now=number * 10)
        progress.acknowledged(1, now=number * 10)

    assert (progress.safe_lsn(20), progress.safe_proof, progress.acked_proof) == (100, 10, 100)
    assert (progress.safe_lsn(30), progress.safe_proof) == (200, 100)


def test_what_is_proven_to_be_stored_counts_by_its_own_age() -> None:
    """Ends that were read before the proof are not noted one by one."""
    stored = StoredSince((5, 40, 60, 80), (-50.0, -30.0, -5.0, -1.0))
    progress = Progress(10, hold=timedelta(seconds=20), stored=stored)

    progress.trust_stored(now=1)

    assert (progress.safe_lsn(1), progress.acked_lsn) == (40, 80)
    assert progress.safe_lsn(15) == 60
    assert progress.safe_lsn(19) == 80
    assert progress.acked_proof == 0

"""Whether a server forgot what it had acknowledged, and whether that can be sent again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bridge.progress import Progress
from bridge.tails import Acknowledged, LostTail, Tail, judge_tail
from schemas.positions import ORIGIN, Position

SEEN = Acknowledged(sequence=100, acked=900, confirmed=500)


def tail(sequence: int, lsn: int, *, is_whole: bool = True) -> Tail:
    return Tail(sequence, Position(lsn, 0), is_whole)


@pytest.mark.parametrize(
    ("found", "slot", "judged"),
    [
        (tail(100, 900), 510, None),
        (tail(120, 1_000), 510, None),
        (tail(90, 800), 510, LostTail(10, is_gap=False)),
        (tail(90, 500), 510, LostTail(10, is_gap=False)),
        (tail(40, 499), 510, LostTail(60, is_gap=True)),
        (tail(40, 499), 499, LostTail(60, is_gap=False)),
        (Tail(0, ORIGIN), 510, LostTail(100, is_gap=True)),
        (tail(100, 899), 510, LostTail(0, is_gap=False)),
        (tail(130, 400), 510, LostTail(0, is_gap=True)),
        (Tail(100, ORIGIN), 510, None),
    ],
    ids=["nothing", "a standby stored more", "not told yet", "the last one told is there",
         "told already", "the slot was not moved", "a new stream", "replaced, not told yet",
         "replaced, told already", "expired or purged"],
)  # fmt: skip
def test_what_is_missing_is_sent_again_or_marked(
    found: Tail, slot: int, judged: LostTail | None
) -> None:
    assert judge_tail(SEEN, found, slot) == judged


def test_a_new_process_knows_a_loss_by_a_transaction_that_stays_half() -> None:
    """The slot is past its end, so the rest of it was acknowledged once."""
    assert judge_tail(Acknowledged(), tail(5, 400, is_whole=False), 401) == LostTail(0, is_gap=True)
    assert judge_tail(Acknowledged(), tail(5, 400, is_whole=False), 400) is None
    assert judge_tail(Acknowledged(), tail(5, 400), 401) is None


def test_what_was_acknowledged_only_grows() -> None:
    assert SEEN.grown(sequence=99, acked=901, confirmed=1) == Acknowledged(100, 901, 500)
    assert SEEN.grown() == SEEN
    assert SEEN.joined(Acknowledged(99, 901, 1)) == Acknowledged(100, 901, 500)


def test_the_proof_of_a_mark_lies_before_the_last_change_and_behind_the_one_before_it() -> None:
    """A transaction that sent nothing, and a keepalive, are no proof of anything in the stream."""
    progress = Progress(10)
    progress.sent()
    progress.transaction_ended(20, now=0)
    progress.acknowledged(1, now=0)
    assert (progress.acked_proof, progress.safe_proof) == (10, 10)

    progress.transaction_ended(30, now=0)
    progress.idle_at(40, now=0)
    assert progress.acked_proof == 10

    progress.sent(2)
    progress.transaction_ended(60, now=0)
    progress.acknowledged(1, now=0)
    assert progress.acked_proof == 10
    progress.acknowledged(1, now=0)

    assert (progress.acked_proof, progress.safe_proof) == (40, 40)


def test_a_mark_that_is_safe_soon_has_its_proof_already() -> None:
    """It is noted before PostgreSQL is told; what is told and not noted would pass for unsent."""
    progress = Progress(10, hold=timedelta(seconds=100))
    for end, now in ((20, 0.0), (30, 50.0)):
        progress.sent()
        progress.transaction_ended(end, now=now)
        progress.acknowledged(1, now=now)

    assert [progress.proof_at(at) for at in (99, 100, 149, 150)] == [0, 10, 10, 20]
    assert progress.safe_proof == 0

"""Whether a stream still holds what the lake applied, and where the lake stands if it does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lake_consumer.batches import Mark
from lake_consumer.errors import MessagesMissing, StreamReplaced
from lake_consumer.forks import ForkMark
from lake_consumer.rollback import find_commit, find_rollback
from lake_consumer.watermark import Watermark


@dataclass
class Messages:
    """Commit LSNs from sequence `first` on; each is the end of its transaction unless told."""

    commits: list[int]
    first: int = 1
    holes: tuple[tuple[int, int], ...] = ()
    forks: tuple[int, ...] = ()
    sessions: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        return self.first + len(self.commits) - 1

    def look(self, sequence: int) -> Mark:
        assert self.first <= sequence <= self.last
        if sequence in self.gone:
            raise MessagesMissing(f"{sequence} expired")
        return Mark(
            commit_lsn=self.commits[sequence - self.first],
            ordinal=0,
            last=sequence not in self.inside,
            commit_ts="",
            is_session=sequence in self.sessions,
        )

    def fork_mark(self, sequence: int) -> ForkMark | None:
        found = [fork for fork in self.forks if fork >= sequence]
        return ForkMark(found[0], "7/1/s", "7", 2, 1) if found else None


def rollback(stream: Messages, sequence: int, commit_lsn: int, *, one: bool = True) -> int | None:
    return find_rollback(stream, stream, Watermark(sequence, commit_lsn), is_one_source=one)


@pytest.mark.parametrize("sequence", [3, 5, 6])
def test_a_message_that_is_where_it_was_says_nothing(sequence: int) -> None:
    """The first and the last that the stream holds can be compared, too."""
    assert rollback(Messages([10, 20, 30, 40], first=3), sequence, 10 * (sequence - 2)) is None


@pytest.mark.parametrize("sequence", [2, 7])
def test_what_the_stream_does_not_hold_cannot_be_compared(sequence: int) -> None:
    assert rollback(Messages([10, 20, 30, 40], first=3), sequence, 999) is None


def test_a_message_that_expires_in_this_moment_cannot_be_compared() -> None:
    assert rollback(Messages([10, 20], gone=(1,)), 1, 999) is None


@pytest.mark.parametrize(
    ("commit_lsn", "now"), [(5, 2), (10, 3), (15, 3), (20, 4), (39, 5), (40, 6), (99, 6)]
)
def test_a_commit_is_found_where_it_ends_now(commit_lsn: int, now: int) -> None:
    """One below all is before the first message, one above all is at the end."""
    stream = Messages([10, 20, 30, 40], first=3)

    assert find_commit(commit_lsn, stream.first, stream.last, stream.look) == now
    assert find_commit(commit_lsn, 5, 4, stream.look) == 4, "nothing is in the range"


def test_a_message_of_the_same_commit_that_does_not_end_it_is_another() -> None:
    """A message more stands before the transaction, so its last change is one higher."""
    assert rollback(Messages([10, 20, 30, 30, 30, 40], inside=(3, 4)), 4, 30) == 5


def test_a_message_that_opens_a_session_stands_for_the_one_before() -> None:
    stream = Messages([10, 20, 0, 0, 30], sessions=(3, 4))

    assert rollback(stream, 4, 20) is None
    assert rollback(stream, 3, 20) is None
    assert rollback(Messages([10, 20, 20, 30], sessions=(3,)), 3, 10) == 1
    assert rollback(Messages([0, 0], sessions=(1, 2)), 2, 99) is None


@pytest.mark.parametrize(
    ("sequence", "commit_lsn", "now"),
    [(3, 25, 2), (3, 9, 0), (5, 7, 4), (5, 25, 5), (6, 35, 7), (9, 45, 9)],
)
def test_forks_bound_the_search(sequence: int, commit_lsn: int, now: int) -> None:
    """Positions fall there: what is on the other side is of another history."""
    stream = Messages([10, 20, 30, 5, 10, 30, 35, 8, 40, 50], forks=(4, 8))

    assert rollback(stream, sequence, commit_lsn) == now


@pytest.mark.parametrize(("holes", "one"), [(((2, 2),), True), ((), False)])
def test_without_one_rising_line_of_commits_the_place_is_not_known(
    holes: tuple[tuple[int, int], ...], one: bool
) -> None:
    with pytest.raises(StreamReplaced, match="stream sequence 3 is not the change"):
        rollback(Messages([10, 20, 30], holes=holes), 3, 20, one=one)
    assert rollback(Messages([10, 20, 30], holes=holes), 3, 30, one=one) is None

from __future__ import annotations

from lake_consumer.forks import ForkMark
from lake_consumer.gaps import Gap, join_sequences, next_gap


def test_a_stream_that_goes_on_has_no_gap() -> None:
    """Also one whose holes and marks lie behind us, and an empty one that ends where we are."""
    assert next_gap(51, 1, ((10, 12),), 20) is None
    assert next_gap(51, 51, (), None) is None


def test_what_expired_before_it_was_read_is_a_gap() -> None:
    gap = next_gap(51, 60, ((70, 71),), 55)

    assert gap is not None
    assert (gap.first, gap.last) == (51, 59)
    assert str(gap) == "51-59"
    assert gap.is_expired
    assert not any(found.is_expired for found in [next_gap(51, 51, ((70, 71),), None)] if found)


def test_the_first_of_several_breaks_comes_first() -> None:
    holes = ((40, 52), (70, 71))

    assert _place(next_gap(51, 1, holes, 60)) == (51, 52)
    assert _place(next_gap(53, 1, holes, 60)) == (60, 60)
    assert _place(next_gap(61, 1, holes, None)) == (70, 71)


def test_deleted_sequences_are_joined() -> None:
    assert join_sequences([5, 3, 4, 9]) == ((3, 5), (9, 9))
    assert join_sequences([]) == ()


def _place(gap: Gap | None) -> tuple[int, int]:
    assert gap is not None
    return gap.first, gap.last


def test_a_gap_of_one_message_right_where_reading_goes_on_is_one() -> None:
    holes = next_gap(5, 1, ((5, 5),), None)
    marked = next_gap(5, 1, (), 5)

    assert holes is not None
    assert (holes.first, holes.last) == (5, 5)
    assert marked is not None
    assert (marked.first, marked.last) == (5, 5)


def test_a_fork_is_a_gap_at_its_own_place() -> None:
    fork = ForkMark(60, "7/1/s", "7", 2, 100)

    gap = next_gap(51, 51, ((70, 71),), None, fork)

    assert gap is not None
    assert (gap.first, gap.last, gap.fork) == (60, 60, fork)
    assert next_gap(61, 51, (), None, fork) is None

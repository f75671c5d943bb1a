from __future__ import annotations

import pytest

from lake_consumer.batches import (
    BatchLimits,
    Mark,
    Pace,
    describe_gaps,
    plan_batch,
    split_range,
)


class Stream:
    """Messages from sequence 1 on; counts how often somebody looks."""

    def __init__(self, *transactions: int, shapes_at: frozenset[int] = frozenset()) -> None:
        self.marks: list[Mark] = []
        self.looks = 0
        for number, size in enumerate(transactions, start=1):
            for ordinal in range(size):
                if len(self.marks) + 1 in shapes_at:
                    self.marks.append(_mark(number, ordinal, last=False))
                self.marks.append(_mark(number, ordinal, last=ordinal == size - 1))

    def look(self, sequence: int) -> Mark:
        self.looks += 1
        return self.marks[sequence - 1]

    def plan(self, first: int, count: int, newest: int | None = None) -> int | None:
        batch = plan_batch(first, newest or len(self.marks), count, self.look)
        return None if batch is None else batch.last


def _mark(number: int, ordinal: int, *, last: bool) -> Mark:
    return Mark(commit_lsn=number * 100, ordinal=ordinal, last=last, commit_ts="")


def test_a_batch_ends_with_the_last_transaction_that_fits() -> None:
    """A lake commit in the middle of a transaction would be a state the database never had."""
    stream = Stream(2, 3, 4)

    assert stream.plan(1, count=5) == 5
    assert stream.plan(1, count=8) == 5
    assert stream.plan(1, count=100) == 9


def test_a_transaction_larger_than_the_limit_is_taken_whole() -> None:
    """Cutting it is not allowed and waiting would be for ever."""
    stream = Stream(2, 50, 3)

    assert stream.plan(3, count=10) == 52


def test_the_end_of_a_huge_transaction_is_found_by_a_few_looks() -> None:
    """Each look is a request to the server; a bulk load has millions of messages."""
    stream = Stream(100_000, 5)

    assert stream.plan(1, count=1_000) == 100_000
    assert stream.looks < 60


def test_an_incomplete_transaction_is_left_for_later() -> None:
    """The bridge may be half-way through storing it."""
    stream = Stream(2, 10)

    assert stream.plan(1, count=100, newest=7) == 2
    assert stream.plan(3, count=100, newest=7) is None
    assert stream.plan(3, count=2, newest=7) is None


def test_nothing_new_is_no_batch() -> None:
    """An idle stream must not make empty lake commits."""
    assert Stream(2).plan(3, count=10) is None


@pytest.mark.parametrize("count", range(1, 14))
def test_shape_messages_inside_a_transaction_never_end_a_batch(count: int) -> None:
    """They share the ordinal of the change behind them, so stepping by ordinals falls short."""
    stream = Stream(3, 4, 2, shapes_at=frozenset({1, 5, 6, 11}))
    ends = [n for n, mark in enumerate(stream.marks, start=1) if mark.last]

    assert stream.plan(1, count) in ends


def test_bytes_bound_a_batch_through_the_mean_size() -> None:
    """Sizes are known only after reading, and memory must be bounded before."""
    limits = BatchLimits(max_messages=1_000, max_bytes=10_000)

    assert limits.messages(mean_bytes=5) == 1_000
    assert limits.messages(mean_bytes=100) == 100
    assert limits.messages(mean_bytes=1_000_000) == 1
    assert limits.messages(mean_bytes=0) == 1_000


def test_ranges_adjoin_and_cover_everything() -> None:
    """A hole between two tasks would be a lost change."""
    for size in (1, 2, 7, 100):
        for parts in (1, 2, 3, 8):
            ranges = split_range(5, 4 + size, parts)
            covered = [n for first, last in ranges for n in range(first, last + 1)]
            assert covered == list(range(5, 5 + size))


def test_missing_sequences_are_named_for_a_person() -> None:
    """Thousands of ranges would bury the message."""
    assert describe_gaps([(5, 7), (9, 9)]) == "5-7, 9"
    assert describe_gaps([(n, n) for n in range(7)]).endswith("and 2 more ranges")


def test_batches_grow_while_there_is_a_backlog() -> None:
    """Large ones are quicker, and who keeps up does not wait for one."""
    pace = Pace(BatchLimits(max_messages=1_000, max_bytes=10_000, first_messages=100))
    sizes = []
    for behind in (5_000, 5_000, 5_000, 5_000, 50, 0):
        sizes.append(pace.messages(10.0))
        pace.applied(sizes[-1], behind)

    assert sizes == [100, 200, 400, 800, 1_000, 1_000]
    assert pace.messages(10.0) == 100
    assert pace.messages(1_000.0) == 10


@pytest.mark.parametrize("sizes", [(1,), (2, 1, 3), (5, 1, 1), (1, 9, 2), (3, 3), (17,)])
def test_every_plan_is_what_looking_at_every_message_gives(sizes: tuple[int, ...]) -> None:
    """The end that fits, else that of the first transaction, else none; by a few looks."""
    stream = Stream(*sizes)
    total = len(stream.marks)
    starts = [1, *(n + 1 for n, mark in enumerate(stream.marks, start=1) if mark.last)]
    for first in starts:
        for newest in range(first - 1, total + 1):
            ends = [n for n in range(first, newest + 1) if stream.marks[n - 1].last]
            for count in range(1, total + 2):
                fitting = [end for end in ends if end < first + count]
                expected = fitting[-1] if fitting else next(iter(ends), None)

                batch = plan_batch(first, newest, count, stream.look)

                assert (batch and batch.last) == expected
                assert batch is None or batch.messages == batch.last - first + 1


def test_one_message_is_a_range_and_no_range_is_empty() -> None:
    """A task without messages costs as much as one with some."""
    assert split_range(5, 5, 8) == [(5, 5)]
    assert split_range(5, 8, 2) == [(5, 6), (7, 8)]
    assert split_range(1, 3, 8) == [(1, 1), (2, 2), (3, 3)]
    assert split_range(1, 3, 0) == [(1, 3)]


def test_the_pace_is_kept_while_less_is_behind_than_was_taken() -> None:
    pace = Pace(BatchLimits(max_messages=1_000, max_bytes=10_000, first_messages=100))

    pace.applied(100, behind=100)

    assert pace.messages(0.5) == 100
    assert BatchLimits(max_messages=5, max_bytes=2).messages(0.5) == 4


class Sessions(Stream):
    """Transactions with messages in between that open sessions, at a place of no meaning."""

    def __init__(self, *transactions: int, sessions_at: tuple[int, ...]) -> None:
        super().__init__(*transactions)
        for sequence in sessions_at:
            self.marks.insert(
                sequence - 1,
                Mark(commit_lsn=0, ordinal=0, last=True, commit_ts="", is_session=True),
            )


@pytest.mark.parametrize("sequence", range(1, 10))
@pytest.mark.parametrize("count", range(1, 12))
def test_no_commit_is_taken_from_a_message_that_opens_a_session(sequence: int, count: int) -> None:
    """Its place may be 0, or another database's: a cut there would be no state of this one."""
    stream = Sessions(3, 2, 3, sessions_at=(sequence,))
    before = Mark(commit_lsn=50, ordinal=0, last=True, commit_ts="")
    first, taken = 1, []
    while batch := plan_batch(first, len(stream.marks), count, stream.look, before):
        taken.append(batch.commit_lsn)
        first = batch.last + 1
        before = Mark(commit_lsn=batch.commit_lsn, ordinal=0, last=True, commit_ts="")
        inside = [m for m in stream.marks[: batch.last] if not m.is_session]
        assert not inside or inside[-1].last, "a transaction was cut"

    assert first == len(stream.marks) + 1, "a message left over would count as missing one day"
    assert set(taken) <= {50, 100, 200, 300}
    assert taken == sorted(taken)


def test_a_new_lake_does_not_begin_with_a_session() -> None:
    """It stands at no commit yet that such a message could belong to."""
    stream = Sessions(2, sessions_at=(1, 1))
    assert plan_batch(1, 2, 1, stream.look) is None
    batch = plan_batch(1, 4, 1, stream.look)
    assert batch
    assert (batch.last, batch.commit_lsn) == (4, 100)

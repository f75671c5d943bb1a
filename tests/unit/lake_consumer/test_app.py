"""The loop, with a stream and a lake of its own: where it begins, ends and skips."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from lake_consumer import app
from lake_consumer.app import Follower
from lake_consumer.batches import Batch, BatchLimits, Mark
from lake_consumer.errors import MessagesMissing, StreamReplaced
from lake_consumer.gaps import Gap
from lake_consumer.iceberg.lake import Applied
from lake_consumer.jetstream.stream import StreamState
from lake_consumer.watermark import EMPTY, Watermark

TIME = "2025-12-08T13:45:21.719719Z"


@dataclass
class MemoryStream:
    """Transactions of given sizes, from sequence 1 on; each has its own commit LSN."""

    transactions: list[int]
    first: int = 1
    holes: tuple[tuple[int, int], ...] = ()
    mark: int | None = None
    durable: list[int] = field(default_factory=list)

    @property
    def marks(self) -> list[Mark]:
        return [
            Mark(commit_lsn=100 * number, ordinal=at, last=at == size - 1, commit_ts=TIME)
            for number, size in enumerate(self.transactions, start=1)
            for at in range(size)
        ]

    def state(self) -> StreamState:
        last = len(self.marks)
        count = last - self.first + 1
        return StreamState(
            first=self.first, last=last, messages=count, bytes=10 * count, holes=self.holes
        )

    def look(self, sequence: int) -> Mark:
        gone = any(a <= sequence <= b for a, b in self.holes) or sequence < self.first
        assert not gone, f"{sequence} was looked at, and is gone"
        return self.marks[sequence - 1]

    def gap_mark(self, first: int) -> int | None:
        return self.mark if self.mark is not None and self.mark >= first else None

    def move_durable(self, applied: int) -> None:
        self.durable.append(applied)


@dataclass
class MemoryLake:
    """Remembers what it was given."""

    cuts: Watermark = EMPTY
    tables: tuple[Watermark, ...] = ()
    batches: list[Batch] = field(default_factory=list)
    following: list[Batch | None] = field(default_factory=list)
    dropped: int = 0
    dies: bool = False

    def watermarks(self) -> tuple[Watermark, dict[Any, Watermark]]:
        return self.cuts, dict(enumerate(self.tables))

    def apply(self, batch: Batch, following: Batch | None = None) -> Applied:
        if self.dies:
            raise ConnectionAbortedError
        self.batches.append(batch)
        self.following.append(following)
        return Applied(changes=batch.messages, bytes=1, tables=1)

    def drop_ahead(self) -> None:
        self.dropped += 1

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(batch.first, batch.last) for batch in self.batches]


@dataclass
class MemoryLoader:
    """Heals gaps, and has tables to load while `due` says so."""

    due: bool = False
    healed: list[Gap] = field(default_factory=list)
    loaded: list[Watermark] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    waited: int = 0

    @property
    def tables(self) -> dict[str, str]:
        return {"users": "loading"} if self.due else {}

    def see_tables(self, position: int) -> None:
        self.seen.append(position)

    def step(self, mark: Watermark) -> bool:
        self.loaded.append(mark)
        return False

    def heal(self, gap: Gap) -> None:
        self.healed.append(gap)

    def wait(self) -> None:
        self.waited += 1

    def close(self) -> None:
        """There is no load to stop."""


def follow(
    stream: MemoryStream,
    lake: MemoryLake,
    loader: MemoryLoader | None = None,
    *,
    max_messages: int = 10,
) -> Follower:
    anything: Any = (stream, lake, loader)
    limits = BatchLimits(max_messages=max_messages, first_messages=max_messages)
    return Follower(limits, *anything)


def drain(follower: Follower, goal: int | None = None) -> int:
    steps = 0
    while follower.step(goal):
        steps += 1
        assert steps < 100, "the loop does not end"
    return steps


def mark(sequence: int) -> Watermark:
    return Watermark(sequence, sequence, TIME)


def test_batches_follow_each_other_and_the_consumer_is_told_afterwards() -> None:
    stream, lake = MemoryStream([4, 4, 4, 4]), MemoryLake()

    follower = follow(stream, lake)

    assert drain(follower) == 2
    assert lake.ranges == [(1, 8), (9, 16)]
    assert [batch.commit_lsn for batch in lake.batches] == [200, 400]
    assert stream.durable == [8, 16]
    assert follower.applied == 16


def test_what_failed_is_not_told_to_the_stream() -> None:
    """The durable consumer says what the lake has, and never more."""
    stream, lake = MemoryStream([4]), MemoryLake(dies=True)
    follower = follow(stream, lake)

    with pytest.raises(ConnectionAbortedError):
        follower.step(None)

    assert stream.durable == []
    assert follower.applied == 0


def test_a_goal_is_not_passed() -> None:
    """`drain` ends where the stream ended when it began."""
    stream, lake = MemoryStream([4, 4, 4]), MemoryLake()

    drain(follow(stream, lake, max_messages=100), goal=9)

    assert lake.ranges == [(1, 8)]


def test_an_interrupted_batch_is_taken_again_to_the_very_same_end() -> None:
    """A table above the cuts has a batch that others may lack; a larger one would not fit."""
    stream = MemoryStream([4, 4, 4, 4])
    lake = MemoryLake(mark(4), (mark(4), mark(8), EMPTY))
    follower = follow(stream, lake, max_messages=100)

    assert drain(follower) == 2
    assert lake.ranges == [(5, 8), (9, 16)]


def test_nothing_is_loaded_before_an_interrupted_batch_is_whole() -> None:
    """Mirrors are loaded as of where the whole lake stands."""
    stream, loader = MemoryStream([4, 4]), MemoryLoader()
    lake = MemoryLake(mark(4), (mark(8),))
    follower = follow(stream, lake, loader)

    assert not follower.load()
    assert loader.loaded == []
    follower.step(None)
    follower.load()
    assert loader.loaded == [Watermark(8, 200, TIME)]


def test_a_gap_ends_the_batch_before_it_and_is_healed() -> None:
    """What is before the gap is applied; mirrors are built anew behind it."""
    stream = MemoryStream([4, 4, 4, 4], holes=((7, 8),))
    lake, loader = MemoryLake(), MemoryLoader()
    follower = follow(stream, lake, loader)

    drain(follower)

    assert lake.ranges == [(1, 4), (9, 16)]
    # The rest of a transaction that is torn apart is part of what is missing.
    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, 8)]
    follower.load()
    assert loader.loaded[-1].stream_sequence == 16


def test_a_gap_nobody_can_heal_stops_the_lake() -> None:
    stream, lake = MemoryStream([4, 4], holes=((6, 6),)), MemoryLake()
    follower = follow(stream, lake)

    assert follower.step(None)
    with pytest.raises(MessagesMissing, match="lacks sequence 5-6: they were deleted"):
        follower.step(None)


def test_a_gap_beyond_the_goal_is_left_for_later() -> None:
    stream = MemoryStream([4, 4, 4], holes=((10, 10),))
    lake, loader = MemoryLake(), MemoryLoader()

    drain(follow(stream, lake, loader), goal=8)

    assert lake.ranges == [(1, 8)]
    assert loader.healed == []


def test_a_gap_inside_an_interrupted_batch_is_crossed() -> None:
    """The batch cannot be taken again; its tables are built anew, whatever they have of it."""
    stream = MemoryStream([4, 4, 4, 4], holes=((6, 6),))
    lake, loader = MemoryLake(mark(4), (mark(12),)), MemoryLoader()
    follower = follow(stream, lake, loader)

    assert follower.step(None)
    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, 6)]
    assert lake.ranges == []
    assert follower.applied == 6
    assert not follower.load(), "the batch that was interrupted is not over"
    follower.step(None)
    assert lake.ranges == [(7, 12)]


def test_a_gap_that_holds_the_end_of_an_interrupted_batch_ends_it() -> None:
    stream = MemoryStream([4, 4, 4, 4], first=10)
    lake, loader = MemoryLake(mark(4), (mark(8),)), MemoryLoader()
    follower = follow(stream, lake, loader)

    assert follower.step(None)
    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, 9)]
    follower.load()
    assert loader.loaded == [Watermark(9, 0)]
    drain(follower)
    assert lake.ranges == [(10, 16)]


def test_the_bridges_own_mark_is_a_gap() -> None:
    """It is asked for once, and again only when it has been passed."""
    stream, lake, loader = MemoryStream([4, 1, 4], mark=5), MemoryLake(), MemoryLoader()

    drain(follow(stream, lake, loader))

    assert lake.ranges == [(1, 4), (6, 9)]
    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, 5)]


def test_a_long_backlog_is_read_ahead_and_taken_as_it_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read ahead is of use only if the very same batch is applied next."""
    monkeypatch.setattr(app, "AHEAD_MESSAGES", 8)
    stream, lake = MemoryStream([4] * 6), MemoryLake()
    follower = follow(stream, lake, max_messages=8)

    follower.step(None)
    assert lake.following == [Batch(first=9, last=16, commit_lsn=400, commit_ts=TIME)]
    stream.transactions += [4]
    follower.step(None)
    assert lake.batches[1] == lake.following[0]
    drain(follower)

    assert lake.ranges == [(1, 8), (9, 16), (17, 24), (25, 28)]
    assert lake.following[1:] == [
        Batch(first=17, last=24, commit_lsn=600, commit_ts=TIME), None, None,
    ]  # fmt: skip


def test_nothing_is_read_ahead_across_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "AHEAD_MESSAGES", 4)
    stream = MemoryStream([4] * 6, holes=((13, 13),))
    lake, loader = MemoryLake(), MemoryLoader()
    follower = follow(stream, lake, loader, max_messages=8)

    follower.step(None)

    assert lake.following == [Batch(first=9, last=12, commit_lsn=300, commit_ts=TIME)]
    # A hole that appears meanwhile makes a plan worthless.
    stream.holes = ((10, 10),)
    drain(follower)
    assert lake.ranges == [(1, 8), (11, 16), (17, 24)]
    assert [(gap.first, gap.last) for gap in loader.healed] == [(9, 10)]


def test_a_stream_that_was_replaced_is_refused() -> None:
    with pytest.raises(StreamReplaced):
        follow(MemoryStream([4]), MemoryLake(mark(8)))


def test_a_new_lake_begins_with_what_the_stream_still_holds() -> None:
    stream, lake, loader = MemoryStream([4, 4], first=5), MemoryLake(), MemoryLoader()

    drain(follow(stream, lake, loader))

    assert lake.ranges == [(5, 8)]
    assert loader.healed == []
    assert loader.seen == [4]


def test_a_drain_waits_for_snapshots_and_goes_beyond_its_goal_for_them() -> None:
    """A snapshot that is due may end behind the goal, in the middle of a transaction."""
    stream, lake, loader = MemoryStream([4, 4]), MemoryLake(), MemoryLoader(due=True)
    follower = follow(stream, lake, loader, max_messages=4)

    assert follower.catch_up(4)
    assert follower.catch_up(4)
    assert lake.ranges == [(1, 4), (5, 8)]
    waiting = [follower.is_waiting]
    assert follower.catch_up(4), "a table still waits for its snapshot"
    assert [*waiting, follower.is_waiting] == [False, True]
    assert loader.waited == 1
    loader.due = False
    assert not follower.catch_up(4)
    follower.close()
    assert lake.dropped == 1

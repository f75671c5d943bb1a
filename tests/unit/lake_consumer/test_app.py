"""The loop, with a stream and a lake of its own: where it begins, ends and skips."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from lake_consumer import app
from lake_consumer.app import Follower
from lake_consumer.batches import Batch, BatchLimits, Mark
from lake_consumer.config import LakeConfig, read_config
from lake_consumer.errors import (
    MessagesMissing,
    NatsUnreachable,
    StreamMissing,
    StreamReplaced,
    StreamShorter,
)
from lake_consumer.forks import ForkMark
from lake_consumer.gaps import Gap
from lake_consumer.iceberg.lake import Applied
from lake_consumer.jetstream.stream import StreamState
from lake_consumer.loader import LOOK_SECONDS
from lake_consumer.metrics import Meter
from lake_consumer.order import Rung
from lake_consumer.watermark import EMPTY, Watermark

TIME = "2025-12-08T13:45:21.719719Z"


@dataclass
class MemoryStream:
    """Transactions of given sizes, from sequence 1 on; each has its own commit LSN."""

    transactions: list[int]
    first: int = 1
    holes: tuple[tuple[int, int], ...] = ()
    mark: int | None = None
    fork: ForkMark | None = None
    message_bytes: int = 10
    durable: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    dead: int = 0
    missing: int = 0
    has_consumer: bool = False
    is_closed: bool = False
    shape: None = None

    @property
    def marks(self) -> list[Mark]:
        return [
            Mark(commit_lsn=100 * number, ordinal=at, last=at == size - 1, commit_ts=TIME)
            for number, size in enumerate(self.transactions, start=1)
            for at in range(size)
        ]

    def state(self) -> StreamState:
        if self.missing:
            self.missing -= 1
            raise StreamMissing("there is no stream")
        last = len(self.marks)
        count = last - self.first + 1
        size = self.message_bytes * count
        return StreamState(
            first=self.first, last=last, messages=count, bytes=size, holes=self.holes
        )

    def look(self, sequence: int) -> Mark:
        gone = any(a <= sequence <= b for a, b in self.holes) or sequence < self.first
        assert not gone, f"{sequence} was looked at, and is gone"
        return self.marks[sequence - 1]

    def gap_mark(self, first: int) -> int | None:
        self.asked.append(first)
        return self.mark if self.mark is not None and self.mark >= first else None

    def fork_mark(self, first: int) -> ForkMark | None:
        return self.fork if self.fork is not None and self.fork.sequence >= first else None

    def move_durable(self, applied: int) -> None:
        self.durable.append(applied)

    def ensure_durable(self) -> None:
        self.has_consumer = True

    def dead_letters(self) -> int:
        return self.dead

    def close(self) -> None:
        self.is_closed = True


@dataclass
class MemoryLake:
    """Remembers what it was given."""

    cuts: Watermark = EMPTY
    tables: tuple[Watermark, ...] = ()
    batches: list[Batch] = field(default_factory=list)
    following: list[Batch | None] = field(default_factory=list)
    dropped: int = 0
    dies: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    reached: Mapping[str, Rung] = field(default_factory=dict)
    while_applying: Callable[[], None] = lambda: None
    states: Any = field(
        default_factory=lambda: SimpleNamespace(parked=lambda: ["a"], loading=lambda: ["b", "c"])
    )

    def watermarks(self) -> tuple[Watermark, dict[Any, Watermark]]:
        return self.cuts, dict(enumerate(self.tables))

    def apply(self, batch: Batch, following: Batch | None = None) -> Applied:
        if self.dies:
            raise ConnectionAbortedError
        self.while_applying()
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
    crossed: list[ForkMark] = field(default_factory=list)
    loaded: list[Watermark] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    waited: int = 0
    closed: int = 0

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

    def cross_fork(self, fork: ForkMark) -> None:
        self.crossed.append(fork)

    def wait(self) -> None:
        self.waited += 1

    def close(self) -> None:
        self.closed += 1


def follow(
    stream: MemoryStream,
    lake: MemoryLake,
    loader: MemoryLoader | None = None,
    *,
    max_messages: int = 10,
    first_messages: int | None = None,
) -> Follower:
    anything: Any = (stream, lake, loader)
    limits = BatchLimits(max_messages=max_messages, first_messages=first_messages or max_messages)
    return Follower(limits, *anything)


def drain(follower: Follower, goal: int | None = None) -> int:
    steps = 0
    while follower.step(goal):
        steps += 1
        assert steps < 100, "the loop does not end"
    return steps


def mark(sequence: int) -> Watermark:
    """A commit to the lake that does not say of what commit it is."""
    return Watermark(sequence, 0, TIME)


def test_batches_follow_each_other_and_the_consumer_is_told_afterwards() -> None:
    stream, lake = MemoryStream([4, 4, 4, 4]), MemoryLake()

    follower = follow(stream, lake)

    assert drain(follower) == 2
    assert lake.ranges == [(1, 8), (9, 16)]
    assert [batch.commit_lsn for batch in lake.batches] == [200, 400]
    assert stream.durable == [8, 16]
    assert follower.applied == 16


def test_batches_grow_while_there_is_a_backlog_and_begin_small_again() -> None:
    stream, lake = MemoryStream([4] * 8), MemoryLake()
    follower = follow(stream, lake, max_messages=100, first_messages=4)

    drain(follower)
    stream.transactions += [4, 4]
    drain(follower)

    assert lake.ranges == [(1, 4), (5, 12), (13, 28), (29, 32), (33, 36), (37, 40)]


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


@pytest.mark.parametrize("hole", [(11, 12), (12, 12), (12, 13)])
def test_an_interrupted_batch_whose_end_is_gone_is_over(hole: tuple[int, int]) -> None:
    """There is no end to take it to: its tables are built anew, and what follows is a new batch."""
    stream = MemoryStream([4, 4, 4, 4, 4], holes=(hole,))
    lake, loader = MemoryLake(mark(4), (mark(12),)), MemoryLoader()
    follower = follow(stream, lake, loader, max_messages=4)

    assert follower.step(None)
    follower.load()

    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, hole[1])]
    assert loader.loaded == [Watermark(hole[1], 0)]


def test_a_gap_that_begins_with_the_goal_is_not_left_for_later() -> None:
    stream = MemoryStream([4, 4], holes=((5, 6),))
    lake, loader = MemoryLake(), MemoryLoader()

    drain(follow(stream, lake, loader), goal=5)

    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, 6)]


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
    assert stream.asked[:2] == [1, 6]


def test_a_fork_is_crossed_between_batches_and_lacks_nothing() -> None:
    fork = ForkMark(5, "7/1/s", "7", 2, 100)
    stream, lake, loader = MemoryStream([4, 1, 4], fork=fork), MemoryLake(), MemoryLoader()

    drain(follow(stream, lake, loader))

    assert lake.ranges == [(1, 4), (6, 9)]
    assert loader.crossed == [fork]
    assert not loader.healed


@pytest.mark.parametrize(("other", "healed"), [("7/1/s", []), ("8/1/s", [(1, 4)])])
def test_a_transaction_that_the_fork_cut_off_is_no_gap(
    other: str, healed: list[tuple[int, int]]
) -> None:
    """PostgreSQL died while it sent it. What is not of the fork's source alone may be missed."""

    class CutOff(MemoryStream):
        def look(self, sequence: int) -> Mark:
            found = super().look(sequence)
            return replace(found, last=found.last and sequence != 4)

    fork = ForkMark(5, "7/1/s", "7", 2, 100)
    lake, loader = MemoryLake(reached={other: Rung(0, 0)}), MemoryLoader()

    drain(follow(CutOff([4, 1, 4], fork=fork), lake, loader))

    assert loader.crossed == [fork]
    assert [(gap.first, gap.last) for gap in loader.healed] == healed
    assert lake.ranges == [(6, 9)]


def test_a_fork_behind_an_interrupted_batch_is_crossed_again_before_it() -> None:
    """A table has the batch, and no cut says that the fork was crossed."""
    fork = ForkMark(5, "7/1/s", "7", 2, 100)
    stream, loader = MemoryStream([4, 1, 4], fork=fork), MemoryLoader()
    lake = MemoryLake(cuts=mark(4), tables=(mark(9),))

    drain(follow(stream, lake, loader))

    assert loader.crossed == [fork]
    assert lake.ranges == [(6, 9)]
    assert not loader.healed


def test_a_batch_that_was_interrupted_across_a_fork_is_healed_as_a_gap() -> None:
    """A version that knew no forks began it: what it has of the messages before is unknown."""
    fork = ForkMark(5, "7/1/s", "7", 2, 100)
    stream, loader = MemoryStream([4, 1, 4], fork=fork), MemoryLoader()
    lake = MemoryLake(cuts=EMPTY, tables=(mark(9),))

    drain(follow(stream, lake, loader))

    assert [(gap.first, gap.last) for gap in loader.healed] == [(1, 4)]
    assert loader.crossed == [fork]
    assert lake.ranges == [(6, 9)]


def test_a_plan_that_ends_with_the_stream_is_taken_as_it_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read already; larger messages that came meanwhile would make a new plan shorter."""
    monkeypatch.setattr(app, "AHEAD_MESSAGES", 8)
    stream, lake = MemoryStream([4] * 4), MemoryLake()
    follower = follow(stream, lake, max_messages=8)

    follower.step(None)
    stream.message_bytes = 1 << 28
    follower.step(None)

    assert lake.batches[1] == lake.following[0]


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
    stream = MemoryStream([4] * 6, holes=((13, 14),))
    lake, loader = MemoryLake(), MemoryLoader()
    follower = follow(stream, lake, loader, max_messages=8)

    follower.step(None)

    assert lake.following == [Batch(first=9, last=12, commit_lsn=300, commit_ts=TIME)]
    # A hole that appears meanwhile makes a plan worthless.
    stream.holes = ((10, 10),)
    drain(follower)
    assert lake.ranges == [(1, 8), (11, 16), (17, 24)]
    assert [(gap.first, gap.last) for gap in loader.healed] == [(9, 10)]


def test_a_stream_that_is_shorter_than_what_was_applied_is_waited_for() -> None:
    """At the beginning and later on: the bridge sends again what NATS lost."""
    with pytest.raises(StreamShorter):
        follow(MemoryStream([4]), MemoryLake(mark(8)))
    stream = MemoryStream([4, 4])
    follower = follow(stream, MemoryLake())
    follower.step(None)
    stream.transactions.pop()

    with pytest.raises(StreamShorter, match="applied stream sequence 8, but the stream ends at 4"):
        follower.step(None)


def stand_at(stream: MemoryStream, transactions: list[int]) -> tuple[Follower, MemoryLake, Any]:
    """A lake that has applied these transactions of a stream that holds others by now."""
    before = MemoryStream(transactions)
    lake, loader = MemoryLake(), MemoryLoader()
    follower = follow(before, lake, loader, max_messages=100)
    follower.step(None)
    lake.reached = {"7/1/slot": Rung(lake.batches[-1].commit_lsn, 7)}
    lake.cuts = Watermark(lake.batches[-1].last, lake.batches[-1].commit_lsn, TIME)
    return follow(stream, lake, loader, max_messages=100), lake, loader


def test_a_stream_whose_numbers_did_not_change_is_read_on() -> None:
    follower, lake, loader = stand_at(MemoryStream([4, 4, 4]), [4, 4])

    drain(follower)

    assert lake.ranges == [(1, 8), (9, 12)]
    assert not loader.healed


def test_changes_that_moved_below_what_was_applied_are_missing() -> None:
    """A message was not sent again, so the next transaction begins one number too early."""
    follower, lake, loader = stand_at(MemoryStream([3, 4, 4, 4]), [4, 4])

    drain(follower)

    assert [(gap.first, gap.last) for gap in loader.healed] == [(8, 8)]
    assert lake.ranges == [(1, 8), (9, 15)]
    assert lake.dropped


def test_changes_that_moved_up_are_not_applied_again() -> None:
    """A message more was stored: the lake stands one number higher, and nothing is missing."""
    follower, lake, loader = stand_at(MemoryStream([5, 4, 4]), [4, 4])

    drain(follower)

    assert lake.ranges == [(1, 8), (10, 13)]
    assert not loader.healed


def test_a_rolled_back_stream_is_noticed_by_a_lake_that_runs() -> None:
    """NATS may be back, and full again, between two looks."""
    stream, lake, loader = MemoryStream([4, 4]), MemoryLake(), MemoryLoader()
    follower = follow(stream, lake, loader, max_messages=100)
    follower.step(None)
    lake.reached = {"7/1/slot": Rung(200, 7)}
    stream.transactions[:] = [3, 4, 4]

    drain(follower)

    assert [(gap.first, gap.last) for gap in loader.healed] == [(8, 8)]


def test_an_interrupted_batch_whose_numbers_changed_is_a_gap() -> None:
    """Some tables have it and others not, and no number tells which any more."""
    lake, loader = MemoryLake(Watermark(4, 100, TIME), (Watermark(8, 200, TIME),)), MemoryLoader()
    lake.reached = {"7/1/slot": Rung(100, 7)}

    drain(follow(MemoryStream([4, 5, 4]), lake, loader, max_messages=100))

    assert [(gap.first, gap.last) for gap in loader.healed] == [(5, 9)]
    assert lake.ranges == [(10, 13)]


def test_where_several_sources_stand_in_a_rolled_back_stream_is_not_known() -> None:
    follower, lake, _ = stand_at(MemoryStream([3, 4, 4]), [4, 4])
    lake.reached = {**lake.reached, "8/1/other": Rung(100, 7)}

    with pytest.raises(StreamReplaced, match="several sources"):
        follower.step(None)


def test_a_lake_that_a_load_stamped_is_not_taken_for_a_rolled_back_one() -> None:
    """Before the first batch it stands at the LSN of a snapshot, which is no message's."""
    lake, loader = MemoryLake(Watermark(4, 150, TIME)), MemoryLoader()
    lake.reached = {"7/1/slot": Rung(100, 7)}

    drain(follow(MemoryStream([4, 4]), lake, loader, max_messages=100))

    assert lake.ranges == [(5, 8)]
    assert not loader.healed


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
    assert (lake.dropped, loader.closed) == (1, 1)


@pytest.mark.parametrize("loader", [None, MemoryLoader()])
def test_a_drain_that_waits_for_no_snapshot_ends_at_its_goal(loader: MemoryLoader | None) -> None:
    stream, lake = MemoryStream([4, 4, 4]), MemoryLake()
    follower = follow(stream, lake, loader, max_messages=4)

    while follower.catch_up(8):
        assert not follower.is_waiting
    follower.close()

    assert lake.ranges == [(1, 4), (5, 8)]
    assert lake.dropped == 1


class Clock:
    """Time that goes on only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(app, "time", clock)
    return clock


def test_what_operators_alert_on_is_counted(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.go(100)
    stream = MemoryStream([4, 4, 4])
    lake = MemoryLake(while_applying=lambda: clock.go(3))
    follower = follow(stream, lake, max_messages=8)

    follower.step(None)

    meter = follower.meter
    assert (meter.stream_end, meter.applied, meter.batches, meter.messages) == (12, 8, 1, 8)
    assert meter.last_seconds == 3
    assert "stream_sequence=8" in capsys.readouterr().out
    stream.transactions += [4]
    follower.step(8)
    assert (meter.stream_end, meter.batches) == (16, 1)


def test_dead_letters_are_counted_every_so_often_and_tables_every_time(clock: Clock) -> None:
    stream, lake = MemoryStream([4], dead=1), MemoryLake()
    follower = follow(stream, lake)
    seen = []

    for seconds in (0, app.OBSERVE_SECONDS - 1, 1):
        clock.go(seconds)
        stream.dead += 1
        follower.observe()
        seen.append(follower.meter.dead_letters)

    assert seen == [2, 2, 4]
    assert (follower.meter.parked, follower.meter.snapshots_waiting) == (("a",), 2)


class Stop(Event):
    """Set after so many waits, which it remembers; no time passes."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after
        self.waits: list[float] = []
        self.while_waiting: Callable[[], None] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        self.while_waiting()
        if len(self.waits) >= self._after:
            self.set()
        return self.is_set()


@dataclass
class Program:
    """The program with doubles of everything it opens."""

    config: LakeConfig
    stream: MemoryStream
    lake: MemoryLake
    loader: MemoryLoader
    sessions: list[Any] = field(default_factory=list)
    rounds: int = 0
    cared: list[Any] = field(default_factory=list)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lake(*_: object, **options: object) -> MemoryLake:
            self.lake.options = options
            return self.lake

        def care() -> None:
            self.rounds += 1

        rounds = SimpleNamespace(begin=lambda *_: SimpleNamespace(between_batches=care))
        caring = SimpleNamespace(maintain=lambda *given, **known: self.cared.append((given, known)))
        for name, double in {
            "CdcStream": lambda _: self.stream,
            "open_session": self.sessions.append,
            "Lake": lake,
            "Loader": lambda *_, **__: self.loader,
            "Rounds": rounds,
            "maintaining": caring,
        }.items():
            monkeypatch.setattr(app, name, double)


@pytest.fixture
def program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Program:
    flags = {"warehouse": str(tmp_path / "deep" / "lake"), "interval": "10", "max_messages": "4"}
    config = read_config(flags, {}, {})
    program = Program(config, MemoryStream([4, 4]), MemoryLake(), MemoryLoader())
    program.stand_in(monkeypatch)
    return program


def test_a_drain_applies_all_there_is_and_leaves_nothing_open(program: Program) -> None:
    ready: list[str] = []
    stop = Stop(after=9)

    app.drain(program.config, stop, lambda: ready.append("ready"))

    assert program.lake.ranges == [(1, 4), (5, 8)]
    assert (stop.waits, ready) == ([], ["ready"])
    assert (program.lake.dropped, program.loader.closed, program.stream.is_closed) == (1, 1, True)
    assert program.stream.has_consumer
    assert program.lake.options["can_load"]
    assert [session.short for session in program.sessions] == [True]


def test_a_drain_says_what_it_could_not_apply_yet(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bridge is still storing the transaction that the stream ends with."""
    monkeypatch.setattr(program.stream, "look", lambda _: Mark(
        commit_lsn=100, ordinal=0, last=False, commit_ts=TIME
    ))  # fmt: skip

    app.drain(program.config, Stop(after=9))

    assert 'msg="the stream ends inside a transaction" messages=' in capsys.readouterr().out
    assert program.lake.ranges == []


def test_a_drain_waits_while_a_snapshot_is_due(program: Program) -> None:
    program.loader.due = True
    stop = Stop(after=9)

    def comes() -> None:
        program.loader.due = len(stop.waits) < 3

    stop.while_waiting = comes

    app.drain(program.config, stop)

    assert stop.waits == [LOOK_SECONDS] * 3


def test_a_drain_that_is_stopped_begins_no_batch(program: Program) -> None:
    stop = Stop(after=9)
    stop.set()

    app.drain(program.config, stop)

    assert program.lake.ranges == []
    assert program.lake.dropped == 1


def test_a_catalog_file_gets_its_folder_once(program: Program) -> None:
    for _ in range(2):
        app.drain(program.config, Stop(after=9))
        assert program.config.catalog.sqlite_file is not None
        assert program.config.catalog.sqlite_file.parent.is_dir()


def test_a_run_follows_and_waits_from_commit_to_commit(program: Program, clock: Clock) -> None:
    """A commit every interval, however long it took; where there is nothing, a look every while."""
    clock.go(500)
    taken = iter([3.0, 30.0])
    program.lake.while_applying = lambda: clock.go(next(taken))
    stop = Stop(after=3)

    app.run(program.config, stop)

    assert program.lake.ranges == [(1, 4), (5, 8)]
    assert stop.waits == [7.0, 0.0, app.POLL_SECONDS]
    assert program.rounds == 3
    assert [mark.stream_sequence for mark in program.loader.loaded] == [0, 4, 8]
    assert (program.lake.dropped, program.loader.closed, program.stream.is_closed) == (1, 1, True)
    assert [session.short for session in program.sessions] == [False]


def test_a_run_counts_what_operators_alert_on(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.stream.dead = 5
    meters: list[Meter] = []
    monkeypatch.setattr(app, "Endpoints", lambda meter, _: meters.append(meter))

    app.run(program.config, Stop(after=1))

    assert [meter.dead_letters for meter in meters] == [5]


def test_a_run_waits_for_the_bridge_to_make_the_stream_and_says_so_once(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    program.stream.missing = 3
    stop = Stop(after=4)

    app.run(program.config, stop)

    assert stop.waits[:3] == [app.POLL_SECONDS] * 3
    assert capsys.readouterr().out.count("waiting for the stream") == 1
    assert program.lake.ranges == [(1, 4)]


def test_a_run_goes_on_from_where_the_tables_are_after_an_outage(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch that failed half way is taken again by what the tables say, not by memory."""

    def start(options: object) -> object:
        program.sessions.append(options)
        return object()

    monkeypatch.setattr(app, "open_session", start)
    troubles: list[Exception] = [NatsUnreachable("away"), OSError(errno.ENOSPC, "full")]

    def trouble() -> None:
        if troubles:
            raise troubles.pop(0)
        program.lake.cuts = mark(4)

    program.lake.while_applying = trouble

    app.run(program.config, Stop(after=3))

    assert program.lake.ranges == [(1, 4)]
    assert len(program.sessions) == 1, "Spark is started once"
    assert (program.lake.dropped, program.loader.closed) == (3, 3)
    said = capsys.readouterr().out
    assert (said.count("outage began"), said.count("outage over")) == (2, 1)


def test_a_run_that_is_stopped_before_there_is_a_stream_opens_nothing(program: Program) -> None:
    program.stream.missing = 3

    app.run(program.config, Stop(after=2))

    assert program.sessions == []
    assert program.stream.is_closed


def test_care_by_hand_is_given_to_the_tables_named_with_its_own_budget(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Reader:
            return self

        def __exit__(self, *_: object) -> None: ...
        def names(self) -> list[str]:
            return ["users"]

    monkeypatch.setattr(app, "LakeReader", Reader)

    app.maintain(program.config, ["users"], budget=7.0)

    [((_, options, tables), known)] = program.cared
    assert (options.budget_seconds, tables, known) == (7.0, ["users"], {"known": ["users"]})
    assert [session.short for session in program.sessions] == [True]


@dataclass
class ReopenedStream(MemoryStream):
    """One whose last message opens a session, at a place of another database."""

    @property
    def marks(self) -> list[Mark]:
        session = Mark(commit_lsn=7, ordinal=0, last=True, commit_ts=TIME, is_session=True)
        return [*super().marks, session]


def test_the_lake_passes_a_session_by_and_stays_at_its_commit() -> None:
    """A cut at the place that such a message names would be no state of the database."""
    lake = MemoryLake()
    follower = follow(ReopenedStream([2]), lake)
    while follower.step(None):
        pass
    alone = MemoryLake(cuts=Watermark(2, 100, TIME))
    assert follow(ReopenedStream([2]), alone).step(None)

    assert [(batch.last, batch.commit_lsn) for batch in lake.batches] == [(3, 100)]
    assert [(batch.last, batch.commit_lsn) for batch in alone.batches] == [(3, 100)]

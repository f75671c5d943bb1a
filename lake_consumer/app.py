"""The program: follow the stream, batch by batch.

One loop serves `run` and `drain`; what `run` survives and `drain` does not is in `outages`. The
tables say where to begin (`watermark`), the stream where a batch ends (`batches`) and where it is
broken (`gaps`), and the durable consumer is moved only when a batch is in. Between batches `loader`
looks after tables that need a snapshot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from pyspark.sql import SparkSession

from lake_consumer import maintaining
from lake_consumer.batches import Batch, BatchLimits, Mark, Pace, plan_batch
from lake_consumer.config import LakeConfig
from lake_consumer.errors import MessagesMissing, StreamMissing, StreamShorter
from lake_consumer.exporter import Endpoints, serving
from lake_consumer.forks import ForkMark
from lake_consumer.gaps import Gap, next_gap
from lake_consumer.iceberg.lake import Applied, Lake
from lake_consumer.iceberg.reading import LakeReader, read_statuses
from lake_consumer.jetstream.stream import CdcStream, StreamState
from lake_consumer.loader import LOOK_SECONDS, Loader
from lake_consumer.logs import info, warn
from lake_consumer.maintaining import Rounds
from lake_consumer.metrics import Meter, Remembered
from lake_consumer.outages import Outages
from lake_consumer.rollback import find_rollback
from lake_consumer.session import SessionOptions, open_session
from lake_consumer.watermark import Watermark, plan_resume
from schemas.positions import Lsn
from schemas.streams import CDC_STREAM

POLL_SECONDS = 1.0
SHORT_DRAIN = 5_000_000
"""Up to so many messages Java's optimising compiler takes more than it gives: rows are worked on in
Python's Arrow, and the JVM only hands blocks about. A drain of 2,000,000 took it 33 s, not 57."""
OBSERVE_SECONDS = 15.0
"""How often the stream of dead letters is asked for its length."""
AHEAD_MESSAGES = 20_000
"""Fewer are read in no time, and more may come until it is their turn."""


def session_options(config: LakeConfig, *, short: bool) -> SessionOptions:
    return SessionOptions(
        short=short,
        master=config.spark_master,
        warehouse=config.warehouse,
        catalog=config.catalog,
        format=config.table_format,
        driver_memory=config.driver_memory,
        extra=config.spark_conf,
    )


def drain(config: LakeConfig, stop: Event, on_ready: Callable[[], None] = lambda: None) -> None:
    """Catch up with the stream's end as it is now, and finish every snapshot that is due."""
    with closing(CdcStream(config.nats)) as stream:
        state = stream.state()
        goal = state.last
        spark = _start(config, on_ready, short=state.messages < SHORT_DRAIN)
        follower = _open(config, stream, spark)
        while not stop.is_set() and follower.catch_up(goal):
            if follower.is_waiting:
                stop.wait(LOOK_SECONDS)
        follower.close()
        if follower.applied < goal and not stop.is_set():
            warn("the stream ends inside a transaction", messages=goal - follower.applied,
                 meaning="its changes are in the lake when all of it is stored",
                 remedy="run drain again")  # fmt: skip
        info("drained", applied=follower.applied, stream_end=goal)


def run(config: LakeConfig, stop: Event, on_ready: Callable[[], None] = lambda: None) -> None:
    """Follow the stream until told to stop; the batch under way is finished first."""
    meter = Meter()
    outages = Outages(meter, stop)
    running = Running(config, stop, on_ready, meter, outages)
    tables = Remembered(
        lambda: read_statuses(config.catalog, config.warehouse),
        is_away=lambda: meter.outage_attempts > 0,
    )
    with serving(config.metrics, Endpoints(meter, tables)):
        outages.survive(running.follow)
    info("stopped", applied=meter.applied)


@dataclass(slots=True)
class Running:
    """What stays from one session of `run` to the next, between which there was an outage."""

    config: LakeConfig
    stop: Event
    on_ready: Callable[[], None]
    meter: Meter
    outages: Outages
    spark: SparkSession | None = None
    rounds: Rounds | None = None

    def follow(self) -> None:
        """Begin where the tables are, and follow until told to stop."""
        with closing(CdcStream(self.config.nats)) as stream:
            _await_stream(stream, self.stop)
            if self.stop.is_set():
                return
            if self.spark is None:
                self.spark = _start(self.config, self.on_ready, short=False)
            follower = _open(self.config, stream, self.spark, self.meter)
            try:
                self._turn_round(follower)
            except Exception:
                # What failed is told by the failure itself; the next session begins anew.
                with contextlib.suppress(Exception):
                    follower.close()
                raise
            follower.close()

    def _turn_round(self, follower: Follower) -> None:
        rounds = self.rounds = self.rounds or Rounds.begin(self.config.care, self.meter)
        while not self.stop.is_set():
            began = time.monotonic()
            # First: the bridge takes the snapshots asked for while the batch is applied.
            follower.load()
            full = follower.step(None)
            follower.observe()
            self.outages.over()
            rounds.between_batches()
            pause = POLL_SECONDS if not full else self.config.interval_seconds
            self.stop.wait(max(0.0, pause - (time.monotonic() - began)))


def maintain(config: LakeConfig, tables: Sequence[str], *, budget: float) -> None:
    """Care for the lake once; `run` does it by itself."""
    with LakeReader(config.catalog, config.warehouse) as lake:
        known = lake.names()
    spark = open_session(session_options(config, short=True))
    options = replace(config.care, budget_seconds=budget)
    maintaining.maintain(spark, options, tables, known=known)


def _await_stream(stream: CdcStream, stop: Event) -> None:
    said = False
    while not stop.is_set():
        try:
            stream.state()
            return
        except StreamMissing as missing:
            if not said:
                info("waiting for the stream", reason=missing, remedy="start the bridge")
                said = True
            stop.wait(POLL_SECONDS)


def _start(config: LakeConfig, on_ready: Callable[[], None], *, short: bool) -> SparkSession:
    if (file := config.catalog.sqlite_file) is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    spark = open_session(session_options(config, short=short))
    on_ready()
    return spark


def _open(
    config: LakeConfig, stream: CdcStream, spark: SparkSession, meter: Meter | None = None
) -> Follower:
    began = time.monotonic()
    lake = Lake(
        spark,
        config.nats,
        stream.shape,
        side_by_side=config.side_by_side,
        dead_letters=config.dead_letters,
        first_sight=config.first_sight,
        can_load=True,
        store=config.catalog.store,
    )
    loader = Loader(stream, lake, patience_seconds=config.patience_seconds)
    follower = Follower(config.limits, stream, lake, loader, meter)
    stream.ensure_durable()
    info("ready", seconds=time.monotonic() - began, applied=follower.applied)
    return follower


class Follower:
    """Applies one batch after another, from where the tables say they are."""

    def __init__(
        self,
        limits: BatchLimits,
        stream: CdcStream,
        lake: Lake,
        loader: Loader | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._pace = Pace(limits)
        self._stream = stream
        self._lake = lake
        self._loader = loader
        self.meter = meter or Meter()
        self._mark, tables = lake.watermarks()
        state = stream.state()
        resume = plan_resume(self._mark, tables.values(), state.first, state.last)
        self._interrupted_end = resume.interrupted_end
        self._interrupted = max(tables.values(), default=None)
        self._marked_gap: int | None = None
        self._fork: ForkMark | None = None
        self.applied = resume.first - 1
        self._next: Batch | None = None
        self.is_waiting = False
        self._observed_at = -OBSERVE_SECONDS
        if loader is not None:
            loader.see_tables(self.applied)

    def step(self, goal: int | None) -> bool:
        """Apply the next batch up to `goal` (or the stream's end); False where there is none."""
        state = self._stream.state()
        self.meter.looked(state.last, self.applied)
        self._check_anchor(state)
        newest = state.last if goal is None else goal
        gap = self._find_gap(state, newest)
        batch = self._plan(state, newest if gap is None else gap.first - 1, gap)
        if batch is None:
            return self._cross(gap)
        began = time.monotonic()
        self._pace.applied(batch.messages, state.last - batch.last)
        self._next = self._following(batch, state, newest, gap)
        applied = self._lake.apply(batch, self._next)
        self._stream.move_durable(batch.last)
        self.applied = batch.last
        self._mark = Watermark(batch.last, batch.commit_lsn, batch.commit_ts)
        self._interrupted_end = None
        seconds = time.monotonic() - began
        self.meter.took(batch, changes=applied.changes, bytes=applied.bytes, seconds=seconds)
        _report(batch, applied, state, seconds)
        return True

    def observe(self) -> None:
        """Let the meter know what operators alert on."""
        states = self._lake.states
        self.meter.parked = tuple(map(str, states.parked()))
        self.meter.snapshots_waiting = len(states.loading())
        if time.monotonic() - self._observed_at >= OBSERVE_SECONDS:
            self._observed_at = time.monotonic()
            self.meter.dead_letters = self._stream.dead_letters()

    def close(self) -> None:
        """Leave nothing under way."""
        if self._loader is not None:
            self._loader.close()
        self._lake.drop_ahead()

    def load(self) -> bool:
        """Look after tables that wait for a snapshot; False where none could be loaded."""
        if self._loader is None or self._interrupted_end is not None:
            return False
        at_mark = self._mark.stream_sequence == self.applied
        return self._loader.step(self._mark if at_mark else Watermark(self.applied, 0))

    def catch_up(self, goal: int) -> bool:
        """Go one step towards `goal` with every mirror loaded; False when there."""
        # First: the bridge takes the snapshots that are asked for while the batch is applied.
        loaded = self.load()
        # Where a snapshot is due the goal may lie behind it, and in the middle of a transaction.
        loading = self._loader is not None and bool(self._loader.tables)
        stepped = self.step(None if loading else goal)
        self.is_waiting = not stepped and not loaded
        if self.is_waiting and self._loader is not None and self._loader.tables:
            self._loader.wait()
            return True
        return not self.is_waiting

    def _check_anchor(self, state: StreamState) -> None:
        """Make sure that the stream holds what was applied; where it was rolled back, go on there.

        What its sequences mean has changed then, up to where the lake stands at least.
        """
        if state.last < self.applied:
            raise StreamShorter.than(self.applied, state.last)
        anchor = self._anchor()
        if anchor is None or not anchor.commit_lsn or state.last == self.applied:
            return
        is_one_source = len(self._lake.reached) <= 1
        same = find_rollback(self._stream, state, anchor, is_one_source=is_one_source)
        if same is None:
            return
        self._lake.drop_ahead()
        self._next, first = None, same + 1
        if self._interrupted_end is not None:
            # Some tables have that batch and others not, and no number tells which any more.
            first, self._interrupted_end = self.applied + 1, None
        self.applied = max(same, anchor.stream_sequence)
        self._mark = Watermark(self.applied, 0)
        if first > anchor.stream_sequence:
            warn("NATS lost messages and has them again under other numbers: nothing is missing",
                 applied=anchor.stream_sequence, found_at=same)  # fmt: skip
            return
        lost = Gap(first, self.applied, "NATS lost messages, and their numbers are used again")
        if self._loader is None:
            raise MessagesMissing(f"stream {CDC_STREAM.name} lacks sequence {lost}: {lost.why}")
        self._loader.heal(lost)

    def _anchor(self) -> Watermark | None:
        """What the newest commits to the lake say of the stream; None if that is not known."""
        if self._interrupted_end is not None:
            return self._interrupted
        # A load that ends before a first batch stamps the lake with the LSN of its snapshot.
        reached = {rung.commit_lsn for rung in self._lake.reached.values()}
        is_known = self._mark.stream_sequence == self.applied and self._mark.commit_lsn in reached
        return self._mark if is_known else None

    def _find_gap(self, state: StreamState, newest: int) -> Gap | None:
        first = self.applied + 1
        if self._marked_gap is None or self._marked_gap < first:
            self._marked_gap = self._stream.gap_mark(first)
        if self._fork is None or self._fork.sequence < first:
            self._fork = self._stream.fork_mark(first)
        gap = next_gap(first, state.first, state.holes, self._marked_gap, self._fork)
        return gap if gap is not None and gap.first <= newest else None

    def _plan(self, state: StreamState, newest: int, gap: Gap | None) -> Batch | None:
        first, end = self.applied + 1, self._interrupted_end
        if end is not None and (gap is None or gap.first > end):
            info("taking an interrupted batch again", first=first, last=end)
            return plan_batch(first, end, end - first + 1, self._stream.look, self._before())
        if end is not None:
            # Broken inside: its tables begin anew behind the gap, whatever they have of it.
            return None
        if self._next is not None and self._next.first == first and self._next.last <= newest:
            return self._next
        count = self._pace.messages(state.mean_bytes)
        return plan_batch(first, newest, count, self._stream.look, self._before())

    def _before(self) -> Mark | None:
        """The commit that the lake stands at; None where messages are missing behind it."""
        mark = self._mark
        if mark.stream_sequence != self.applied or not mark.commit_ts:
            return None
        return Mark(commit_lsn=mark.commit_lsn, ordinal=0, last=True, commit_ts=mark.commit_ts)

    def _following(
        self, batch: Batch, state: StreamState, newest: int, gap: Gap | None
    ) -> Batch | None:
        """The batch behind this one, where there is a backlog: it is read meanwhile."""
        end = newest if gap is None else gap.first - 1
        if end - batch.last < AHEAD_MESSAGES:
            return None
        count = self._pace.messages(state.mean_bytes)
        before = Mark(commit_lsn=batch.commit_lsn, ordinal=0, last=True, commit_ts=batch.commit_ts)
        return plan_batch(batch.last + 1, end, count, self._stream.look, before)

    def _cross(self, gap: Gap | None) -> bool:
        """Go on behind a gap, if there is one; False where the stream is just not longer."""
        if gap is None:
            return False
        missing = replace(gap, first=self.applied + 1, fork=None)
        if self._loader is None:
            raise MessagesMissing(f"stream {CDC_STREAM.name} lacks sequence {missing}: {gap.why}")
        if gap.fork is None:
            self._loader.heal(missing)
        else:
            if missing.first < gap.first and self._is_foreign(gap.fork):
                self._loader.heal(replace(missing, last=gap.first - 1))
            self._loader.cross_fork(gap.fork)
        self.applied = gap.last
        if self._interrupted_end is not None and self._interrupted_end <= gap.last:
            self._interrupted_end = None
        return True

    def _is_foreign(self, fork: ForkMark) -> bool:
        """Whether what could not be applied before a fork may be of another source.

        PostgreSQL may die in the middle of a transaction: what is stored of it never happened.
        """
        # A batch that a version before this one began may reach across the fork.
        return self._interrupted_end is not None or not self._lake.reached.keys() <= {fork.source}


def _report(batch: Batch, applied: Applied, state: StreamState, seconds: float) -> None:
    behind = datetime.now(UTC) - datetime.fromisoformat(batch.commit_ts)
    info(
        "batch applied",
        messages=batch.messages,
        changes=applied.changes,
        tables=applied.tables,
        bytes=applied.bytes,
        seconds=seconds,
        read_seconds=applied.read_seconds,
        write_seconds=applied.write_seconds,
        rate=f"{batch.messages / seconds:.0f}/s",
        stream_sequence=batch.last,
        commit_lsn=Lsn(batch.commit_lsn),
        behind_messages=max(0, state.last - batch.last),
        behind_seconds=max(0.0, behind.total_seconds()),
    )

"""The program: follow the stream, batch by batch.

One loop serves `run` and `drain`. Where to begin is asked of the tables (`watermark`), where a
batch ends of the stream (`batches`), where the stream is broken of `gaps`, and the durable consumer
is moved only when a batch is in. Between batches `loader` looks after tables that need a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from lake_consumer import maintaining
from lake_consumer.batches import Batch, BatchLimits, Pace, plan_batch
from lake_consumer.config import LakeConfig
from lake_consumer.errors import MessagesMissing, StreamMissing
from lake_consumer.exporter import Endpoints, serving
from lake_consumer.gaps import Gap, next_gap
from lake_consumer.iceberg.lake import Applied, Lake
from lake_consumer.iceberg.reading import LakeReader, read_statuses
from lake_consumer.jetstream.stream import CdcStream, StreamState
from lake_consumer.loader import LOOK_SECONDS, Loader
from lake_consumer.logs import info
from lake_consumer.maintaining import Rounds
from lake_consumer.metrics import Meter, Remembered
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
        follower = _open(config, stream, on_ready, short=state.messages < SHORT_DRAIN)
        while not stop.is_set() and follower.catch_up(goal):
            if follower.is_waiting:
                stop.wait(LOOK_SECONDS)
        follower.close()
        info("drained", applied=follower.applied, stream_end=goal)


def run(config: LakeConfig, stop: Event, on_ready: Callable[[], None] = lambda: None) -> None:
    """Follow the stream until told to stop; the batch under way is finished first."""
    with closing(CdcStream(config.nats)) as stream:
        _await_stream(stream, stop)
        if stop.is_set():
            return
        follower = _open(config, stream, on_ready, short=False)
        rounds = Rounds.begin(config.care, follower.meter)
        tables = Remembered(lambda: read_statuses(config.catalog, config.warehouse))
        with serving(config.metrics, Endpoints(follower.meter, tables)):
            while not stop.is_set():
                began = time.monotonic()
                # First: the bridge takes the snapshots asked for while the batch is applied.
                follower.load()
                full = follower.step(None)
                follower.observe()
                rounds.between_batches()
                pause = POLL_SECONDS if not full else config.interval_seconds
                stop.wait(max(0.0, pause - (time.monotonic() - began)))
        follower.close()
        info("stopped", applied=follower.applied)


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


def _open(
    config: LakeConfig, stream: CdcStream, on_ready: Callable[[], None], *, short: bool
) -> Follower:
    if (file := config.catalog.sqlite_file) is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    spark = open_session(session_options(config, short=short))
    on_ready()
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
    follower = Follower(config.limits, stream, lake, loader)
    stream.ensure_durable()
    info("ready", seconds=time.monotonic() - began, applied=follower.applied)
    return follower


class Follower:
    """Applies one batch after another, from where the tables say they are."""

    def __init__(
        self, limits: BatchLimits, stream: CdcStream, lake: Lake, loader: Loader | None = None
    ) -> None:
        self._pace = Pace(limits)
        self._stream = stream
        self._lake = lake
        self._loader = loader
        self.meter = Meter()
        self._mark, tables = lake.watermarks()
        state = stream.state()
        resume = plan_resume(self._mark, tables.values(), state.first, state.last)
        self._interrupted_end = resume.interrupted_end
        self._marked_gap: int | None = None
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
        newest = state.last if goal is None else goal
        gap = self._find_gap(state, newest)
        batch = self._plan(state, newest if gap is None else gap.first - 1, gap)
        if batch is None:
            return self._cross(gap)
        began = time.monotonic()
        self._pace.applied(batch.messages, max(0, state.last - batch.last))
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

    def _find_gap(self, state: StreamState, newest: int) -> Gap | None:
        first = self.applied + 1
        if self._marked_gap is None or self._marked_gap < first:
            self._marked_gap = self._stream.gap_mark(first)
        gap = next_gap(first, state.first, state.holes, self._marked_gap)
        return gap if gap is not None and gap.first <= newest else None

    def _plan(self, state: StreamState, newest: int, gap: Gap | None) -> Batch | None:
        first, end = self.applied + 1, self._interrupted_end
        if end is not None and (gap is None or gap.first > end):
            info("taking an interrupted batch again", first=first, last=end)
            return plan_batch(first, end, end - first + 1, self._stream.look)
        if end is not None:
            # Broken inside: its tables begin anew behind the gap, whatever they have of it.
            return None
        if self._next is not None and self._next.first == first and self._next.last <= newest:
            return self._next
        return plan_batch(first, newest, self._pace.messages(state.mean_bytes), self._stream.look)

    def _following(
        self, batch: Batch, state: StreamState, newest: int, gap: Gap | None
    ) -> Batch | None:
        """The batch behind this one, where there is a backlog: it is read meanwhile."""
        end = newest if gap is None else gap.first - 1
        if end - batch.last < AHEAD_MESSAGES:
            return None
        count = self._pace.messages(state.mean_bytes)
        return plan_batch(batch.last + 1, end, count, self._stream.look)

    def _cross(self, gap: Gap | None) -> bool:
        """Go on behind a gap, if there is one; False where the stream is just not longer."""
        if gap is None:
            return False
        missing = Gap(self.applied + 1, gap.last, gap.why)
        if self._loader is None:
            raise MessagesMissing(f"stream {CDC_STREAM.name} lacks sequence {missing}: {gap.why}")
        self._loader.heal(missing)
        self.applied = gap.last
        if self._interrupted_end is not None and self._interrupted_end <= gap.last:
            self._interrupted_end = None
        return True


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

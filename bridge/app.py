"""Puts the parts together: one process, one slot, sessions one after the other."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

from nats.js import JetStreamContext

from bridge import VERSION
from bridge.catalogwatch import CatalogWatch
from bridge.config import BridgeConfig
from bridge.continuity import SIGN_OF_LIFE_SECONDS, Continuity
from bridge.errors import (
    BridgeError,
    ChainBroken,
    HistoryForked,
    SinkRefused,
    SlotBusy,
    SlotGone,
    SlotLost,
    SourceLost,
    SourceStopping,
)
from bridge.gaps import gap_message, leaves_gap
from bridge.history import StoredEnd
from bridge.http.server import HttpServer
from bridge.jetstream import control
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.fence import Fence, Means
from bridge.jetstream.lane import Lane
from bridge.jetstream.oversize import OversizeStore
from bridge.jetstream.provision import oversize_spec, provision
from bridge.jetstream.registry import Registry
from bridge.jetstream.sources import SourceStore
from bridge.jetstream.stored_times import read_stored_since
from bridge.metrics import metrics_line
from bridge.options import Durability
from bridge.pipeline import Pipeline
from bridge.postgres import catalog, connection
from bridge.postgres.slot import (
    CreateSlot,
    ResumeFrom,
    Slot,
    create_slot,
    drop_slot,
    find_slot,
    plan_slot,
)
from bridge.postgres.slotwatch import SlotWatcher, seconds_left
from bridge.postgres.storage import read_all
from bridge.postgres.walstream import WalStream
from bridge.pressing import ChangePresses
from bridge.progress import Progress
from bridge.relations import shape_of
from bridge.shapebook import Catalog, ShapeBook, adopt_table
from bridge.snapshot.service import serve_snapshots
from bridge.snapshot.taking import SnapshotMeans
from bridge.sources import SourceId, may_take
from bridge.status import SlotWatch, Status
from bridge.supervisor import supervise
from bridge.tablememory import TableMemory
from bridge.tail_check import TailCheck
from bridge.tasks import end, until_first
from schemas.codecs import CODECS, Codec
from schemas.events import Place
from schemas.names import TableName
from schemas.positions import Lsn

WATCH_EVERY_SECONDS = 5.0
METRICS_EVERY_SECONDS = 15.0
SHUTDOWN_SECONDS = 15.0
FAREWELL_SECONDS = 4.0
"""What a snapshot that is cut short gets to tell those who wait for it."""

_log = logging.getLogger("bridge")


async def run(config: BridgeConfig) -> None:
    """Run until SIGTERM, SIGINT or POST /shutdown; raise what cannot heal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    status = Status(config.slot, config.publication)
    http = HttpServer(
        config.http, status, stop, lambda name: control.describe_stream(config.nats, name)
    )
    address = await http.start()
    _log.info("walbridge %s: slot %s, http on %s", VERSION, config.slot, address)
    try:
        bridge = Bridge(config, status, stop)
        await _until_stopped(bridge, stop)
    finally:
        await http.close()
    _log.info("stopped; confirmed up to %s", Lsn(status.confirmed_lsn))


async def _until_stopped(bridge: Bridge, stop: asyncio.Event) -> None:
    """Give a stop a bounded time to publish and confirm, whatever the servers do."""
    running = asyncio.create_task(bridge.run(), name="bridge")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        bridge.status.state = "stopping"
        done, _ = await asyncio.wait({running}, timeout=SHUTDOWN_SECONDS)
        if not done:
            _log.warning("gave up draining after %.0f s; the rest is sent next time",
                         SHUTDOWN_SECONDS)  # fmt: skip
            await end({running})
            return
    await running


async def _quietly(close: Callable[[], Awaitable[None]]) -> None:
    """Close what may be broken already; why the session ends is told by what broke it."""
    try:
        await close()
    except Exception as error:
        _log.debug("closing: %s", error)


class Pulse:
    """Gives PostgreSQL a sign of life now and then, however often it is called."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._last = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= SIGN_OF_LIFE_SECONDS:
            self._last = now
            self._beat()


def _place_before(lsn: Lsn) -> Place:
    """Give the place of a message before everything that the slot sends from a position on."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    before = max(0, lsn - 1)
    return Place(lsn=before, commit_lsn=before, commit_ts=now, xid=0, seq=0, last=True)


class Bridge:
    """Runs sessions: each connects, finds out where to go on, and streams."""

    def __init__(self, config: BridgeConfig, status: Status, stop: asyncio.Event) -> None:
        self.status = status
        self._config = config
        self._stop = stop
        self._codec: Codec = CODECS[config.format]
        self._may_chain = True
        self._lost_at: Lsn | None = None
        """Where the slot stood when PostgreSQL said that it cannot send its WAL."""

        self._tails = TailCheck(config.nats, status)

    async def run(self) -> None:
        beside = {
            asyncio.create_task(self._report(), name="report"),
            asyncio.create_task(self._watch_between_sessions(), name="watch between sessions"),
        }
        try:
            await supervise(
                self._session_or_recreate,
                status=self.status,
                stop=self._stop,
                start_timeout=self._config.start_timeout,
            )
        finally:
            await end(beside)

    async def _session_or_recreate(self) -> None:
        try:
            await self._session()
        except ChainBroken:
            self._may_chain = False
            raise
        except SlotLost as lost:
            if self._config.on_lost_slot == "stop":
                raise
            self._lost_at = Lsn(self.status.confirmed_lsn)
            raise SlotGone(str(lost)) from lost

    async def _session(self) -> None:
        config = self._config
        async with AsyncExitStack() as stack:
            source = await connection.connect(config.postgres)
            stack.push_async_callback(_quietly, source.close)
            with connection.translated(config.postgres):
                await catalog.check_source(source, config.publication)
            nats = await control.connect(config.nats)
            stack.push_async_callback(_quietly, nats.close)
            js = nats.jetstream(timeout=control.REQUEST_TIMEOUT_SECONDS)
            hold = await self._provision(js)
            oversize = OversizeStore(nats, js, oversize_spec(config.streams))
            with connection.translated(config.postgres):
                ours = await catalog.source_id(source, config.slot)
            dictionaries = DictionaryStore(js, config.nats)
            registry = Registry(js, self._codec, oversize, dictionaries, str(ours))
            sources = SourceStore(js, str(ours))
            continuity = Continuity(config, registry, sources, ours, self.status)
            shared = not self._may_chain
            if not await self._slot(source, js, registry, continuity, ours):
                return
            watch, memory, known = await self._register_tables(source, registry, ours)
            tables = [seen.name for seen in memory.seen.values()]
            lane = await Lane.open(config.nats, config.limits.ack_timeout)
            stack.push_async_callback(_quietly, lane.close)
            wal = await WalStream.open(
                config.postgres, slot=config.slot, publication=config.publication
            )
            stack.push_async_callback(_quietly, wal.close)
            # Only now is the slot ours alone, so only now do it and the stream's end stand still.
            # Where a chain begins is asked first: the look-up may miss what is stored behind that.
            start_lsn = await self._confirmed(source)
            pulse = Pulse(lambda: wal.confirm(start_lsn))
            means = Means(
                tables=tables,
                first_place=_place_before(start_lsn),
                demand_slot=lambda: self._demand_slot(source, wal),
                meanwhile=pulse,
                stop=self._stop,
            )
            fence = Fence(js, registry, means)
            with control.translated(config.nats):
                opening = await fence.open(shared=shared)
            if opening is None:
                return
            opening.tie(lane)
            await stack.enter_async_context(
                continuity.marking_forks(wal.history, start_lsn, opening)
            )
            stored = await continuity.stored_end(source, wal, tables, pulse)
            await self._tails.check(
                registry, sources, ours=ours, start_lsn=start_lsn, stored=stored, opening=opening
            )
            with control.translated(config.nats):
                since = await read_stored_since(
                    nats, registry, tables, stored.position, hold, meanwhile=pulse
                )
                progress = Progress(start_lsn, hold=hold, stored=since)
            stack.callback(self._tails.remember, lane, progress, stored.position)
            await self._demand_slot(source, wal)
            pipeline = Pipeline(
                source=wal,
                sink=lane,
                shapes=ShapeBook(
                    source,
                    registry,
                    known=known,
                    memory=memory,
                    config=config,
                    status=self.status,
                ),
                oversize=oversize,
                source_id=str(ours),
                progress=progress,
                stored=stored,
                codec=self._codec,
                limits=config.limits,
                status=self.status,
                presses=self._presses(dictionaries, hold),
            )
            serving = asyncio.create_task(
                self._serve_snapshots(ours, pipeline.is_proven), name="snapshots"
            )
            stack.push_async_callback(end, {serving}, patience=FAREWELL_SECONDS)
            self._streaming(start_lsn, stored)
            keeping = [self._tails.keep(sources, lane, progress, stored.position)]
            if shared:
                keeping.append(self._keep(fence, lane))
            await self._stream(pipeline, watch, keeping)
            await self._tails.keep_now(sources, lane, progress, stored.position)

    async def _stream(
        self,
        pipeline: Pipeline,
        watch: CatalogWatch,
        keeping: Iterable[Coroutine[None, None, None]],
    ) -> None:
        """Run the pipeline, and what watches beside it, until one of them ends."""
        watchers = {
            asyncio.create_task(self._watch(), name="watch"),
            asyncio.create_task(watch.run(pipeline), name="catalog"),
            *(asyncio.create_task(each, name="keeping") for each in keeping),
        }
        running = asyncio.create_task(pipeline.run(self._stop), name="pipeline")
        try:
            await until_first({*watchers, running})
        finally:
            await end({*watchers, running})
        await watch.settle(pipeline)

    def _presses(self, dictionaries: DictionaryStore, hold: timedelta) -> ChangePresses | None:
        if self._config.zstd != "all":
            return None
        return ChangePresses(dictionaries, self._codec.content_type, hold)

    async def _serve_snapshots(self, ours: SourceId, is_proven: asyncio.Event) -> None:
        """Serve snapshots beside the pipeline; whatever happens there stays there.

        Not of a server that may not be the one whose changes the stream holds.
        """
        await is_proven.wait()
        config = self._config
        await serve_snapshots(
            SnapshotMeans(
                postgres=config.postgres,
                nats=config.nats,
                publication=config.publication,
                source_id=str(ours),
                codec=self._codec,
                publish=config.limits,
                limits=config.snapshots,
                zstd=config.zstd != "off",
                oversize=oversize_spec(config.streams),
            ),
            self.status,
        )

    async def _provision(self, js: JetStreamContext) -> timedelta:
        """Make streams and buckets, and say how long an ack must age before it counts."""
        with control.translated(self._config.nats):
            await provision(js, self._config.streams)
        durability = choose_durability(self._config.durability)
        self.status.durability = durability
        return self._config.sync_interval if durability == "synced" else timedelta(0)

    async def _slot(
        self,
        source: catalog.Connection,
        js: JetStreamContext,
        registry: Registry,
        continuity: Continuity,
        ours: SourceId,
    ) -> bool:
        """Find the slot, or create it after a mark of what it cannot give; False if to stop.

        Whatever can reject this start is checked first: it must leave neither mark nor slot.
        """
        name = self._config.slot
        with connection.translated(self._config.postgres):
            plan = await self._plan_slot(source)
            if not isinstance(plan, CreateSlot):
                self.status.confirmed_lsn = plan.confirmed_lsn
                return True
            live = await catalog.live_slots(source)
            published = await catalog.published_tables(source, self._config.publication)
            names = [TableName(t.relation.schema, t.relation.table) for t in published]
            await self._demand_ours(names, registry, ours, live)
            try:
                await continuity.check_before_slot(source)
            except HistoryForked:
                if self._config.on_fork == "stop":
                    raise
                if not await self._mark_fork(source, js, registry, continuity, names):
                    return False
            await self._mark_gap(await catalog.wal_end(source), registry, ours, live)
            if plan.lost:
                await drop_slot(source, plan.lost)
            _log.info("making slot %s", name)
            await create_slot(source, name)
            self._lost_at = None
            return True

    async def _plan_slot(self, source: catalog.Connection) -> CreateSlot | ResumeFrom:
        name, recreate = self._config.slot, self._config.on_lost_slot == "recreate"
        with connection.translated(self._config.postgres):
            found = await find_slot(source, name)
        return plan_slot(name, found, recreate=recreate, lost_at=self._lost_at)

    async def _mark_fork(
        self,
        source: catalog.Connection,
        js: JetStreamContext,
        registry: Registry,
        continuity: Continuity,
        tables: Iterable[TableName],
    ) -> bool:
        """Mark a fork while there is no slot, which ends the session; False if to stop.

        Another bridge may be about to create the slot: what it stores rejects the mark.
        """

        async def demand_no_slot() -> None:
            if not isinstance(await self._plan_slot(source), CreateSlot):
                raise SlotBusy(f"another bridge created slot {self._config.slot} meanwhile")

        means = Means(
            tables=tables,
            first_place=_place_before(await catalog.wal_end(source)),
            demand_slot=demand_no_slot,
            meanwhile=lambda: None,
            stop=self._stop,
        )
        with control.translated(self._config.nats):
            opening = await Fence(js, registry, means).open(shared=not self._may_chain)
        if opening is None:
            return False
        await demand_no_slot()
        await continuity.mark_before_slot(source, opening)
        return True

    async def _demand_ours(
        self,
        tables: Iterable[TableName],
        registry: Registry,
        ours: SourceId,
        live: Collection[str],
    ) -> None:
        with control.translated(self._config.nats):
            entries = await registry.latest_entries()
        for table in tables:
            latest = entries.get(table)
            demand_ours(table, latest.source if latest else None, ours, live)

    async def _confirmed(self, source: catalog.Connection) -> Lsn:
        """Ask where the slot is, now that no other session can move it."""
        with connection.translated(self._config.postgres):
            found = await find_slot(source, self._config.slot)
        if found is None or found.confirmed_lsn is None:
            raise SourceLost(f"slot {self._config.slot} is on another server than the catalog")
        return found.confirmed_lsn

    async def _mark_gap(
        self, wal_end: Lsn, registry: Registry, ours: SourceId, live: Collection[str]
    ) -> None:
        with control.translated(self._config.nats):
            owners = [entry.source for entry in (await registry.latest_entries()).values()]
            if not leaves_gap(owners, ours, live):
                return
            _log.error(
                "the slot that published these tables before is gone: changes are missing from the"
                " stream up to %s; the gap is marked there, and consumers need new snapshots",
                wal_end,
            )
            await registry.publish(gap_message(ours, wal_end))

    async def _register_tables(
        self, source: catalog.Connection, registry: Registry, ours: SourceId
    ) -> tuple[CatalogWatch, TableMemory, Catalog]:
        """Write the shape of every published table to KV, unless it is somebody else's."""
        config = self._config
        with connection.translated(config.postgres):
            oldest_running = await catalog.oldest_running(source)
            reading, published = await read_all(source, config.publication)
            live = await catalog.live_slots(source)
        shapes = {t.relation.relation_id: shape_of(t.relation, t.facts) for t in published}
        if not shapes:
            _log.warning("publication %s has no tables yet", config.publication)
        with control.translated(config.nats):
            entries = await registry.remembered_entries()
            memory = TableMemory(registry.forgotten)
            watch = CatalogWatch(config, registry, memory, ours, self.status)
            for shape in shapes.values():
                latest = entries.get(shape.name)
                demand_ours(shape.name, latest.source if latest else None, ours, live)
            watch.begin(shapes, reading, entries)
            # No change after `seen_at` is older than the shapes: it was asked behind the catalog.
            for shape in shapes.values():
                latest = entries.get(shape.name)
                await registry.register_current(memory.dress(shape), reading.seen_at, latest)
        self.status.tables.clear()
        for shape in shapes.values():
            adopt_table(shape, self.status)
        known = Catalog.of(published, map(memory.filled, shapes.values()), oldest_running)
        return watch, memory, known

    async def _keep(self, fence: Fence, lane: Lane) -> None:
        with control.translated(self._config.nats):
            await fence.keep(lane)

    async def _demand_slot(self, source: catalog.Connection, wal: WalStream) -> None:
        """Make sure that nobody has taken the slot while we were busy, or frozen."""
        with connection.translated(self._config.postgres):
            found = await find_slot(source, self._config.slot)
        if found is None or found.active_pid != wal.pid:
            # PostgreSQL may have ended the stream by itself, because WAL is missing for example.
            await wal.explain_end()
            raise SourceLost(
                f"slot {self._config.slot} is not ours any more: process"
                f" {found.active_pid if found else None} reads it, not {wal.pid}",
                advice="The session that has the slot goes on; this one connects again.",
            )

    def _streaming(self, start_lsn: Lsn, stored: StoredEnd) -> None:
        self.status.state = "streaming"
        self.status.sessions += 1
        # One session goes in batches behind a broken chain; who broke it may be gone when it ends.
        self._may_chain = True
        self.status.confirmed_lsn = start_lsn
        self.status.last_error = None
        _log.info(
            "streaming from %s; the stream holds changes up to %s; durability %s",
            start_lsn,
            Lsn(stored.position.commit_lsn),
            self.status.durability,
        )

    async def _watch(self) -> None:
        """Look at the slot now and then, over a connection that may fail without harm."""
        watcher = SlotWatcher()
        while True:
            try:
                async with await connection.connect(self._config.postgres) as source:
                    while True:
                        await self._look(source, watcher)
                        await asyncio.sleep(WATCH_EVERY_SECONDS)
            except (SlotLost, SourceStopping):
                raise
            except BridgeError as error:
                _log.log(logging.DEBUG if isinstance(error, SourceLost) else logging.WARNING,
                         "cannot look at the slot: %s", error)  # fmt: skip
                await asyncio.sleep(WATCH_EVERY_SECONDS)

    async def _watch_between_sessions(self) -> None:
        """Look at the slot while no session streams too: that is when WAL piles up."""
        watcher = SlotWatcher()
        while True:
            await asyncio.sleep(WATCH_EVERY_SECONDS)
            if self.status.connected:
                continue
            try:
                async with await connection.connect(self._config.postgres) as source:
                    await self._look(source, watcher)
            except BridgeError as error:
                # The next session finds the same, and decides what to do about it.
                _log.debug("cannot look at the slot: %s", error)

    async def _look(self, source: catalog.Connection, watcher: SlotWatcher) -> None:
        with connection.translated(self._config.postgres):
            found = await find_slot(source, self._config.slot)
        if found is None:
            raise SlotLost(f"slot {self._config.slot} was dropped while the bridge was reading it")
        self._show(found, watcher)
        for warning in watcher.judge(found):
            _log.warning(warning)

    def _show(self, slot: Slot, watcher: SlotWatcher) -> None:
        now = time.time()
        watcher.wal_rate.add(slot.wal_end, slot.looked_at)
        self.status.lag.looked(slot.wal_end, slot.looked_at)
        self.status.watch = SlotWatch(
            active=slot.active_pid is not None,
            confirmed_lsn=slot.confirmed_lsn or 0,
            lag_bytes=slot.lag_bytes or 0,
            retained_bytes=slot.retained_bytes or 0,
            wal_status=slot.wal_status,
            safe_wal_size=slot.safe_wal_size,
            seconds_left=seconds_left(slot.safe_wal_size, watcher.wal_rate.bytes_per_second),
            looked_at=now,
            clock_ahead=slot.looked_at - now,
        )

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY_SECONDS)
            _log.info(metrics_line(self.status))


def demand_ours(table: TableName, owner: str | None, ours: SourceId, live: Collection[str]) -> None:
    if not may_take(owner, ours, live):
        raise SinkRefused(
            f"table {table} is already in this stream, from slot {owner} (system/database/slot),"
            f" and this bridge reads {ours}",
            advice="Publish a table through one slot only, or give this bridge a NATS account of"
            " its own. If the other is gone for good, purge the stream and"
            f" nats kv del schemas {table.token}.",
        )


def choose_durability(wanted: Durability) -> Durability:
    """Settle `auto`: an acknowledgement alone is durable only where the operator says so.

    Replicas do not make it so. Two of three servers acknowledge; if one of them comes back with an
    older disk and the other is cut off, the two that are left agree on a stream without it.
    """
    return "synced" if wanted == "auto" else wanted

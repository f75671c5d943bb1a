"""Watches the catalog for DDL that sends no changes, and tells consumers.

A slow poll compares what the catalog says of all published tables with what it said before. Tables
that join or leave the publication, are dropped or renamed, and tables whose rows may have changed
without change messages are announced between transactions, once the WAL has been read up to where
the catalog was read: until then older changes may follow.

KV comes first and the stream second. What a mark was based on is remembered only when the mark is
safe in the stream (what a slot may confirm), and an entry is deleted only then: a crash in between,
of the bridge or of the server, repeats a message and loses none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bridge.config import BridgeConfig
from bridge.errors import BridgeError, SourceStopping
from bridge.jetstream import control
from bridge.jetstream.registry import Registry, ShapeEntry
from bridge.pipeline import Insertion, Pipeline
from bridge.postgres import connection
from bridge.postgres.catalog import Connection, PublishedTable, live_slots
from bridge.postgres.storage import Reading, read_all, read_storage, relation_names
from bridge.relations import shape_of
from bridge.repeats import Repeats
from bridge.sources import SourceId, may_take
from bridge.status import Status
from bridge.storage import NOTHING_KNOWN
from bridge.tablememory import Seen, TableMemory
from schemas.ddl import DDL_EVENTS, DdlEvent, DdlKind, format_ddl
from schemas.events import LogicalMessage, Place, ShapeChange
from schemas.names import TableName
from schemas.shapes import TableShape
from schemas.subjects import DDL_PREFIX

LOOKS_AT_ONCE = 10
"""How often a look is repeated that a change of shape in the WAL has overtaken."""

SHARE_OF_TIME = 20
"""A poll that takes long is repeated less often: it costs a twentieth of the time at most."""

LONGEST_PAUSE = 60.0
"""Acting on a look waits until the WAL is read so far, which may take hours and costs nothing."""

_log = logging.getLogger("bridge")


@dataclass(slots=True)
class _Plan:
    """What one look at the catalog leads to."""

    events: list[DdlEvent] = field(default_factory=list)
    shapes: list[TableShape] = field(default_factory=list)
    renamed: dict[int, TableName] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    forget: set[TableName] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Due:
    """What to write to KV once so many messages are safe."""

    sent: int
    remember: Mapping[int, Seen]
    forget: Collection[TableName]


class CatalogWatch:
    """The watch of one session."""

    def __init__(
        self,
        config: BridgeConfig,
        registry: Registry,
        memory: TableMemory,
        ours: SourceId,
        status: Status,
    ) -> None:
        self._config = config
        self._registry = registry
        self._memory = memory
        self._ours = ours
        self._status = status
        self._stale: dict[TableName, int] = {}
        self._news: set[int] = set()
        self._foreign: set[int] = set()
        self._forget: set[TableName] = set()
        self._due: deque[_Due] = deque()
        self._repeats = Repeats()

    def begin(
        self,
        published: Mapping[int, TableShape],
        reading: Reading,
        entries: Mapping[TableName, ShapeEntry],
    ) -> None:
        """Compare the catalog at a session's start with what KV remembers."""
        memory, ours = self._memory, str(self._ours)
        known = {name: entry for name, entry in entries.items() if entry.source == ours}
        for name, entry in known.items():
            if self._is_stale(entry, published.get(entry.shape.relation_id), known):
                self._stale[name] = entry.shape.relation_id
        older = {relation_id: known[name].storage for name, relation_id in self._stale.items()}
        for name, entry in known.items():
            if name in self._stale:
                continue
            relation_id = entry.shape.relation_id
            found = reading.tables.get(relation_id)
            # A session that ended while it reported a rename left the storage under the old name.
            storage = entry.storage or older.get(relation_id) or (found.storage if found else None)
            memory.recall(entry.shape, storage or NOTHING_KNOWN)
            if entry.storage is None and entry.shape.rewritten:
                memory.owe(relation_id, "an earlier announcement may not have been stored")
        for relation_id, shape in published.items():
            before, now = memory.seen.get(relation_id), reading.tables[relation_id].storage
            if known and before is None:
                self._news.add(relation_id)
            memory.assess(shape, now, is_watched=False)
            if relation_id not in memory.owed:
                self._registry.recall(shape.name, now)
            elif before is not None:
                self._registry.recall(shape.name, before.storage)

    def _is_stale(
        self,
        entry: ShapeEntry,
        now: TableShape | None,
        known: Mapping[TableName, ShapeEntry],
    ) -> bool:
        """Whether a table has an entry under its present name as well as under this older one."""
        if now is None or now.name == entry.shape.name or now.name not in known:
            return False
        return known[now.name].shape.relation_id == entry.shape.relation_id

    async def run(self, pipeline: Pipeline) -> None:
        """Look again and again, over a connection that may fail without harm."""
        pause = self._config.catalog_poll.total_seconds()
        while True:
            try:
                async with await connection.connect(self._config.postgres) as source:
                    while True:
                        started = time.monotonic()
                        await self._look(source, pipeline)
                        took = time.monotonic() - started
                        await asyncio.sleep(max(pause, min(took * SHARE_OF_TIME, LONGEST_PAUSE)))
            except SourceStopping:
                raise
            except BridgeError as error:
                self._failed(error)
                await asyncio.sleep(pause)

    def _failed(self, error: BridgeError) -> None:
        """Say that the watch is blind; any other exception ends the session."""
        self._status.catalog_error = str(error)
        if self._repeats.may_say(str(error)):
            _log.warning("cannot watch the catalog, so DDL that sends no changes is not reported:"
                         " %s %s", error, error.advice)  # fmt: skip

    async def _look(self, source: Connection, pipeline: Pipeline) -> None:
        with connection.translated(self._config.postgres):
            reading = await read_storage(source, self._config.publication)
            if self._differs(reading):
                for _ in range(LOOKS_AT_ONCE):
                    if await self._act(source, pipeline):
                        break
        await self.settle(pipeline)
        self._status.catalog_error = None

    async def _act(self, source: Connection, pipeline: Pipeline) -> bool:
        """Tell consumers of what is different; False if that is outdated by then."""
        version = self._memory.version
        publication = self._config.publication
        reading, published = await read_all(source, publication, is_patient=False)
        gone = [one for one in self._memory.seen if one not in reading.tables]
        names = await relation_names(source, gone)
        live = await live_slots(source)
        await pipeline.reached(reading.seen_at)
        async with pipeline.learning:
            if self._memory.version != version:
                return False
            plan = await self._plan(reading, published, names, live)
            await self._carry_out(plan, pipeline)
        return True

    def _differs(self, reading: Reading) -> bool:
        memory = self._memory
        if memory.owed or self._news or self._stale:
            return True
        tables = reading.tables.items()
        if any(memory.other_name(one, table.name) for one, table in tables):
            return True
        now = {one: Seen(table.name, table.storage) for one, table in tables}
        return {one: seen for one, seen in now.items() if one not in self._foreign} != memory.seen

    async def _plan(
        self,
        reading: Reading,
        published: list[PublishedTable],
        names: Mapping[int, TableName],
        live: Collection[str],
    ) -> _Plan:
        plan, memory = _Plan(), self._memory
        held = {table.name for table in reading.tables.values()}
        for relation_id in [one for one in memory.seen if one not in reading.tables]:
            self._plan_gone(plan, relation_id, names.get(relation_id), held)
        for name, relation_id in self._stale.items():
            plan.events.append(_renamed(relation_id, name, reading.tables[relation_id].name))
            plan.forget |= {name} - held
        for table in published:
            relation_id = table.relation.relation_id
            shape = shape_of(table.relation, table.facts)
            if relation_id in reading.tables and await self._is_ours(shape, live):
                self._plan_table(plan, shape, reading, held)
        return plan

    def _plan_gone(
        self, plan: _Plan, relation_id: int, now: TableName | None, held: Collection[TableName]
    ) -> None:
        """Say what became of a table that is in the publication no more."""
        name = self._memory.seen[relation_id].name
        last = now or self._memory.last_name(relation_id)
        if last != name:
            plan.events.append(_renamed(relation_id, name, last))
        kind: DdlKind = "drop" if now is None else "unpublish"
        plan.events.append(DdlEvent(kind, relation_id, last))
        plan.gone.append(relation_id)
        plan.forget |= self._memory.names(relation_id) - set(held)

    def _plan_table(
        self, plan: _Plan, shape: TableShape, reading: Reading, held: Collection[TableName]
    ) -> None:
        relation_id, memory = shape.relation_id, self._memory
        before = memory.seen.get(relation_id)
        is_new = before is None or relation_id in self._news
        storage = reading.tables[relation_id].storage
        if memory.assess(shape, storage, is_watched=True):
            self._registry.recall(shape.name, storage)
        if is_new:
            self._news.add(relation_id)
            plan.events.append(DdlEvent("publish", relation_id, shape.name))
        elif older := memory.other_name(relation_id, shape.name):
            plan.events.append(_renamed(relation_id, older, shape.name))
            plan.renamed[relation_id] = shape.name
            plan.forget |= memory.names(relation_id) - set(held)
        newest = self._registry.newest(shape.name)
        is_announced = newest is not None and newest.fingerprint == shape.fingerprint
        if is_new or relation_id in memory.owed or not is_announced:
            plan.shapes.append(memory.dress(shape))

    async def _is_ours(self, shape: TableShape, live: Collection[str]) -> bool:
        """Whether we may publish a table that joined; another bridge may have it."""
        relation_id = shape.relation_id
        if relation_id in self._memory.seen or relation_id in self._foreign:
            return relation_id not in self._foreign
        with control.translated(self._config.nats):
            owner = await self._registry.owner(shape.name)
        if may_take(owner, self._ours, live):
            return True
        self._foreign.add(relation_id)
        _log.error("table %s joined the publication and is in the stream from slot %s already:"
                   " it is not announced; publish a table through one slot only",
                   shape.name, owner)  # fmt: skip
        return False

    async def _carry_out(self, plan: _Plan, pipeline: Pipeline) -> None:
        """Register shapes, then queue the messages: the rest of the state changes with those."""
        memory, insertions = self._memory, list[Insertion]()
        for at in range(0, len(plan.events), DDL_EVENTS):
            insertions.append(self._ddl_message(plan.events[at : at + DDL_EVENTS]))
        with control.translated(self._config.nats):
            for shape in plan.shapes:
                insertions.append(await self._announcement(shape, pipeline))
        for event in plan.events:
            _log.info("ddl: %s %s%s", event.kind, event.name,
                      f" to {event.new_name}" if event.new_name else "")  # fmt: skip
        for shape in plan.shapes:
            if reasons := memory.tell(shape):
                _log.warning("table %s needs a new snapshot: %s", shape.name, "; ".join(reasons))
            self._status.tables.add(str(shape.name))
        for relation_id, name in plan.renamed.items():
            memory.rename(relation_id, name)
        for relation_id in plan.gone:
            is_name_free = memory.seen[relation_id].name in plan.forget
            memory.forget(relation_id, is_name_free=is_name_free)
        self._status.tables -= set(map(str, plan.forget))
        self._news.clear()
        self._stale.clear()
        self._forget |= plan.forget
        pipeline.insert(*insertions)

    async def _announcement(self, shape: TableShape, pipeline: Pipeline) -> Insertion:
        revision = await self._registry.register(shape, pipeline.read_lsn)
        source = str(self._ours)

        def announce(place: Place) -> ShapeChange:
            return ShapeChange(
                shape=shape, place=place, schema_revision=revision, source=source, alone=True
            )

        return announce

    def _ddl_message(self, events: list[DdlEvent]) -> Insertion:
        content, source = format_ddl(events), str(self._ours)

        def message(place: Place) -> LogicalMessage:
            return LogicalMessage(
                prefix=DDL_PREFIX, content=content, transactional=False, place=place, source=source
            )

        return message

    async def settle(self, pipeline: Pipeline) -> None:
        """Write to KV what consumers have been told of, as far as that is safe."""
        async with pipeline.learning:
            if not pipeline.is_inserting:
                remember, forget = self._memory.take_due(), self._forget
                self._forget = set()
                if remember or forget:
                    self._due.append(_Due(pipeline.sent, remember, forget))
            with control.translated(self._config.nats):
                while self._due and self._due[0].sent <= pipeline.safe:
                    await self._write(self._due[0])
                    self._due.popleft()

    async def _write(self, due: _Due) -> None:
        names = {seen.name for seen in self._memory.seen.values()}
        for relation_id, seen in due.remember.items():
            await self._registry.remember(seen.name, relation_id, seen.storage)
        for name in due.forget:
            if name not in names:
                await self._registry.forget(name)


def _renamed(relation_id: int, name: TableName, now: TableName) -> DdlEvent:
    return DdlEvent("rename", relation_id, name, now)

"""The shapes of tables, as the pipeline asks for them: the catalog and the registry together.

At a session's start the catalog is asked about all published tables at once. That answer serves
every change of a transaction that had ended before the question, so a backlog over a thousand
tables asks nothing more; for a later one the catalog is asked again, because the table may have
been altered in between. An altered table was locked until whoever altered it was seen by everybody,
and whoever changed its rows afterwards began to do so later: so the change's own transaction tells.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from bridge.attnums import is_later
from bridge.claims import Claims
from bridge.config import BridgeConfig
from bridge.jetstream import control
from bridge.jetstream.registry import Registry
from bridge.postgres import catalog, connection
from bridge.postgres.storage import (
    LOCK_TIMEOUT,
    NO_WAIT,
    TableReading,
    read_table,
    relation_states,
    until_visible,
)
from bridge.protocol.messages import Relation
from bridge.relations import TableFacts, is_settled, shape_of
from bridge.repeats import Repeats
from bridge.status import Status
from bridge.storage import TableStorage
from bridge.tablememory import TableMemory
from schemas.ddl import DdlEvent, DdlKind
from schemas.events import Place
from schemas.names import TableName
from schemas.shapes import TableShape

WAIT_AGAIN_SECONDS = 10.0
"""How long the lock of a table is not waited for again after a wait in vain."""

_log = logging.getLogger("bridge")


@dataclass(frozen=True, slots=True)
class Catalog:
    """What the catalog said of the published tables, and since when that may be outdated."""

    tables: dict[int, TableFacts] = field(default_factory=dict)
    oldest_running: int = 0
    """Every transaction with a lower id had ended before the catalog was read."""

    shapes: dict[int, tuple[Relation, TableShape]] = field(default_factory=dict)
    """What these tables look like, and to what description of the WAL that belongs."""

    @classmethod
    def of(
        cls,
        published: Sequence[catalog.PublishedTable],
        shapes: Iterable[TableShape],
        oldest_running: int,
    ) -> Catalog:
        relations = {table.relation.relation_id: table.relation for table in published}
        return cls(
            {table.relation.relation_id: table.facts for table in published},
            oldest_running,
            {
                shape.relation_id: (_flagged(relations[shape.relation_id], shape), shape)
                for shape in shapes
            },
        )

    def shape(self, relation: Relation, xid: int) -> TableShape | None:
        """Give the shape for a transaction's changes, where what was read serves it."""
        facts = self.find(relation, xid)
        if facts is None:
            return None
        described, shape = self.shapes.get(relation.relation_id, (None, None))
        # Made anew it would be the same; kept, it has its fingerprint already.
        return shape if described == relation else shape_of(relation, facts, xid)

    def find(self, relation: Relation, xid: int) -> TableFacts | None:
        """Give what was read, where nothing can have changed up to the end of this transaction."""
        facts = self.tables.get(relation.relation_id)
        if facts is None or not is_later(self.oldest_running, xid):
            return None
        has_types = all(
            (column.type_oid, column.type_modifier) in facts.type_names
            for column in relation.columns
        )
        return facts if has_types and is_settled(relation, facts, xid) else None


def _flagged(relation: Relation, shape: TableShape) -> Relation:
    """Describe a table as the WAL does where the replica identity is its key, as it mostly is."""
    key = {column.name for column in shape.key}
    columns = (replace(column, part_of_key=column.name in key) for column in relation.columns)
    return replace(relation, columns=tuple(columns))


class ShapeBook:
    """The catalog and the registry as the pipeline sees them."""

    def __init__(
        self,
        source: catalog.Connection,
        registry: Registry,
        *,
        known: Catalog,
        memory: TableMemory,
        config: BridgeConfig,
        status: Status,
    ) -> None:
        self._source = source
        self._registry = registry
        self._known = known
        self._memory = memory
        self._config = config
        self._status = status
        self._claims = Claims()
        self._overtaken_in: dict[int, tuple[int, TableStorage | None]] = {}
        """By table, the transaction whose DDL was last marked without a look at the shape that it
        made, and what the catalog said of the table then."""

        self._locked_at: dict[int, float] = {}
        """When waiting for the lock of a table was last in vain."""

        self._repeats = Repeats()

    async def shape(self, relation: Relation, place: Place) -> TableShape:
        if known := self._known.shape(relation, place.xid):
            return self._memory.dress(known)
        with connection.translated(self._config.postgres):
            await until_visible(self._source, place.xid)
            read = await read_table(self._source, self._config.publication, relation)
        if read.relation is not None and read.storage is None:
            self._memory.glimpse(relation.relation_id, TableName(relation.schema, relation.table))
        if is_settled(relation, read.facts, place.xid):
            shape = shape_of(relation, read.facts, place.xid)
            if read.storage is None or read.name != shape.name:
                return self._memory.dress(shape)
            if not read.storage.is_covered_by(shape):
                # Columns were added since; their fills are read with the shape that has them.
                return self._memory.dress_older(shape, read.storage)
            if self._memory.assess(shape, read.storage, is_watched=True):
                self._registry.recall(shape.name, read.storage)
            return self._memory.dress(shape)
        with control.translated(self._config.nats):
            name = TableName(relation.schema, relation.table)
            before = await self._registry.shape_before(relation.relation_id, name, place.lsn)
        shape = shape_of(relation, read.facts, place.xid, before)
        return self._memory.dress_older(shape, read.storage)

    async def altered(
        self, relation_id: int, place: Place, kinds: Collection[DdlKind]
    ) -> TableShape | None:
        """Look at a table that DDL touched; None if there is nothing to announce.

        One that is gone, renamed or altered again by now cannot be described as it was here. If its
        rows may read otherwise since, consumers learn that at this place, with the shape they know.
        """
        if relation_id not in self._memory.seen:
            return None
        if not self._claims.may_look(relation_id, place.xid, kinds):
            return None
        with connection.translated(self._config.postgres):
            await until_visible(self._source, place.xid)
            read = await self._read(relation_id)
        name = self._memory.last_name(relation_id)
        if read.relation is None or read.storage is None or read.name != name:
            return await self._overtaken(relation_id, read.storage, place, kinds)
        if not is_settled(read.relation, read.facts, place.xid):
            return await self._overtaken(relation_id, read.storage, place, kinds)
        shape = shape_of(read.relation, read.facts)
        self._memory.assess(shape, read.storage, is_watched=True, is_rewritten="rewrite" in kinds)
        return self._memory.dress(shape)

    async def _read(self, relation_id: int) -> TableReading:
        """Read a table, and wait for its lock at most once in a while.

        Changes wait meanwhile, and any role can have a locked table looked at.
        """
        now = time.monotonic()
        may_wait = now - self._locked_at.get(relation_id, -math.inf) >= WAIT_AGAIN_SECONDS
        read = await read_table(
            self._source,
            self._config.publication,
            relation_id,
            lock_timeout=LOCK_TIMEOUT if may_wait else NO_WAIT,
        )
        if not read.is_locked:
            self._locked_at.pop(relation_id, None)
        elif may_wait:
            self._locked_at[relation_id] = now
        return read

    async def _overtaken(
        self,
        relation_id: int,
        now: TableStorage | None,
        place: Place,
        kinds: Collection[DdlKind],
    ) -> TableShape | None:
        is_altered, is_rewritten = "alter" in kinds, "rewrite" in kinds
        if not (is_altered or is_rewritten):
            # It was renamed, dropped, published or not: that is told by the event itself.
            return None
        if not self._memory.may_differ(relation_id, now, is_rewritten=is_rewritten):
            return None
        before = self._overtaken_in.get(relation_id)
        if before is not None and (before[0] == place.xid or before[1] == now):
            # One statement is reported more than once, and any role can report it again. Each mark
            # would cost a snapshot, and one that follows the first mark shows what there is now.
            return None
        self._overtaken_in[relation_id] = place.xid, now
        name = self._memory.last_name(relation_id)
        with control.translated(self._config.nats):
            shape = await self._registry.shape_before(relation_id, name, place.lsn)
        return shape and replace(self._memory.filled(shape), rewritten=True)

    def described(self, relation_id: int) -> None:
        self._claims.described(relation_id)

    def truncated(self, relation_id: int, xid: int) -> None:
        self._memory.truncated(relation_id, xid)

    async def confirmed(self, events: Sequence[DdlEvent], place: Place) -> list[DdlEvent]:
        """Leave out what the catalog does not bear out: any role can write such events."""
        claims, memory = self._claims, self._memory
        if asked := claims.to_ask(events, place.xid, memory.seen):
            with connection.translated(self._config.postgres):
                await until_visible(self._source, place.xid)
                states = await relation_states(self._source, self._config.publication, asked)
            claims.learn(asked, states)
        known = list[DdlEvent]()
        for event in events:
            names = memory.names(event.relation_id)
            if claims.is_true(event, names):
                known.append(event)
            elif names and claims.is_false(event, names):
                self._doubt(event.kind, memory.seen[event.relation_id].name)
        return known

    def _doubt(self, kind: DdlKind, table: TableName) -> None:
        """Warn of a claim, by the table's own name: the one in the message is anybody's."""
        text = f"{kind} of {table}"
        if self._repeats.may_say(text):
            _log.warning("a bridge-ddl message in the WAL reports a %s, and the catalog does not"
                         " confirm it: it is left out", text)  # fmt: skip

    def told(self, shape: TableShape) -> None:
        if reasons := self._memory.tell(shape):
            _log.warning("table %s needs a new snapshot: %s", shape.name, "; ".join(reasons))

    async def register(self, shape: TableShape, lsn: int) -> int:
        adopt_table(shape, self._status)
        self._memory.announce(shape.relation_id, shape.name)
        with control.translated(self._config.nats):
            return await self._registry.register(shape, lsn)

    async def announced(self, table: TableName) -> str | None:
        with control.translated(self._config.nats):
            return await self._registry.announced(table)


def adopt_table(shape: TableShape, status: Status) -> None:
    """Show a table that is new to this session, and say so where consumers will miss its key."""
    if str(shape.name) in status.tables:
        return
    status.tables.add(str(shape.name))
    if not shape.key:
        _log.warning(
            "table %s has no key: its changes are published, and no consumer can tell"
            " which row an update or delete meant; add a primary key",
            shape.name,
        )

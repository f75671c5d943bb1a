"""The shapes of tables, as the pipeline asks for them: the catalog and the registry together.

At a session's start the catalog is asked about all published tables at once. That answer serves
every change of a transaction that had ended before the question, so a backlog over a thousand
tables asks nothing more; for a later one the catalog is asked again, because the table may have
been altered in between. An altered table was locked until whoever altered it was seen by everybody,
and whoever changed its rows afterwards began to do so later: so the change's own transaction tells.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from bridge.attnums import is_later
from bridge.config import BridgeConfig
from bridge.jetstream import control
from bridge.jetstream.registry import Registry
from bridge.postgres import catalog, connection
from bridge.postgres.storage import read_table, relation_states, until_visible
from bridge.protocol.messages import Relation
from bridge.relations import TableFacts, is_settled, shape_of
from bridge.repeats import Repeats
from bridge.status import Status
from bridge.tablememory import TableMemory
from schemas.ddl import DdlEvent, is_confirmed
from schemas.events import Place
from schemas.names import TableName
from schemas.shapes import TableShape

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
        self._repeats = Repeats()

    async def shape(self, relation: Relation, place: Place) -> TableShape:
        if known := self._known.shape(relation, place.xid):
            return self._told(known)
        with connection.translated(self._config.postgres):
            await until_visible(self._source, place.xid)
            read = await read_table(self._source, self._config.publication, relation)
        if is_settled(relation, read.facts, place.xid):
            shape = shape_of(relation, read.facts, place.xid)
            if read.storage is None or read.name != shape.name:
                return self._told(shape)
            if not read.storage.is_covered_by(shape):
                # Columns were added since; their fills are read with the shape that has them.
                return self._memory.dress_older(shape, read.storage)
            self._memory.assess(shape, read.storage, is_watched=True)
            return self._told(shape)
        with control.translated(self._config.nats):
            before = await self._registry.shape_before(relation, place.lsn)
        shape = shape_of(relation, read.facts, place.xid, before)
        return self._memory.dress_older(shape, read.storage)

    async def altered(
        self, relation_id: int, place: Place, *, is_rewritten: bool
    ) -> TableShape | None:
        """Look at a table that DDL touched, unless it is gone, renamed or altered again by now."""
        if relation_id not in self._memory.seen:
            return None
        with connection.translated(self._config.postgres):
            await until_visible(self._source, place.xid)
            read = await read_table(self._source, self._config.publication, relation_id)
        name = self._memory.seen[relation_id].name
        if read.relation is None or read.storage is None or read.name != name:
            return None
        if not is_settled(read.relation, read.facts, place.xid):
            return None
        shape = shape_of(read.relation, read.facts)
        self._memory.assess(shape, read.storage, is_watched=True, is_rewritten=is_rewritten)
        return self._told(shape)

    def truncated(self, relation_id: int, xid: int) -> None:
        self._memory.truncated(relation_id, xid)

    async def confirmed(self, events: Sequence[DdlEvent], place: Place) -> list[DdlEvent]:
        """Leave out what the catalog does not bear out: any role can write such events."""
        with connection.translated(self._config.postgres):
            await until_visible(self._source, place.xid)
            ids = sorted({event.relation_id for event in events})
            states = await relation_states(self._source, self._config.publication, ids)
        known = [event for event in events if is_confirmed(event, states.get(event.relation_id))]
        for event in events:
            if event not in known:
                self._doubt(event)
        return known

    def _doubt(self, event: DdlEvent) -> None:
        text = f"{event.kind} of {event.name}"
        if self._repeats.may_say(text):
            _log.warning("a bridge-ddl message in the WAL reports a %s, and the catalog does not"
                         " confirm it: it is left out", text)  # fmt: skip

    def _told(self, shape: TableShape) -> TableShape:
        """Give a shape as it is announced now: consumers are owed nothing more of it."""
        dressed = self._memory.dress(shape)
        if reasons := self._memory.owed.get(shape.relation_id):
            _log.warning("table %s needs a new snapshot: %s", shape.name, "; ".join(reasons))
        self._memory.tell(shape.relation_id)
        return dressed

    async def register(self, shape: TableShape, lsn: int) -> int:
        adopt_table(shape, self._status)
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

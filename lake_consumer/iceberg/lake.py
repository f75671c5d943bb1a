"""One batch into the lake: every table it touches, then the cut that says it is complete.

The order is the promise. Tables commit first, each stamped with the batch's end; the table of cuts
commits last. Whoever dies in between finds, by the stamps, what is done and what is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from pyspark.sql import Row, SparkSession

from lake_consumer.batches import Batch
from lake_consumer.ddl_plan import DdlPlan, Former, Held, Move, Routes, routes_of
from lake_consumer.errors import OutOfOrder, ShapeUnknown
from lake_consumer.forks import ForkMark
from lake_consumer.gaps import Gap
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.ahead import BatchReader, ReadAhead, Reading, Rules
from lake_consumer.iceberg.blocks import TablePlan
from lake_consumer.iceberg.cutting import CutTable, CutWriter
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.folding import folding
from lake_consumer.iceberg.forgetting import Forgetter
from lake_consumer.iceberg.forking import ForkWriter, is_only
from lake_consumer.iceberg.mirror import MirrorBatch
from lake_consumer.iceberg.names import CUTS, LakeName, log_of, table_of_log
from lake_consumer.iceberg.snapshot_load import UNUSABLE, SnapshotLoads
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table import Cut, TableApplier
from lake_consumer.iceberg.table_ddl import TableDdl
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.iceberg.texts import find_texts
from lake_consumer.jetstream.announced import Found, notices_of, read_messages
from lake_consumer.loads import Meta
from lake_consumer.logs import warn
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.order import Owners, Reached, check_order
from lake_consumer.requests import FORGET_PREFIX, RESYNC_PREFIX, read_requests
from lake_consumer.shapes import Fallback, ShapeBook, held_revision
from lake_consumer.stores import ObjectStore
from lake_consumer.tablestates import (
    LIVE,
    REPLACED,
    FirstSight,
    TableState,
    loading,
    note_gap,
    why_no_resync,
)
from lake_consumer.watermark import EMPTY, Watermark
from schemas.names import TableName
from schemas.shapes import TableShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a batch brought: changes of rows, bytes of their messages, and tables touched."""

    changes: int
    bytes: int
    tables: int
    read_seconds: float = 0.0
    write_seconds: float = 0.0


class Lake:
    """The lake as the driver sees it; one batch at a time, its tables side by side."""

    ddl_class: type[TableDdl] = TableDdl
    loads_class: ClassVar[type[SnapshotLoads]] = SnapshotLoads

    def __init__(
        self,
        spark: SparkSession,
        nats: NatsOptions,
        fallback: Fallback,
        *,
        side_by_side: int = 4,
        dead_letters: bool = False,
        first_sight: FirstSight = "stream",
        can_load: bool = False,
        store: ObjectStore | None = None,
    ) -> None:
        self._spark = spark
        self._nats = nats
        self._tables = LakeTables(spark)
        self._files = FileAdder(self._tables, store)
        self._cuts = CutWriter(spark, self._tables, self._files)
        self._shapes = ShapeBook(self._find_shape)
        self._fallback = fallback
        self._appliers: dict[TableName, TableApplier] | None = None
        self.states = StateBook(
            self._tables,
            first_sight=first_sight,
            can_load=can_load,
            find_texts=partial(find_texts, spark),
        )
        self.ddl = self.ddl_class(spark, self._tables, self.states)
        self.loads = self.loads_class(
            spark,
            nats,
            self._tables,
            self._shapes,
            self.states,
            files=self._files,
            side_by_side=side_by_side,
        )
        self._side_by_side = side_by_side
        self._dead_letters = dead_letters
        self._reader = BatchReader(spark, nats, dead_letters)
        self._ahead = ReadAhead(self._reader)
        self._gone: set[tuple[str, int]] = set()
        self._routes: Routes = {}
        self._owners: Owners = {}
        self._reached: Reached | None = None
        self._cores = spark.sparkContext.defaultParallelism
        self._finish_renames()

    @clear_errors
    def _finish_renames(self) -> None:
        # First of all: half renamed, tables are under names that nobody must read.
        self.ddl.finish()

    @clear_errors
    def watermarks(self) -> tuple[Watermark, dict[LakeName, Watermark]]:
        """The cuts' watermark, and every other table's."""
        marks = {
            name: self._tables.watermark(self._tables.load(name)) for name in self._tables.names()
        }
        return marks.pop(CUTS, EMPTY), marks

    @clear_errors
    def apply(self, batch: Batch, following: Batch | None = None) -> Applied:
        """Bring a batch into every table it touches; what a table already has is left out.

        The `following` one is read meanwhile, where that is known already.
        """
        began = time.monotonic()
        self.states.position = batch.first - 1
        mark = Watermark(batch.last, batch.commit_lsn, batch.commit_ts)
        self._tables.set_stamp(mark, self.reached)
        announced = self._follow_messages(batch)
        reading = self._take_ahead(batch) or self._read(batch)
        read = time.monotonic()
        reached = self._check_order(reading)
        self._tables.set_stamp(mark, reached)
        if following is not None:
            self._begin_ahead(following)
        found = reading.facts()
        try:
            cuts = self._apply_tables(reading, found)
        finally:
            reading.close()
        cuts = self._advance(announced, found, cuts)
        self._cut(batch, cuts)
        self._reached = reached
        self.states.position = batch.last
        self.loads.worker.batch_at = time.monotonic()
        return Applied(
            changes=sum(cut.changes for cut in cuts),
            bytes=sum(facts.bytes for facts in found.values()),
            tables=len(cuts),
            read_seconds=read - began,
            write_seconds=time.monotonic() - read,
        )

    @property
    def reached(self) -> Reached:
        """The position that each source has reached in the lake, as the newest cut says."""
        if self._reached is None:
            self._reached = self._tables.reached()
        return self._reached

    def _check_order(self, reading: Reading) -> Reached:
        """Stop before anything of a batch is applied that does not rise."""
        try:
            return check_order(reading.stretches, self.reached)
        except OutOfOrder:
            self._discard(reading)
            raise

    @clear_errors
    def begin_loads(self, usable: Mapping[TableName, Meta]) -> dict[TableName, str]:
        """Start to load snapshots, concurrently with batches; gives why one cannot be used."""
        self.drop_ahead()
        failed: dict[TableName, str] = {}
        for table, meta in usable.items():
            try:
                self.loads.begin(table, meta)
            except UNUSABLE as error:
                failed[table] = str(error)
        return failed

    @clear_errors
    def finish_loads(self, mark: Watermark) -> list[TableName]:
        """Make loaded mirrors live as of `mark`; gives which."""
        ready = self.loads.ready()
        if not ready:
            return []
        self.drop_ahead()
        self._tables.set_stamp(mark, self.reached)

        def finish(table: TableName) -> Cut | None:
            try:
                return self.loads.finish(table, mark.stream_sequence)
            except UNUSABLE as error:
                self.loads.fail(table, error)
                return None

        with ThreadPoolExecutor(self._side_by_side) as pool:
            cuts = [cut for cut in pool.map(finish, ready) if cut is not None]
        if cuts:
            at = mark.stream_sequence
            empty = Batch(
                first=at + 1, last=at, commit_lsn=mark.commit_lsn, commit_ts=mark.commit_ts
            )
            self._cut(empty, cuts)
        for cut in cuts:
            self.states.set(cut.table, LIVE)
            # The log may have learned the snapshot's shape meanwhile: begin with what it has now.
            self._all_appliers().pop(cut.table, None)
            self._applier(cut.table).follow_held()
        return [cut.table for cut in cuts]

    @clear_errors
    def note_gap(self, gap: Gap, published: Mapping[TableName, int]) -> None:
        """Note in every change log that it lacks changes, and let every mirror be built anew.

        A table that is gone stays so, unless KV `schemas` has a newer revision `published`.
        """
        self.drop_ahead()
        self.states.position = gap.last
        if gap.is_expired:
            # Behind a fork that expired unread, positions are below those of the dead branch.
            self._reached = {}
        for table in self.states.read_all():
            log = self._tables.load(log_of(table))
            properties = self._tables.properties(log)
            noted = note_gap(properties, gap.first, gap.last)
            before = self.states.get(table)
            state = before
            if self._has_key(table):
                state = loading(f"stream sequences {gap} are missing", gap.last)
            if before.is_gone and published.get(table, 0) <= held_revision(properties):
                state = before
            self.states.set(table, state, noted)

    @clear_errors
    def cross_fork(self, fork: ForkMark, published: Mapping[TableName, int]) -> int:
        """Let the mirrors of a source be built anew, and mark what never happened; gives how much.

        States come first: from then on no reader takes a mirror for current. All of it is done
        again if the process dies before the lake is past the fork.
        """
        self.drop_ahead()
        self.states.position = fork.sequence
        tables = self.states.read_all()
        sources = {table: self._source(table) for table in tables}
        owned = [table for table in tables if sources[table] in ("", fork.source)]
        for table in owned:
            self._rebuild_after(fork, table, published)
        is_alone = is_only(fork.source, sources.values())
        dead = ForkWriter(self._spark, self._tables).mark(fork, owned, is_only_source=is_alone)
        self._reached = {**self.reached, fork.source: fork.rung}
        # Their logs have another snapshot now, and perhaps a column more.
        self._appliers = None
        return dead

    def _rebuild_after(
        self, fork: ForkMark, table: TableName, published: Mapping[TableName, int]
    ) -> None:
        before = self.states.get(table)
        revision = held_revision(self._tables.properties(self._tables.load(log_of(table))))
        # A table that was dropped from the switch on was not dropped.
        stays_gone = before.is_gone and before.lsn < fork.switch_lsn
        if stays_gone and published.get(table, 0) <= revision:
            return
        if self._has_key(table):
            self.states.set(table, loading(fork.reason_of_load, fork.sequence))

    def _source(self, table: TableName) -> str:
        properties = self._tables.properties(self._tables.load(log_of(table)))
        self._shapes.learn_properties(properties, table)
        return self._shapes.source_of(table)

    @clear_errors
    def take_resyncs(self, position: int, init_end: Callable[[], int]) -> list[TableName]:
        """Let mirrors be built anew that somebody asked for with `resync`; gives which.

        Only a snapshot that is completed from now on counts, behind what INIT holds already.
        """
        requests = read_requests(self._tables.wishes(), RESYNC_PREFIX)
        if not requests:
            return []
        self.drop_ahead()
        held = self._tables.identities()
        found = {request.table: request.find(held) for request in requests}
        state = TableState("loading", "resync was asked for", position, init_end())
        for asked, table in found.items():
            why = REPLACED
            if table is not None:
                before, has_key = self.states.get(table), self._has_key(table)
                why = why_no_resync(before, has_key=has_key)
            if table is None or why:
                warn("the mirror cannot be rebuilt", table=table or asked, reason=why)
            else:
                self.states.set(table, state)
        # Last: who dies before finds it asked for again.
        self._tables.wishes_done(request.key(RESYNC_PREFIX) for request in requests)
        return [table for table in found.values() if table is not None]

    def _has_key(self, table: TableName) -> bool:
        properties = self._tables.properties(self._tables.load(log_of(table)))
        shape = self._shapes.learn_properties(properties, table)
        return shape is not None and bool(shape.key)

    @clear_errors
    def take_forgets(self, lsn: int) -> list[TableName]:
        """Carry out requests of `forget`; gives the tables that were named."""
        forgetter = Forgetter(self._tables, self.states, self.ddl)
        requests = forgetter.requests()
        if not requests:
            return []
        self.drop_ahead()
        found = []
        for request in requests:
            with self.loads.worker.naming:
                table = forgetter.forget(request, lsn)
            if table is None:
                continue
            found.append(table)
            self._all_appliers().pop(table, None)
            if self._tables.exists(log_of(table)):
                self._applier(table).follow_held()
        # Last: who dies before finds it requested again.
        self._tables.wishes_done(request.key(FORGET_PREFIX) for request in requests)
        return found

    def is_renamed(self, table: TableName, revision: int) -> bool:
        """Whether a table that KV `schemas` knows is one of the lake's under another name."""
        fields = self._fallback(table, revision)
        return fields is not None and self._elsewhere(fields) is not None

    def _elsewhere(self, fields: Mapping[str, Any]) -> Held | None:
        return self.ddl.elsewhere(TableShape.from_map(fields), str(fields.get("source", "")))

    def _follow_messages(self, batch: Batch) -> set[TableName]:
        """Follow what the batch says of its tables, before it is decoded: names, shapes, ends.

        Gives the tables whose shapes it announces.
        """
        messages = read_messages(self._nats, batch.first, batch.last)
        notices = [notice for message in messages for notice in notices_of(message)]
        plan = self.ddl.plan(notices)
        before = self._sources()
        with self.loads.worker.naming if plan.moves else nullcontext():
            is_moved = self.ddl.move(plan, batch.first - 1)
        if not is_moved:
            plan = self.ddl.plan(notices)
        self._reopen(plan.moves)
        self._routes = plan.routes
        shapes = [message for message in messages if message.is_schema]
        announced = self._follow_announced(shapes, plan)
        self.ddl.settle(plan)
        self._owners = self._find_owners(before, shapes, plan)
        return announced

    def _sources(self) -> dict[str, str]:
        """The source of every table, by its token."""
        return {table.token: self._shapes.source_of(table) for table in self._all_appliers()}

    def _find_owners(
        self, before: Mapping[str, str], messages: Sequence[Found], plan: DdlPlan
    ) -> Owners:
        """From where on which table is of which source, in a batch with these announcements."""
        spans = {token: [(0, source)] for token, source in self._sources().items() if source}
        spans |= {token: [(0, source)] for token, source in before.items() if source}
        for message in messages:
            sent, source = TableShape.from_map(message.fields), message.fields.get("source", "")
            own = spans.setdefault(plan.name_of(sent.name, sent.relation_id).token, [(0, source)])
            if own[-1][1] != source:
                own.append((message.sequence, source))
        return spans

    def _reopen(self, moves: Sequence[Move]) -> None:
        """Let go of what is held by names that tables had, and follow them by those they have."""
        if not moves:
            return
        appliers = self._all_appliers()
        for move in moves:
            appliers.pop(move.before, None)
            appliers.pop(move.after, None)
        for move in moves:
            self._applier(move.after).follow_held()

    def _follow_announced(self, messages: Sequence[Found], plan: DdlPlan) -> set[TableName]:
        """Lead change logs through the shapes that the batch announces."""
        announced: dict[TableName, set[int]] = {}
        for message in messages:
            revision, sent = message.fields["schema_revision"], TableShape.from_map(message.fields)
            table = plan.name_of(sent.name, sent.relation_id)
            self._shapes.learn(message.fields, revision, message.sequence, table)
            announced.setdefault(table, set()).add(revision)
        appliers = [(self._applier(table), revisions) for table, revisions in announced.items()]
        with ThreadPoolExecutor(self._side_by_side) as pool:
            list(pool.map(lambda pair: pair[0].follow(pair[1]), appliers))
        return set(announced)

    def _advance(
        self, announced: Iterable[TableName], found: Mapping[TableName, Facts], cuts: list[Cut]
    ) -> list[Cut]:
        """Bring mirrors to the schemas that a batch announces beyond its changes; give all cuts."""
        appliers = {table: self._applier(table) for table in sorted(announced)}
        with ThreadPoolExecutor(self._side_by_side) as pool:
            moved = dict(
                zip(appliers, pool.map(lambda one: one.advance(), appliers.values()), strict=True)
            )
        ahead = {table: appliers[table] for table, is_moved in moved.items() if is_moved}
        return [
            *(cut for cut in cuts if cut.table not in ahead),
            *(applier.cut(found.get(table)) for table, applier in ahead.items()),
        ]

    def _find_shape(self, table: TableName, revision: int) -> dict[str, Any] | None:
        """A shape that only KV `schemas` has; before a rename it was under another key."""
        for name in (table, *self.ddl.former_names(table)):
            if (fields := self._fallback(name, revision)) is not None:
                return fields
        return None

    def _read(self, batch: Batch) -> Reading:
        """Let the executors read and decode."""
        while True:
            reading = self._reader.read(batch, self._rules(batch))
            if not reading.lacking:
                return reading
            self._discard(reading)
            self._find_lacking(reading.lacking)

    def _rules(self, batch: Batch) -> Rules:
        return Rules(self._plans(batch), frozenset(self._gone), self._routes, self._owners)

    def _plans(self, batch: Batch) -> dict[str, TablePlan]:
        return {
            table.token: plan
            for table, applier in self._all_appliers().items()
            if (plan := applier.plan(batch)) is not None
        }

    def _begin_ahead(self, batch: Batch) -> None:
        # A new shape changes tables that are being written now: that batch waits for its turn.
        if not read_messages(self._nats, batch.first, batch.last):
            owners = {token: spans[-1:] for token, spans in self._owners.items()}
            self._ahead.begin(batch, replace(self._rules(batch), owners=owners))

    def _take_ahead(self, batch: Batch) -> Reading | None:
        reading = self._ahead.take()
        if reading is not None and (reading.batch != batch or reading.lacking):
            self._discard(reading)
            return None
        return reading

    def drop_ahead(self) -> None:
        """Forget what was read ahead: what it was read by may change now."""
        if (reading := self._ahead.take()) is not None:
            self._discard(reading)

    def _discard(self, reading: Reading) -> None:
        reading.close()
        for table, facts in reading.facts().items():
            if facts.files:
                self._applier(table).forget(facts.files)

    def _find_lacking(self, lacking: Iterable[Row]) -> None:
        """Learn shapes whose announcements are not in this batch; they may be nowhere any more."""
        for row in lacking:
            sent, revision = TableName.from_token(row["token"]), row["revision"]
            table = self._route_unannounced(sent, revision)
            try:
                applier = self._applier(table)
                applier.learn_held()
                self._shapes.find(table, revision)
            except ShapeUnknown as error:
                if not self._dead_letters:
                    raise ShapeUnknown(
                        f"stream sequence {row['first']} (cdc.{table.token}.*): {error}"
                    ) from error
                self._gone.add((table.token, revision))
            else:
                applier.follow([revision])

    def _route_unannounced(self, sent: TableName, revision: int) -> TableName:
        """The lake table of changes whose announcement expired, by what KV `schemas` remembers.

        The table may have been renamed before the lake saw it: then it is here by its new name.
        """
        fields = self._fallback(sent, revision)
        held = None if fields is None else self._elsewhere(fields)
        if fields is None or held is None or held.revision < revision:
            return sent
        self._shapes.learn(fields, revision, table=held.name)
        alias = Former(table=held.name, name=sent, relation=held.relation, until=0)
        self.ddl.note_aliases([alias])
        self._routes = {**self._routes, **routes_of([alias])}
        return held.name

    def _apply_tables(self, reading: Reading, found: Mapping[TableName, Facts]) -> list[Cut]:
        """Bring a batch into logs and mirrors, which need nothing of each other, side by side."""
        appliers = {table: self._applier(table) for table in sorted(found)}

        def begin(table: TableName) -> MirrorBatch | None:
            return appliers[table].begin(found[table], reading.plans[table.token])

        def append(table: TableName) -> None:
            plan = reading.plans[table.token]
            appliers[table].append(reading.blocks, found[table], plan)

        def finish(pair: tuple[TableName, MirrorBatch]) -> None:
            appliers[pair[0]].finish(pair[1], folded[pair[1].token])

        with ThreadPoolExecutor(self._side_by_side) as pool:
            begun = dict(zip(appliers, pool.map(begin, appliers), strict=True))
            batches = {table: batch for table, batch in begun.items() if batch is not None}
            appending = [pool.submit(append, table) for table in appliers]
            plans = {batch.token: batch.fold_plan for batch in batches.values()}
            with folding(reading.blocks, plans, self._cores) as folded:
                list(pool.map(finish, batches.items()))
            for appended in appending:
                appended.result()
        return [applier.cut(found[table]) for table, applier in appliers.items()]

    def _stand(self, table: TableName, mirror: int | None, log: int | None) -> CutTable:
        """Where a table stands at a cut; of one that is gone, since when."""
        state = self.states.get(table)
        return CutTable(str(table), mirror, log, state.lsn if state.is_gone else None)

    def _all_appliers(self) -> dict[TableName, TableApplier]:
        """Every table of the lake: any of them may be in a batch."""
        if self._appliers is None:
            self._appliers = {}
            for name in self._tables.names():
                if (table := table_of_log(name)) is not None:
                    self._applier(table).follow_held()
        return self._appliers

    def _applier(self, table: TableName) -> TableApplier:
        appliers = self._all_appliers()
        if table not in appliers:
            appliers[table] = TableApplier(
                self._spark, self._tables, self._shapes, self.states, table, files=self._files
            )
        return appliers[table]

    def _cut(self, batch: Batch, cuts: list[Cut]) -> None:
        touched = {cut.table for cut in cuts}
        # From here on a table that is being rebuilt cannot be read, touched or not.
        unreadable = [table for table in self.states.untold() if table not in touched]
        # A batch of logical messages alone touches no table, and still has to move the batch.
        standing = [
            *(self._stand(c.table, c.snapshot_id, c.changes_snapshot_id) for c in cuts),
            *(self._stand(table, None, self.loads.log_snapshot(table)) for table in unreadable),
        ] or [CutTable(None, None, None)]
        self._cuts.write(batch, standing)
        self.states.told([*touched, *unreadable])

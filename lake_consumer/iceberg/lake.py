"""One batch into the lake: every table it touches, then the cut that says it is complete.

The order is the promise. Tables commit first, each stamped with the batch's end; the table of cuts
commits last. Whoever dies in between finds, by the stamps, what is done and what is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import Batch, split_range
from lake_consumer.errors import LakeBusy, LakeError, ShapeUnknown, SnapshotGone, UndecodableMessage
from lake_consumer.gaps import Gap
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.blocks import BLOCKS, BlockMaker, Facts
from lake_consumer.iceberg.datafiles import read_files
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.loading import SnapshotLoads
from lake_consumer.iceberg.names import CUTS, RESYNCS, LakeName, log_of, table_of_log
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table import Cut, TableApplier
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.iceberg.types import cuts_schema
from lake_consumer.jetstream.announced import read_announcements
from lake_consumer.jetstream.source import RangeSource
from lake_consumer.loads import Meta
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import Fallback, ShapeBook
from lake_consumer.stores import ObjectStore
from lake_consumer.tablestates import LIVE, RESYNC_PREFIX, FirstSight, TableState, loading, note_gap
from lake_consumer.watermark import EMPTY, Watermark
from schemas.names import TableName
from schemas.streams import CDC_STREAM

RANGE_MESSAGES = 100_000
"""At most so many messages are read by one task, so that its memory is bounded."""

_LOADED = "_loaded_cuts"
_CUTS_DDL = (
    "table_name string, commit_lsn bigint, commit_ts timestamp, stream_seq bigint, "
    "snapshot_id bigint, changes_snapshot_id bigint"
)


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
        self._shapes = ShapeBook(fallback)
        self._appliers: dict[TableName, TableApplier] | None = None
        self.states = StateBook(self._tables, first_sight=first_sight, can_load=can_load)
        self.loads = SnapshotLoads(spark, nats, self._tables, self._shapes, self.states)
        self._side_by_side = side_by_side
        self._dead_letters = dead_letters
        self._gone: set[tuple[str, int]] = set()

    @clear_errors
    def watermarks(self) -> tuple[Watermark, dict[LakeName, Watermark]]:
        """The cuts' watermark, and every other table's."""
        marks = {
            name: self._tables.watermark(self._tables.load(name)) for name in self._tables.names()
        }
        return marks.pop(CUTS, EMPTY), marks

    @clear_errors
    def apply(self, batch: Batch) -> Applied:
        """Bring a batch into every table it touches; what a table already has is left out."""
        began = time.monotonic()
        self.states.position = batch.first - 1
        self._tables.set_stamp(Watermark(batch.last, batch.commit_lsn, batch.commit_ts))
        self._follow_announced(batch)
        blocks, found = self._read(batch)
        read = time.monotonic()
        try:
            cuts = self._apply_tables(blocks, found)
        finally:
            blocks.unpersist()
        self._cut(batch, cuts)
        self.states.position = batch.last
        return Applied(
            changes=sum(cut.changes for cut in cuts),
            bytes=sum(facts.bytes for facts in found.values()),
            tables=len(cuts),
            read_seconds=read - began,
            write_seconds=time.monotonic() - read,
        )

    @clear_errors
    def load(self, ready: Mapping[TableName, Meta], mark: Watermark) -> dict[TableName, str]:
        """Make mirrors of snapshots, as of `mark`; gives why where one could not be used."""
        self._tables.set_stamp(mark)

        def load_one(table: TableName) -> Cut | LakeError:
            try:
                return self.loads.load(table, ready[table], mark.stream_sequence)
            except (SnapshotGone, ShapeUnknown, UndecodableMessage) as error:
                return error

        with ThreadPoolExecutor(self._side_by_side) as pool:
            results = dict(zip(ready, pool.map(load_one, ready), strict=True))
        cuts = [result for result in results.values() if isinstance(result, Cut)]
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
        return {t: str(why) for t, why in results.items() if not isinstance(why, Cut)}

    @clear_errors
    def note_gap(self, gap: Gap) -> None:
        """Note in every change log that it lacks changes, and let every mirror be built anew."""
        self.states.position = gap.last
        for table in self.states.read_all():
            log = self._tables.load(log_of(table))
            noted = note_gap(self._tables.properties(log), gap.first, gap.last)
            shape = self._shapes.learn_properties(self._tables.properties(log))
            keyed = shape is not None and bool(shape.key)
            state = loading(f"stream sequences {gap} are missing", gap.last) if keyed else LIVE
            self.states.set(table, state, noted)

    @clear_errors
    def take_resyncs(self, position: int, init_end: Callable[[], int]) -> list[TableName]:
        """Let mirrors be built anew that somebody asked for with `resync`; gives which.

        Only a snapshot that is completed from now on counts, behind what INIT holds already.
        """
        if not self._tables.exists(RESYNCS):
            return []
        wishes = self._tables.load(RESYNCS)
        marks = [key for key in self._tables.properties(wishes) if key.startswith(RESYNC_PREFIX)]
        if not marks:
            return []
        asked = {TableName.from_token(key.removeprefix(RESYNC_PREFIX)) for key in marks}
        taken = sorted(asked & set(self.states.read_all()))
        state = TableState("loading", "resync was asked for", position, init_end())
        for table in taken:
            self.states.set(table, state)
        # Last: who dies before finds it asked for again.
        self._tables.set_properties(wishes, {}, without=marks)
        return taken

    def _follow_announced(self, batch: Batch) -> None:
        """Lead change logs through the shapes that the batch announces, before it is decoded."""
        announced: dict[TableName, set[int]] = {}
        for fields, revision in read_announcements(self._nats, batch.first, batch.last):
            shape = self._shapes.learn(fields, revision)
            announced.setdefault(shape.name, set()).add(revision)
        appliers = [(self._applier(table), revisions) for table, revisions in announced.items()]
        with ThreadPoolExecutor(self._side_by_side) as pool:
            list(pool.map(lambda pair: pair[0].follow(pair[1]), appliers))

    def _read(self, batch: Batch) -> tuple[DataFrame, dict[TableName, Facts]]:
        """Let the executors read and decode; gives their blocks, and what is in them by table."""
        while True:
            blocks = self._blocks(batch).persist()
            try:
                # Collecting the facts alone makes every block, and keeps it where it was made.
                found = blocks.drop("block").collect()
            except BaseException:
                blocks.unpersist()
                raise
            lacking = [row for row in found if row["is_lacking"]]
            if not lacking:
                by_table: dict[TableName, list[Row]] = {}
                for row in found:
                    by_table.setdefault(TableName.from_token(row["token"]), []).append(row)
                return blocks, {table: Facts.of(rows) for table, rows in by_table.items()}
            blocks.unpersist()
            self._forget_files(found)
            self._find_lacking(lacking)

    def _blocks(self, batch: Batch) -> DataFrame:
        cores = self._spark.sparkContext.defaultParallelism
        # A whole number of rounds: where the last one is not full, cores stand idle.
        parts = cores * -(-batch.messages // (cores * RANGE_MESSAGES))
        ranges = split_range(batch.first, batch.last, parts)
        plans = {
            table.token: plan
            for table, applier in self._all_appliers().items()
            if (plan := applier.plan(batch.messages)) is not None
        }
        make = partial(BlockMaker, plans, frozenset(self._gone))
        source = RangeSource(self._nats, CDC_STREAM.name, ranges, make, self._dead_letters)
        return self._spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(
            source, from_arrow_schema(BLOCKS)
        )

    def _forget_files(self, found: Iterable[Row]) -> None:
        for row in found:
            if row["files"]:
                self._applier(TableName.from_token(row["token"])).forget(read_files(row["files"]))

    def _find_lacking(self, lacking: Iterable[Row]) -> None:
        """Learn shapes whose announcements are not in this batch; they may be nowhere any more."""
        for row in lacking:
            table, revision = TableName.from_token(row["token"]), row["revision"]
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

    def _apply_tables(self, blocks: DataFrame, found: Mapping[TableName, Facts]) -> list[Cut]:
        def apply_one(table: TableName) -> Cut:
            own = blocks.where(F.col("token") == table.token)
            return self._applier(table).apply(own, found[table])

        with ThreadPoolExecutor(self._side_by_side) as pool:
            return list(pool.map(apply_one, sorted(found)))

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
        self._open_cuts(batch)
        touched = {cut.table for cut in cuts}
        # From here on a table that is being rebuilt cannot be read, touched or not.
        unreadable = [table for table in self.states.untold() if table not in touched]
        # A batch of logical messages alone touches no table, and still has to move the batch.
        rows: list[tuple[str | None, int | None, int | None]] = [
            *((str(cut.table), cut.snapshot_id, cut.changes_snapshot_id) for cut in cuts),
            *((str(table), None, self.loads.log_snapshot(table)) for table in unreadable),
        ] or [(None, None, None)]
        filled = [
            (table, batch.commit_lsn, None, batch.last, snapshot, changes)
            for table, snapshot, changes in rows
        ]
        moment = F.to_timestamp(F.lit(batch.commit_ts))
        frame = self._spark.createDataFrame(filled, _CUTS_DDL).withColumn("commit_ts", moment)
        if batch.messages:
            frame.coalesce(1).writeTo(CUTS.sql).append()
        else:
            self._replace_cuts(frame.coalesce(1))
        self.states.told([*touched, *unreadable])

    def _open_cuts(self, batch: Batch) -> None:
        """Make the table of cuts where it is missing; it must not be where this batch leads."""
        if not self._tables.exists(CUTS):
            self._tables.create(CUTS, cuts_schema())
            return
        # Tables may be further by now than this batch; a cut of it would name the wrong snapshots.
        reached = self._tables.watermark(self._tables.load(CUTS)).stream_sequence
        if reached >= batch.first:
            raise LakeBusy(
                f"the lake is at stream sequence {reached} already, put there by another consumer,"
                f" while {batch.first} to {batch.last} were applied"
            )

    def _replace_cuts(self, frame: DataFrame) -> None:
        """Let a mirror that was loaded stand for its table at a cut that is there already."""
        frame.createOrReplaceTempView(_LOADED)
        try:
            self._spark.sql(
                f"MERGE INTO {CUTS.sql} t USING {_LOADED} s"
                " ON t.table_name = s.table_name AND t.stream_seq = s.stream_seq"
                " WHEN MATCHED AND s.snapshot_id IS NOT NULL THEN UPDATE SET"
                " t.snapshot_id = s.snapshot_id, t.changes_snapshot_id = s.changes_snapshot_id"
                " WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            self._spark.catalog.dropTempView(_LOADED)

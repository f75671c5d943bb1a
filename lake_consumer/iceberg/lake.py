"""One batch into the lake: every table it touches, then the cut that says it is complete.

The order is the promise. Tables commit first, each stamped with the batch's end; the table of cuts
commits last. Whoever dies in between finds, by the stamps, what is done and what is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import Batch, split_range
from lake_consumer.errors import ShapeUnknown
from lake_consumer.iceberg.blocks import BLOCKS, BlockMaker, Facts
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.names import CUTS, LakeName, table_of_log
from lake_consumer.iceberg.table import Cut, TableApplier
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.iceberg.types import cuts_schema
from lake_consumer.jetstream.announced import read_announcements
from lake_consumer.jetstream.source import RangeSource
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import Fallback, ShapeBook
from lake_consumer.watermark import EMPTY, Watermark
from schemas.names import TableName
from schemas.streams import CDC_STREAM

RANGE_MESSAGES = 100_000
"""At most so many messages are read by one task, so that its memory is bounded."""

_STAMP = "spark.sql.iceberg.snapshot-property."
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
    ) -> None:
        self._spark = spark
        self._nats = nats
        self._tables = LakeTables(spark)
        self._shapes = ShapeBook(fallback)
        self._appliers: dict[TableName, TableApplier] | None = None
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
        self._stamp(Watermark(batch.last, batch.commit_lsn, batch.commit_ts))
        self._follow_announced(batch)
        blocks, found = self._read(batch)
        read = time.monotonic()
        try:
            cuts = self._apply_tables(blocks, found)
        finally:
            blocks.unpersist()
        self._cut(batch, cuts)
        return Applied(
            changes=sum(cut.changes for cut in cuts),
            bytes=sum(facts.bytes for facts in found.values()),
            tables=len(cuts),
            read_seconds=read - began,
            write_seconds=time.monotonic() - read,
        )

    def _stamp(self, mark: Watermark) -> None:
        # Session-wide, and so the same for every table of the batch, which is what is meant.
        for name, value in mark.to_summary().items():
            self._spark.conf.set(_STAMP + name, value)

    def _follow_announced(self, batch: Batch) -> None:
        """Lead change logs through the shapes that the batch announces, before it is decoded."""
        announced: dict[TableName, set[int]] = {}
        for fields, revision in read_announcements(self._nats, batch.first, batch.last):
            shape = self._shapes.learn(fields, revision)
            announced.setdefault(shape.name, set()).add(revision)
        for table, revisions in announced.items():
            self._applier(table).follow(revisions)

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
            self._find_lacking(lacking)

    def _blocks(self, batch: Batch) -> DataFrame:
        parts = max(
            self._spark.sparkContext.defaultParallelism, -(-batch.messages // RANGE_MESSAGES)
        )
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
            appliers[table] = TableApplier(self._spark, self._tables, self._shapes, table)
        return appliers[table]

    def _cut(self, batch: Batch, cuts: list[Cut]) -> None:
        if not self._tables.exists(CUTS):
            self._tables.create(CUTS, cuts_schema())
        # A batch of logical messages alone touches no table, and still has to move the mark.
        rows: list[tuple[str | None, int | None, int | None]] = [
            (str(cut.table), cut.snapshot_id, cut.changes_snapshot_id) for cut in cuts
        ] or [(None, None, None)]
        filled = [
            (table, batch.commit_lsn, None, batch.last, snapshot, changes)
            for table, snapshot, changes in rows
        ]
        moment = F.to_timestamp(F.lit(batch.commit_ts))
        frame = self._spark.createDataFrame(filled, _CUTS_DDL).withColumn("commit_ts", moment)
        frame.coalesce(1).writeTo(CUTS.sql).append()

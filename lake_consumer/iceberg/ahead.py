"""The blocks of a batch, and those of the next one, read while this one is written.

Writing waits much of its time, for plans and commits, and reading fills the cores meanwhile. What
was read ahead is not promised to anybody: whatever could make it wrong drops it, and the batch is
read again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import Batch, split_range
from lake_consumer.ddl_plan import Routes
from lake_consumer.iceberg.blocks import BLOCKS, BlockMaker, TablePlan
from lake_consumer.iceberg.facts import Facts
from lake_consumer.jetstream.source import RangeSource
from lake_consumer.logs import info
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.order import Owners, Stretch, read_stretches
from schemas.names import TableName
from schemas.streams import CDC_STREAM

RANGE_MESSAGES = 50_000
"""At most so many messages are read by one task, so that its memory is bounded, and whoever waits
for a core does not wait long."""

_POOL = "spark.scheduler.pool"

Plans = Mapping[str, TablePlan]
"""By table token."""


@dataclass(frozen=True)
class Rules:
    """By what executors read a batch."""

    plans: Plans
    gone: frozenset[tuple[str, int]]
    routes: Routes
    owners: Owners


@dataclass(frozen=True)
class Reading:
    """A batch as executors have read it; its blocks lie where they were made."""

    batch: Batch
    plans: Plans
    blocks: DataFrame
    found: Sequence[Row]

    @property
    def lacking(self) -> list[Row]:
        """Revisions that no plan knows."""
        return [row for row in self.found if row["is_lacking"]]

    @property
    def stretches(self) -> list[Stretch]:
        """What the batch says of the order of its sources."""
        return [
            stretch
            for row in self.found
            if row["order"]
            for stretch in read_stretches(row["order"])
        ]

    def facts(self) -> dict[TableName, Facts]:
        by_table: dict[TableName, list[Row]] = {}
        for row in self.found:
            if row["is_lacking"] or not row["token"]:
                continue
            by_table.setdefault(TableName.from_token(row["token"]), []).append(row)
        return {table: Facts.of(rows) for table, rows in by_table.items()}

    def close(self) -> None:
        self.blocks.unpersist()


@dataclass(frozen=True)
class BatchReader:
    """Lets executors read batches."""

    spark: SparkSession
    nats: NatsOptions
    dead_letters: bool

    def read(self, batch: Batch, rules: Rules) -> Reading:
        plans = rules.plans
        blocks = self._blocks(batch, rules).persist()
        try:
            # Collecting the facts alone makes every block, and keeps it where it was made.
            return Reading(batch, plans, blocks, blocks.drop("block").collect())
        except BaseException:
            blocks.unpersist()
            raise

    def _blocks(self, batch: Batch, rules: Rules) -> DataFrame:
        cores = self.spark.sparkContext.defaultParallelism
        # A whole number of rounds: where the last one is not full, cores stand idle.
        parts = cores * -(-batch.messages // (cores * RANGE_MESSAGES))
        ranges = split_range(batch.first, batch.last, parts)
        make = partial(BlockMaker, rules.plans, rules.gone, rules.routes, rules.owners)
        source = RangeSource(self.nats, CDC_STREAM.name, ranges, make, self.dead_letters)
        return self.spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(
            source, from_arrow_schema(BLOCKS)
        )


class ReadAhead:
    """At most one batch, read beside other work."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, "read-ahead")
        self._next: Future[Reading] | None = None

    def begin(self, batch: Batch, rules: Rules) -> None:
        self._next = self._thread.submit(self._read, batch, rules)

    def _read(self, batch: Batch, rules: Rules) -> Reading:
        # A pool of its own: else the writing would wait until all of this is read.
        self._reader.spark.sparkContext.setLocalProperty(_POOL, "ahead")
        return self._reader.read(batch, rules)

    def take(self) -> Reading | None:
        """What was read ahead, when it is there; None also where that went wrong."""
        reading, self._next = self._next, None
        if reading is None:
            return None
        try:
            return reading.result()
        except Exception as failure:
            info("reading ahead failed, so it is read again", reason=failure)
            return None

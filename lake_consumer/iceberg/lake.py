"""One batch into the lake: every table it touches, then the cut that says it is complete.

The order is the promise. Tables commit first, each stamped with the batch's end; the table of cuts
commits last. Whoever dies in between finds, by the stamps, what is done and what is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import Batch, split_range
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.names import CUTS, LakeName
from lake_consumer.iceberg.table import Cut, TableApplier
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.iceberg.types import cuts_schema
from lake_consumer.jetstream.source import MESSAGES, RangeSource
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import Fallback, ShapeBook
from lake_consumer.watermark import EMPTY, Watermark
from schemas.codecs import CODECS
from schemas.names import TableName
from schemas.streams import CDC_STREAM
from schemas.subjects import LOGICAL_MESSAGES

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


class Lake:
    """The lake as the driver sees it; one batch at a time, its tables side by side."""

    def __init__(
        self, spark: SparkSession, nats: NatsOptions, fallback: Fallback, *, side_by_side: int = 4
    ) -> None:
        self._spark = spark
        self._nats = nats
        self._tables = LakeTables(spark)
        self._shapes = ShapeBook(fallback)
        self._appliers: dict[TableName, TableApplier] = {}
        self._side_by_side = side_by_side

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
        self._stamp(Watermark(batch.last, batch.commit_lsn, batch.commit_ts))
        messages = self._read(batch).persist()
        try:
            contents = messages.groupBy("token", "verb").agg(
                F.count("*").alias("messages"),
                F.sum(F.length("body")).alias("bytes"),
                F.collect_set("schema_revision").alias("revisions"),
            )
            found = contents.collect()
            self._learn_shapes(messages, found)
            cuts = self._apply_tables(messages, found)
        finally:
            messages.unpersist()
        self._cut(batch, cuts)
        return Applied(
            changes=sum(cut.changes for cut in cuts),
            bytes=sum(row["bytes"] for row in found),
            tables=len(cuts),
        )

    def _stamp(self, mark: Watermark) -> None:
        # Session-wide, and so the same for every table of the batch, which is what is meant.
        for name, value in mark.to_summary().items():
            self._spark.conf.set(_STAMP + name, value)

    def _read(self, batch: Batch) -> DataFrame:
        parts = self._spark.sparkContext.defaultParallelism
        ranges = split_range(batch.first, batch.last, parts)
        return self._spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(
            RangeSource(self._nats, CDC_STREAM.name, ranges), from_arrow_schema(MESSAGES)
        )

    def _learn_shapes(self, messages: DataFrame, found: Iterable[Row]) -> None:
        if not any(row["verb"] == "schema" for row in found):
            return
        for row in messages.where("verb = 'schema'").collect():
            fields = CODECS[row["codec"]].decode(bytes(row["body"]))
            self._shapes.learn(fields, row["schema_revision"])

    def _apply_tables(self, messages: DataFrame, found: Iterable[Row]) -> list[Cut]:
        revisions: dict[TableName, set[int]] = {}
        for row in found:
            if row["token"] != LOGICAL_MESSAGES and row["verb"] != "schema":
                table = TableName.from_token(row["token"])
                revisions.setdefault(table, set()).update(row["revisions"])

        def apply_one(table: TableName) -> Cut:
            changes = messages.where((F.col("token") == table.token) & (F.col("verb") != "schema"))
            return self._applier(table).apply(changes, revisions[table])

        with ThreadPoolExecutor(self._side_by_side) as pool:
            return list(pool.map(apply_one, sorted(revisions)))

    def _applier(self, table: TableName) -> TableApplier:
        if table not in self._appliers:
            self._appliers[table] = TableApplier(self._spark, self._tables, self._shapes, table)
        return self._appliers[table]

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

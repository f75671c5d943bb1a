"""A mirror from a snapshot and the changes that followed it, in one commit.

The lake stands at a stream sequence P at or behind the snapshot's `cdc_complete`: every change
below the snapshot's LSN is in the snapshot, and every other one up to P is in the table's change
log. So the mirror as of P is the snapshot's rows and, over them, the outcome of the log's changes
with `commit_lsn >= lsn`. A column PostgreSQL did not send (unchanged TOAST) is in the snapshot.

The rows replace whatever the mirror held; its history stays, so an old snapshot can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import split_range
from lake_consumer.columns import TEXT_COLUMN, Columns
from lake_consumer.errors import LakeBusy, SnapshotGone
from lake_consumer.evolution import renames_in
from lake_consumer.iceberg.decode import Decoder, SentRow, row_type
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.following import ShapeFollower
from lake_consumer.iceberg.keys import KeyedRows, field
from lake_consumer.iceberg.mirror import spark_schema
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.opening import OpenPart
from lake_consumer.iceberg.outcomes import (
    FOLDED,
    Folder,
    LogFolder,
    heal,
    healing_schema,
    mirror_arrow_schema,
)
from lake_consumer.iceberg.staging import Staging
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table import Cut
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.jetstream.chunks import CHECKSUM, CHUNKS, ChecksumSource, ChunkSource
from lake_consumer.loads import Meta
from lake_consumer.logs import info
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import ShapeBook
from lake_consumer.tablestates import why_unusable
from schemas.codecs import CODECS
from schemas.names import TableName
from schemas.shapes import TableShape

PARTS_PER_CORE = 4
FOLD_PARTITIONS = 8


@dataclass(frozen=True)
class ChunkDecoder:
    """Decodes chunks of one snapshot to rows as a change log has them; runs in the executors."""

    columns: Columns
    shape: TableShape
    revision: int

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("row", row_type(self.columns))])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(self.columns, {self.revision: self.shape})
        for batch in batches:
            for codec, body in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                chunk = CODECS[codec].decode(body)
                texts: dict[str, list[str]] = chunk.get("text", {})
                rows: list[SentRow | None] = [
                    SentRow(row, texts.get(str(at), ()), self.revision)
                    for at, row in enumerate(chunk["data"])
                ]
                yield pa.RecordBatch.from_arrays([decoder.rows(rows)], schema=self.schema)


class SnapshotLoads:
    """Loads snapshots, each into the mirror of its table."""

    def __init__(
        self,
        spark: SparkSession,
        nats: NatsOptions,
        tables: LakeTables,
        shapes: ShapeBook,
        states: StateBook,
    ) -> None:
        self._spark = spark
        self._nats = nats
        self._tables = tables
        self._shapes = shapes
        self._states = states

    def see(self, table: TableName, revision: int) -> None:
        """Take a table into the lake that it has not seen: its change log is made."""
        shape = self._shapes.find(table, revision)
        ShapeFollower(self._tables, self._shapes, self._states, table).open_log({revision: shape})

    def log_snapshot(self, table: TableName) -> int | None:
        return snapshot_of(self._tables.load(log_of(table)))

    @clear_errors
    def load(self, table: TableName, meta: Meta, position: int) -> Cut:
        """Replace a mirror by a snapshot and what the log holds behind it, as of `position`."""
        follower = ShapeFollower(self._tables, self._shapes, self._states, table)
        taken = self._shapes.find(table, meta.schema_revision)
        # A shape that no change needed yet is known from the snapshot only.
        log = follower.open_log({meta.schema_revision: taken})
        revision, newest = follower.newest()
        if why := why_unusable(taken, newest):
            raise SnapshotGone(f"snapshot {meta.snapshot_id} of {table} came too early: {why}")
        columns = self._tables.columns(log, "new")
        decoder = ChunkDecoder(columns, taken, meta.schema_revision)
        with ExitStack() as kept:
            rows = _keep(self._read(table, meta, decoder), kept)
            self._verify(table, meta, rows)
            keyed = KeyedRows(columns, _key(newest, columns))
            merged = self._merge(table, (meta.lsn, position), rows, keyed, kept)
            mirror = follower.rebuild_mirror(newest, revision)
            names = [column.name for column in self._tables.columns(mirror)]
            cells = [field("", name) for name in (*names, TEXT_COLUMN)]
            self._check_not_ahead(table, mirror, position)
            staging = Staging(self._tables, mirror, mirror_of(table).sql)
            staging.publish(
                lambda branch: merged.select(*cells).writeTo(branch).overwrite(F.lit(True))
            )
        mirror.refresh()
        info(
            "snapshot loaded",
            table=table,
            snapshot_id=meta.snapshot_id,
            rows=meta.row_count,
            stream_sequence=position,
        )
        return Cut(
            table=table,
            changes=0,
            snapshot_id=snapshot_of(mirror),
            changes_snapshot_id=snapshot_of(log),
        )

    def _check_not_ahead(self, table: TableName, mirror: Table, position: int) -> None:
        reached = self._tables.watermark(mirror).stream_sequence
        if reached > position:
            raise LakeBusy(
                f"the mirror of {table} is at stream sequence {reached} already, put there by"
                f" another consumer, while a snapshot was loaded as of {position}"
            )

    def _read(self, table: TableName, meta: Meta, decoder: ChunkDecoder) -> DataFrame:
        schema = from_arrow_schema(decoder.schema, prefer_timestamp_ntz=True)
        if not meta.batch_count:
            return self._spark.createDataFrame([], schema)
        parts = self._spark.sparkContext.defaultParallelism * PARTS_PER_CORE
        ranges = split_range(0, meta.batch_count - 1, parts)
        source = ChunkSource(self._nats, table, meta.snapshot_id, ranges)
        indices = self._spark.range(0, len(ranges), 1, len(ranges))
        chunks = indices.mapInArrow(source, from_arrow_schema(CHUNKS))
        return chunks.mapInArrow(decoder, schema)

    def _verify(self, table: TableName, meta: Meta, rows: DataFrame) -> None:
        """Hold what was read against the meta, before anything is written."""
        whole = [(0, meta.batch_count - 1)] if meta.batch_count else []
        source = ChecksumSource(ChunkSource(self._nats, table, meta.snapshot_id, whole))
        one = self._spark.range(0, 1, 1, 1)
        found = one.mapInArrow(source, from_arrow_schema(CHECKSUM)).collect()[0]["checksum"]
        count = rows.count()
        if (found, count) != (meta.checksum, meta.row_count):
            raise SnapshotGone(
                f"snapshot {meta.snapshot_id} of {table} is not what was stored: {count} rows of"
                f" {meta.row_count}, {found} and not {meta.checksum}"
            )

    def _merge(
        self,
        table: TableName,
        between: tuple[int, int],
        rows: DataFrame,
        keyed: KeyedRows,
        kept: ExitStack,
    ) -> DataFrame:
        """The snapshot's rows with the outcome of the log's changes over them.

        `between` are the snapshot's LSN and the stream sequence where the lake stands.
        """
        lsn, position = between
        changes = self._spark.table(log_of(table).sql).where(
            (F.col("commit_lsn") >= lsn) & (F.col("stream_seq") <= position)
        )
        facts = _facts(changes, keyed)
        taken = rows.select("row.*")
        if not facts["changes"]:
            return taken
        renames = renames_in(self._shapes.find_all(table, facts["revisions"]), keyed.columns)
        folder = Folder(keyed, keyed.columns, facts["truncated"], renames)
        spread = _spread(changes, keyed, moved=facts["moved"])
        folded = _keep(spread.mapInArrow(LogFolder(folder), from_arrow_schema(FOLDED)), kept)
        left = _open(folded, "rows", mirror_arrow_schema(keyed.columns))
        if facts["truncated"]:
            # Nothing of the snapshot is left, and every row began with an insert.
            return left
        if facts["unchanged"]:
            waiting = _open(folded, "healing", healing_schema(keyed.columns))
            left = left.unionByName(heal(waiting, taken, keyed))
        held = _open(folded, "held", keyed.schema)
        held = held.withColumnsRenamed({alias: f"_h{alias}" for alias in keyed.aliases})
        same = [F.col(alias).eqNullSafe(F.col(f"_h{alias}")) for alias in keyed.aliases]
        untouched = keyed.keyed(rows, "row").join(held, on=same, how="left_anti")
        return untouched.select("row.*").unionByName(left)


def _facts(changes: DataFrame, keyed: KeyedRows) -> dict[str, Any]:
    truncate = F.when(F.col("operation") == "TRUNCATE", F.col("stream_seq"))
    same = F.lit(True)
    for before, after in zip(keyed.parts("old"), keyed.parts("new"), strict=True):
        same = same & before.eqNullSafe(after)
    moved = (F.col("operation") == "UPDATE") & F.col("old").isNotNull() & ~same
    unchanged = F.size("unchanged") > 0
    return (
        changes.agg(
            F.count("*").alias("changes"),
            F.coalesce(F.max(truncate), F.lit(0)).alias("truncated"),
            (F.count_if(moved) > 0).alias("moved"),
            (F.count_if(unchanged) > 0).alias("unchanged"),
            F.collect_set(F.when(unchanged, F.col("schema_revision"))).alias("revisions"),
        )
        .collect()[0]
        .asDict()
    )


def _spread(changes: DataFrame, keyed: KeyedRows, *, moved: bool) -> DataFrame:
    """Bring all changes of a key together; a change of key ties all keys to each other."""
    if moved or not keyed.is_plain:
        return changes.repartition(1)
    row = F.when(F.col("operation") == "DELETE", F.col("old")).otherwise(F.col("new"))
    named = keyed.keyed(changes.withColumn("_row", row), "_row")
    return named.repartition(FOLD_PARTITIONS, *keyed.aliases).select(*changes.columns)


def _keep(frame: DataFrame, kept: ExitStack) -> DataFrame:
    """Keep what is used several times on disk, as long as it is needed."""
    held = frame.persist(StorageLevel.DISK_ONLY)
    kept.callback(held.unpersist)
    return held


def _open(folded: DataFrame, part: str, schema: pa.Schema) -> DataFrame:
    return folded.select(part).mapInArrow(OpenPart(), spark_schema(schema))


def _key(shape: TableShape, columns: Columns) -> Columns:
    by_position = {column.position: column for column in columns if column.is_current}
    return tuple(by_position[column.position] for column in shape.key)


def snapshot_of(table: Table) -> int | None:
    snapshot = table.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())

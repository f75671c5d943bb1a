"""Snapshot rows through Spark, for mirrors whose files only Spark can write.

A mirror on a store that Python cannot write to, or with partitions of its owner's, is loaded the
slower way: executors decode the chunks concurrently with batches and keep the rows on their disks;
while batches wait, Spark merges them with the tail of the change log and writes the mirror.

Also here: the sequential checksum, for snapshots of bridges that send no `chunks_checksum`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import split_range
from lake_consumer.columns import TEXT_COLUMN, Columns
from lake_consumer.errors import SnapshotGone
from lake_consumer.iceberg.decode import Decoder, SentRow, row_type
from lake_consumer.iceberg.keys import field
from lake_consumer.iceberg.load_tail import Tail, keep, open_part
from lake_consumer.iceberg.outcomes import heal, healing_schema, mirror_arrow_schema
from lake_consumer.jetstream.chunks import CHECKSUM, CHUNKS, ChecksumSource, ChunkSource
from lake_consumer.loads import Meta
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import CODECS
from schemas.names import TableName
from schemas.shapes import TableShape

PARTS_PER_CORE = 4


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


@dataclass(frozen=True)
class SparkRows:
    """Reads snapshots as frames of rows."""

    spark: SparkSession
    nats: NatsOptions

    def read(self, table: TableName, meta: Meta, decoder: ChunkDecoder) -> DataFrame:
        """The rows of a snapshot, as a column `row`; lazy."""
        schema = from_arrow_schema(decoder.schema, prefer_timestamp_ntz=True)
        if not meta.batch_count:
            return self.spark.createDataFrame([], schema)
        parts = self.spark.sparkContext.defaultParallelism * PARTS_PER_CORE
        ranges = split_range(0, meta.batch_count - 1, parts)
        source = ChunkSource(self.nats, table, meta.snapshot_id, ranges)
        indices = self.spark.range(0, len(ranges), 1, len(ranges))
        chunks = indices.mapInArrow(source, from_arrow_schema(CHUNKS))
        return chunks.mapInArrow(decoder, schema)

    def checksum(self, table: TableName, meta: Meta) -> str:
        """The sequential checksum over all chunks, which reads each of them in one task."""
        whole = [(0, meta.batch_count - 1)] if meta.batch_count else []
        source = ChecksumSource(ChunkSource(self.nats, table, meta.snapshot_id, whole))
        one = self.spark.range(0, 1, 1, 1)
        found = one.mapInArrow(source, from_arrow_schema(CHECKSUM)).collect()
        return str(found[0]["checksum"])


def compare(table: TableName, meta: Meta, *, rows: int, checksum: str, expected: str) -> None:
    """Compare what was read with the meta."""
    if (checksum, rows) != (expected, meta.row_count):
        raise SnapshotGone(
            f"snapshot {meta.snapshot_id} of {table} is not what was stored: {rows} rows of"
            f" {meta.row_count}, {checksum} and not {expected}"
        )


def merge(rows: DataFrame, tail: Tail | None, names: list[str], kept: ExitStack) -> DataFrame:
    """The snapshot's rows with the outcome of the tail over them, as the mirror's columns."""
    cells = [field("", name) for name in (*names, TEXT_COLUMN)]
    taken = rows.select("row.*")
    if tail is None:
        return taken.select(*cells)
    keyed = tail.keyed
    folded = keep(tail.fold(keyed.columns, None), kept)
    left = open_part(folded, "rows", mirror_arrow_schema(keyed.columns))
    if tail.facts.truncated:
        # Nothing of the snapshot is left, and every row began with an insert.
        return left.select(*cells)
    if tail.facts.unchanged:
        waiting = open_part(folded, "healing", healing_schema(keyed.columns))
        left = left.unionByName(heal(waiting, taken, keyed))
    held = open_part(folded, "held", keyed.schema)
    held = held.withColumnsRenamed({alias: f"_h{alias}" for alias in keyed.aliases})
    same = [F.col(alias).eqNullSafe(F.col(f"_h{alias}")) for alias in keyed.aliases]
    untouched = keyed.keyed(rows, "row").join(held, on=same, how="left_anti")
    return untouched.select("row.*").unionByName(left).select(*cells)

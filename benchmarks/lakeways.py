"""Ways into a mirror: the lake's own, beside one SQL `MERGE` of the same outcomes.

Each way has a mirror of its own, filled alike, and they take the same batches in turns, so that a
busy machine and a warm JVM are the same to both. A batch changes no key twice: its changes are
their outcomes. The clock of our own way runs from blocks as executors decode them, and so has the
fold in it, the writing of files, the delete by key, the branch and its publishing. The MERGE is
given its rows folded, opened and in memory, and commits right to the table; what it took to hand
Spark the rows of the same blocks is a figure of its own, since our way never does. The first
batches warm the JVM and count for nothing. Both mirrors must hold the same rows in the end, and as
many as the batches leave, or there is no figure.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.lakerun import LakeFolder
from benchmarks.lakestream import row, shape_of
from benchmarks.scenario import Figures, Setting, Wrong
from examples.embedded import temporary_folder
from lake_consumer.columns import TEXT_COLUMN, Columns, columns_of
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.ahead import RANGE_MESSAGES
from lake_consumer.iceberg.blocks import BlockMaker, TablePlan
from lake_consumer.iceberg.decode import Decoder, log_arrow_schema
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.folding import folding
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.mirror import MirrorWriter
from lake_consumer.iceberg.names import LakeName, mirror_of, quote
from lake_consumer.iceberg.opening import OpenBlocks
from lake_consumer.iceberg.table import BUCKET_ROWS, MAX_BUCKETS
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.session import SessionOptions, open_session
from lake_consumer.watermark import Watermark
from schemas.names import TableName

ROWS, OUTCOMES = 1_000_000, 100_000
WARM_UP, BATCHES = 2, 4
OURS, MERGED = "ours", "merged"
OPENED = "opened"
_SOURCE = "outcomes"
_COMMITTED = "2025-12-08T13:45:21Z"

Changes = list[tuple[str, dict[str, object]]]


@dataclass
class Mix:
    """Makes batches of 60/30/10 in any order, each key at most once in a batch."""

    rows: int
    keys: list[int] = field(init=False)
    batches: int = 0

    def __post_init__(self) -> None:
        self.keys = list(range(1, self.rows + 1))
        self._next = self.rows + 1
        self._dice = random.Random(7)

    def batch(self, outcomes: int) -> Changes:
        self.batches += 1
        inserts, deletes = outcomes * 6 // 10, outcomes // 10
        new = range(self._next, self._next + inserts)
        touched = self._dice.sample(self.keys, outcomes - inserts)
        gone, updated = set(touched[:deletes]), touched[deletes:]
        self._next += inserts
        self.keys = [key for key in self.keys if key not in gone] + list(new)
        made: Changes = [("INSERT", row(key, 0)) for key in new]
        made += [("UPDATE", row(key, self.batches)) for key in updated]
        made += [("DELETE", {**dict.fromkeys(row(key, 0)), "id": key}) for key in gone]
        self._dice.shuffle(made)
        return made


@dataclass(frozen=True)
class Batch:
    """One batch as both ways take it, in memory before a clock starts."""

    blocks: DataFrame
    facts: Facts
    source: DataFrame
    opened_s: float


class Ways:
    """Both ways, each with its mirror."""

    def __init__(self, spark: SparkSession, outcomes: int) -> None:
        self._spark = spark
        self._tables = LakeTables(spark)
        self._last = 0
        self._buckets = max(1, min(MAX_BUCKETS, outcomes // BUCKET_ROWS))
        shape = shape_of(OURS)
        self._columns: Columns = columns_of(shape)
        self._keyed = KeyedRows(self._columns, tuple(c for c in self._columns if c.name == "id"))
        self._plan = TablePlan(Decoder(self._columns, {1: shape}), self._keyed, self._buckets)
        self.names = {way: mirror_of(TableName.parse(way)) for way in (OURS, MERGED)}
        name = self.names[OURS]
        self._mirror = self._tables.load(name)
        self._writer = MirrorWriter(spark, self._tables, FileAdder(self._tables), name.sql)
        self.ways: Mapping[str, Callable[[Batch], None]] = {OURS: self._ours, MERGED: self._merge}

    def take(self, changes: Changes, first: str) -> dict[str, float]:
        """Let both ways take a batch, one of them first; gives seconds."""
        batch = self._ready(changes)
        self._tables.set_stamp(Watermark(self._last, self._last, _COMMITTED), {})
        seconds = {OPENED: batch.opened_s}
        for way in sorted(self.ways, key=lambda name: name != first):
            began = time.monotonic()
            self.ways[way](batch)
            seconds[way] = time.monotonic() - began
        batch.blocks.unpersist()
        return seconds

    def _ready(self, changes: Changes) -> Batch:
        made = [
            block
            for first in range(0, len(changes), RANGE_MESSAGES)
            for block in self._made(changes[first : first + RANGE_MESSAGES])
        ]
        blocks = self._spark.createDataFrame(pa.Table.from_batches(made)).persist()
        facts = Facts.of(blocks.drop("block").collect())
        schema = from_arrow_schema(log_arrow_schema(self._columns), prefer_timestamp_ntz=True)
        opened = blocks.select("block").mapInArrow(OpenBlocks(), schema)
        outcomes = opened.selectExpr(
            "IF(operation = 'DELETE', old, new) AS outcome", "operation = 'DELETE' AS is_gone"
        ).select("outcome.*", "is_gone")
        began = time.monotonic()
        # Not cached: the lake's sessions cache a row at a time, which suits blocks alone.
        source = outcomes.localCheckpoint()
        return Batch(blocks, facts, source, time.monotonic() - began)

    def _made(self, changes: Changes) -> Iterator[pa.RecordBatch]:
        """Make blocks of a stretch of the stream, as executors do."""
        maker = BlockMaker({OURS: self._plan})
        for operation, data in changes:
            self._last += 1
            maker.add(
                self._last,
                f"cdc.{OURS}.{operation.lower()}".encode(),
                {
                    "operation": operation, "data": data, "schema_revision": 1, "lsn": self._last,
                    "commit_lsn": self._last, "commit_ts": _COMMITTED, "xid": 1, "seq": 0,
                    "last": True, "msg_id": f"{self._last:x}",
                },
                0,
            )  # fmt: skip
        if refused := maker.decode(all=True):
            raise Wrong(f"{len(refused)} changes were refused: {refused[0].reason}")
        yield from maker.emit()

    def _ours(self, batch: Batch) -> None:
        begun = self._writer.begin(
            self._mirror, OURS, batch.facts, self._keyed, buckets=self._buckets, renames={}
        )
        if begun is None:
            raise Wrong("the mirror has the batch already")
        cores = self._spark.sparkContext.defaultParallelism
        with folding(batch.blocks, {OURS: begun.fold_plan}, cores) as folded:
            self._writer.finish(begun, folded[OURS])

    def _merge(self, batch: Batch) -> None:
        batch.source.createOrReplaceTempView(_SOURCE)
        names = [quote(name) for name in batch.source.columns if name != "is_gone"]
        self._spark.sql(
            f"MERGE INTO {self.names[MERGED].sql} t USING {_SOURCE} s ON t.id = s.id "
            "WHEN MATCHED AND s.is_gone THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{n} = s.{n}' for n in names)} "
            f"WHEN NOT MATCHED AND NOT s.is_gone THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{n}' for n in names)})"
        )

    def demand(self, mix: Mix) -> None:
        """Make sure that both mirrors hold the same rows, and as many as there are."""
        ours, merged = (self._sums(name) for name in self.names.values())
        if ours != merged or ours[:2] != (len(mix.keys), sum(mix.keys)):
            raise Wrong(f"ours holds {ours}, the merged {merged}, of {len(mix.keys)} rows")

    def _sums(self, name: LakeName) -> tuple[object, ...]:
        columns = ", ".join(quote(column.name) for column in self._columns)
        query = f"SELECT count(*), sum(id), sum(hash({columns})), count({TEXT_COLUMN})"
        return tuple(self._spark.sql(f"{query} FROM {name.sql}").collect()[0])


def measure_ways(setting: Setting) -> Iterator[Figures]:
    """Measure batches of the same outcomes both ways, in turns."""
    for _ in range(setting.rounds):
        with temporary_folder() as folder:
            yield _round(folder, setting.scaled(ROWS), setting.scaled(OUTCOMES))


def _round(folder: Path, rows: int, outcomes: int) -> Figures:
    lake = LakeFolder(folder / "lake")
    lake.fill({OURS: rows, MERGED: rows})
    options = SessionOptions(master="local[2]", warehouse=lake.warehouse, catalog=lake.catalog)
    spark = open_session(options)
    try:
        ways, mix = Ways(spark, outcomes), Mix(rows)
        turns = [(OURS, MERGED)[at % 2] for at in range(WARM_UP + BATCHES)]
        taken = [ways.take(mix.batch(outcomes), first) for first in turns]
        ways.demand(mix)
    finally:
        spark.stop()
    median = {
        name: statistics.median(seconds[name] for seconds in taken[WARM_UP:]) for name in taken[0]
    }
    ours, merged, opened = median[OURS], median[MERGED], median[OPENED]
    return {
        "outcomes": outcomes,
        "ours_batch_s": ours,
        "merge_batch_s": merged,
        "open_rows_s": opened,
        "merge_vs_ours": merged / ours,
        "opened_merge_vs_ours": (opened + merged) / ours,
    }

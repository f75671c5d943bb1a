"""The table of cuts as the driver writes it: one row for every table that a lake commit touched.

A row or a few per batch are no work for Spark: a job for them cost more than anything else of a
small batch. They are one small file, written here and added like those of the executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.batches import Batch
from lake_consumer.errors import LakeBusy
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.names import CUTS
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.iceberg.types import cuts_schema

_LOADED = "_loaded_cuts"
_DDL = (
    "table_name string, commit_lsn bigint, commit_ts timestamp, stream_seq bigint, "
    "snapshot_id bigint, changes_snapshot_id bigint, gone_since bigint, "
    "fork_seq bigint"
)


class CutTable(NamedTuple):
    """Where a table stands at a cut; None where a batch touched no table at all."""

    name: str | None
    snapshot_id: int | None
    changes_snapshot_id: int | None
    gone_since: int | None = None


@dataclass(frozen=True)
class CutWriter:
    """Adds cuts, or corrects the newest one."""

    spark: SparkSession
    tables: LakeTables
    files: FileAdder

    def write(self, batch: Batch, standing: Sequence[CutTable]) -> None:
        cuts = self._open(batch)
        if batch.messages and (target := self.files.target(cuts)) is not None:
            self.files.add(cuts, target.write(_rows(batch, standing, target.schema)))
        elif batch.messages:
            self._frame(batch, standing).writeTo(CUTS.sql).append()
        else:
            self._replace(self._frame(batch, standing))

    def _open(self, batch: Batch) -> Table:
        """Make the table of cuts where it is missing; it must not be where this batch leads."""
        if not self.tables.exists(CUTS):
            return self.tables.create(CUTS, cuts_schema())
        # Tables may be further by now than this batch; a cut of it would name the wrong snapshots.
        cuts = self.tables.load(CUTS)
        self.tables.add_fields(cuts, cuts_schema())
        reached = self.tables.watermark(cuts).stream_sequence
        if reached >= batch.first:
            raise LakeBusy(
                f"the lake is at stream sequence {reached} already, put there by another consumer,"
                f" while {batch.first} to {batch.last} were applied"
            )
        return cuts

    def _frame(self, batch: Batch, standing: Sequence[CutTable]) -> DataFrame:
        filled = [
            (table, batch.commit_lsn, None, batch.last, snapshot, changes, gone, None)
            for table, snapshot, changes, gone in standing
        ]
        moment = F.to_timestamp(F.lit(batch.commit_ts))
        frame = self.spark.createDataFrame(filled, _DDL).withColumn("commit_ts", moment)
        return frame.coalesce(1)

    def _replace(self, frame: DataFrame) -> None:
        """Let a mirror that was loaded stand for its table at a cut that is there already."""
        frame.createOrReplaceTempView(_LOADED)
        try:
            self.spark.sql(
                f"MERGE INTO {CUTS.sql} t USING {_LOADED} s"
                " ON t.table_name = s.table_name AND t.stream_seq = s.stream_seq"
                " WHEN MATCHED AND s.snapshot_id IS NOT NULL THEN UPDATE SET"
                " t.snapshot_id = s.snapshot_id, t.changes_snapshot_id = s.changes_snapshot_id,"
                " t.gone_since = s.gone_since"
                " WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            self.spark.catalog.dropTempView(_LOADED)


def _rows(batch: Batch, standing: Sequence[CutTable], schema: pa.Schema) -> pa.RecordBatch:
    moment = datetime.fromisoformat(batch.commit_ts)
    rows = [
        {
            "table_name": table,
            "commit_lsn": batch.commit_lsn,
            "commit_ts": moment,
            "stream_seq": batch.last,
            "snapshot_id": snapshot,
            "changes_snapshot_id": changes,
            "gone_since": gone,
            "fork_seq": None,
        }
        for table, snapshot, changes, gone in standing
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)

"""One batch into a mirror; readers see all of it at once.

| In the batch       | What is done |
|---|---|
| nothing new        | nothing |
| a truncate         | overwrite with the outcomes of what follows the last one |
| inserts only       | append: PostgreSQL's key says that none of them is there |
| anything else      | delete the keys that the mirror holds, append the rows, publish both |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lake_consumer.columns import Columns
from lake_consumer.evolution import Renames
from lake_consumer.iceberg.blocks import Facts, OpenPart
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.merge import delete_sql
from lake_consumer.iceberg.outcomes import (
    FOLDED,
    Folder,
    heal,
    healing_schema,
    mirror_arrow_schema,
)
from lake_consumer.iceberg.staging import Staging
from lake_consumer.iceberg.tables import LakeTables, Table

BROADCAST_ROWS = 4_000_000
"""With more keys than that, Spark decides how to join: every reader would have to hold them."""

FOLD_PARTITIONS = 8
_views = count()


class Write(Enum):
    """The ways a batch reaches a mirror."""

    NOTHING = auto()
    OVERWRITE = auto()
    APPEND = auto()
    REPLACE = auto()


def plan_write(facts: Facts, mark: int, *, is_empty: bool) -> Write:
    """Choose the way for a batch, of which the mirror has what is up to `mark`."""
    if facts.last <= mark:
        return Write.NOTHING
    if facts.truncated is not None and facts.truncated > mark:
        return Write.OVERWRITE
    return Write.APPEND if is_empty or facts.inserts == facts.rows else Write.REPLACE


@dataclass(frozen=True)
class MirrorWriter:
    """Writes one table's batches to its mirror."""

    spark: SparkSession
    tables: LakeTables
    sql: str

    def write(
        self,
        mirror: Table,
        blocks: DataFrame,
        facts: Facts,
        rows: KeyedRows,
        *,
        buckets: int,
        renames: Renames,
    ) -> None:
        """Bring a table's blocks into its mirror, as far as they are above its mark."""
        mirror.refresh()
        mark = self.tables.watermark(mirror).stream_sequence
        plan = plan_write(facts, mark, is_empty=mirror.currentSnapshot() is None)
        if plan is Write.NOTHING:
            return
        columns = self.tables.columns(mirror)
        folder = Folder(rows, columns, _above(facts, mark), renames)
        folded = self._fold(blocks, facts, folder, buckets)
        folded.persist()
        try:
            staging = Staging(self.tables, mirror, self.sql)
            staging.publish(lambda to: self._stage(to, plan, folded, facts, (rows, columns)))
        finally:
            folded.unpersist()
        mirror.refresh()

    def _fold(self, blocks: DataFrame, facts: Facts, folder: Folder, buckets: int) -> DataFrame:
        # A change of key ties buckets together, so then there is one place for all of them.
        parts = 1 if facts.moved else min(buckets, FOLD_PARTITIONS)
        spread = blocks.repartition(parts, "bucket") if parts > 1 else blocks.repartition(1)
        return spread.select("first", "block").mapInArrow(folder, from_arrow_schema(FOLDED))

    def _stage(
        self,
        branch: str,
        plan: Write,
        folded: DataFrame,
        facts: Facts,
        layout: tuple[KeyedRows, Columns],
    ) -> None:
        rows, columns = layout
        if plan is Write.REPLACE:
            self._delete(branch, folded, facts, rows)
        writer = self._rows(folded, facts, rows, columns).writeTo(branch)
        if plan is Write.OVERWRITE:
            # After a truncate every row began with an insert, so nothing is kept of before.
            writer.overwrite(F.lit(True))
        else:
            writer.append()

    def _delete(self, branch: str, folded: DataFrame, facts: Facts, rows: KeyedRows) -> None:
        keys = folded.select("held").mapInArrow(OpenPart(), spark_schema(rows.schema))
        view = f"_held_{next(_views)}"
        hinted = F.broadcast(keys) if facts.rows <= BROADCAST_ROWS else keys
        hinted.createOrReplaceTempView(view)
        try:
            self.spark.sql(delete_sql(branch, view, rows, facts.edges))
        finally:
            self.spark.catalog.dropTempView(view)

    def _rows(
        self, folded: DataFrame, facts: Facts, rows: KeyedRows, columns: Columns
    ) -> DataFrame:
        """The rows that the batch leaves, as the mirror has them."""
        schema = spark_schema(mirror_arrow_schema(columns))
        ready = folded.select("rows").mapInArrow(OpenPart(), schema)
        if not facts.unchanged:
            return ready
        waiting = folded.select("healing").mapInArrow(
            OpenPart(), spark_schema(healing_schema(rows.columns))
        )
        # Main, not the branch: what waits for a column needs the row as it was.
        return ready.unionByName(heal(waiting, self.spark.table(self.sql), rows))


def _above(facts: Facts, mark: int) -> int:
    return max(mark, facts.truncated or 0)


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)

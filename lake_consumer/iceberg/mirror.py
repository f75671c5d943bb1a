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
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.datafiles import Written, read_files
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.merge import delete_sql
from lake_consumer.iceberg.opening import OpenPart
from lake_consumer.iceberg.outcomes import (
    FOLDED,
    Folder,
    heal,
    healing_schema,
    mirror_arrow_schema,
)
from lake_consumer.iceberg.staging import Staging, branch_of
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
    files: FileAdder
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
        target = self.files.target(mirror)
        folder = Folder(rows, columns, _above(facts, mark), renames, target)
        folded = self._fold(blocks, facts, folder, buckets)
        folded.persist()
        try:
            outcome = self._outcome(folded, facts, rows, columns, is_written=target is not None)
            staging = Staging(self.tables, mirror, self.sql)
            staging.publish(lambda to: self._stage(plan, mirror, to, outcome))
        finally:
            folded.unpersist()
        mirror.refresh()

    def _fold(self, blocks: DataFrame, facts: Facts, folder: Folder, buckets: int) -> DataFrame:
        # A change of key ties buckets together, so then there is one place for all of them.
        parts = 1 if facts.moved else min(buckets, FOLD_PARTITIONS)
        spread = blocks.repartition(parts, "bucket") if parts > 1 else blocks.repartition(1)
        return spread.select("first", "block").mapInArrow(folder, from_arrow_schema(FOLDED))

    def _outcome(
        self,
        folded: DataFrame,
        facts: Facts,
        rows: KeyedRows,
        columns: Columns,
        *,
        is_written: bool,
    ) -> Outcome:
        if not is_written:
            return Outcome(folded, facts, rows, columns, heals=facts.unchanged)
        # Collecting names alone makes every outcome, and keeps it where it was made.
        names = folded.select(
            "files", F.isnotnull("held").alias("holds"), F.isnotnull("healing").alias("heals")
        ).collect()
        return Outcome(
            folded,
            facts,
            rows,
            columns,
            files=tuple(file for name in names for file in read_files(name["files"])),
            holds=any(name["holds"] for name in names),
            heals=any(name["heals"] for name in names),
        )

    def _stage(self, plan: Write, mirror: Table, to: str, outcome: Outcome) -> None:
        """Write what the batch makes of the mirror to a branch."""
        if plan is Write.REPLACE and outcome.holds:
            self._delete(to, outcome)
        # After a truncate every row began with an insert, so nothing is kept of before.
        instead = plan is Write.OVERWRITE
        if outcome.files is None:
            made = outcome.rows_made()
            if outcome.heals:
                made = made.unionByName(self._healed(outcome))
            writer = made.writeTo(to)
            writer.overwrite(F.lit(True)) if instead else writer.append()
            return
        self.files.add(mirror, outcome.files, branch_of(to), instead=instead)
        if outcome.heals:
            self._healed(outcome).writeTo(to).append()

    def _delete(self, to: str, outcome: Outcome) -> None:
        keys, facts = outcome.keys_held(), outcome.facts
        view = f"_held_{next(_views)}"
        hinted = F.broadcast(keys) if facts.rows <= BROADCAST_ROWS else keys
        hinted.createOrReplaceTempView(view)
        try:
            self.spark.sql(delete_sql(to, view, outcome.rows, facts.edges))
        finally:
            self.spark.catalog.dropTempView(view)

    def _healed(self, outcome: Outcome) -> DataFrame:
        # Main, not the branch: what waits for a column needs the row as it was.
        return heal(outcome.rows_waiting(), self.spark.table(self.sql), outcome.rows)


@dataclass(frozen=True)
class Outcome:
    """What a batch makes of a mirror: keys that go, rows that come, rows that wait for columns."""

    folded: DataFrame
    facts: Facts
    rows: KeyedRows
    columns: Columns
    files: tuple[Written, ...] | None = None
    """The rows that come, where executors have written them; else Spark has to."""
    holds: bool = True
    heals: bool = False

    def keys_held(self) -> DataFrame:
        return self._opened("held", self.rows.schema)

    def rows_made(self) -> DataFrame:
        return self._opened("rows", mirror_arrow_schema(self.columns))

    def rows_waiting(self) -> DataFrame:
        return self._opened("healing", healing_schema(self.rows.columns))

    def _opened(self, part: str, schema: pa.Schema) -> DataFrame:
        return self.folded.select(part).mapInArrow(OpenPart(), spark_schema(schema))


def _above(facts: Facts, mark: int) -> int:
    return max(mark, facts.truncated or 0)


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)

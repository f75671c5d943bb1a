"""One batch into a mirror, in one commit.

| In the batch       | The commit |
|---|---|
| nothing new        | none |
| a truncate         | overwrite with the outcomes of what follows the last one |
| inserts only       | append: PostgreSQL's key says that none of them is there |
| anything else      | MERGE of one outcome per key |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.columns import TEXT_COLUMN
from lake_consumer.iceberg.merge import merge_sql
from lake_consumer.iceberg.outcomes import KeyedRows, field, heal, outcomes_of

_INTEGERS = frozenset({"int16", "int32", "int64", "uint32"})
_views = count()


class Write(Enum):
    """The ways a batch reaches a mirror."""

    NOTHING = auto()
    OVERWRITE = auto()
    APPEND = auto()
    MERGE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is in a batch, as far as it decides how it is written."""

    fresh: int
    rewrites: int
    special: bool
    truncated: int | None
    lowest: int | None
    highest: int | None

    @property
    def edges(self) -> tuple[int, int] | None:
        """The range of the first key column, where it is an integer."""
        if self.lowest is None or self.highest is None:
            return None
        return self.lowest, self.highest

    def plan(self) -> Write:
        if not self.fresh:
            return Write.NOTHING
        if self.truncated is not None:
            return Write.OVERWRITE
        return Write.MERGE if self.rewrites else Write.APPEND


def fact_columns(rows: KeyedRows, mark: int) -> list[Column]:
    """Aggregates that read `Facts` from a batch's events above the mirror's mark."""
    fresh = F.col("stream_seq") > mark
    truncate = fresh & (F.col("operation") == "TRUNCATE")
    # Files can be left out by range only where Iceberg's order of the key is the obvious one.
    edge = F.col("_k0") if rows.key[0].type.kind in _INTEGERS else F.lit(None).cast("bigint")
    return [
        F.count_if(fresh).alias("fresh"),
        F.count_if(fresh & (F.col("operation") != "INSERT")).alias("rewrites"),
        (F.count_if(fresh & F.col("special")) > 0).alias("special"),
        F.max(F.when(truncate, F.col("stream_seq"))).alias("truncated"),
        F.min(F.when(fresh, edge)).alias("lowest"),
        F.max(F.when(fresh, edge)).alias("highest"),
    ]


class MirrorWriter:
    """Writes one table's batches to its mirror."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        self._spark = spark
        self._target = target

    def write(
        self, events: DataFrame, mark: int, facts: Facts, rows: KeyedRows, names: list[str]
    ) -> None:
        """Bring events above the mark into the mirror, whose columns are `names`."""
        above = max(mark, facts.truncated or 0)
        fresh = events.where((F.col("stream_seq") > above) & (F.col("operation") != "TRUNCATE"))
        cells = [field("row", name).alias(name) for name in (*names, TEXT_COLUMN)]
        acts: dict[Write, Any] = {
            Write.NOTHING: lambda: None,
            Write.APPEND: lambda: fresh.select(*cells).writeTo(self._target).append(),
            Write.OVERWRITE: lambda: self._overwrite(fresh, facts, rows, cells),
            Write.MERGE: lambda: self._merge(fresh, facts, rows, cells),
        }
        acts[facts.plan()]()

    def _overwrite(
        self, fresh: DataFrame, facts: Facts, rows: KeyedRows, cells: list[Column]
    ) -> None:
        # After a truncate every row began with an insert, so nothing is kept from the mirror.
        outcomes = outcomes_of(fresh, rows, special=facts.special)
        left = outcomes.where("operation <> 'DELETE'").select(*cells)
        left.writeTo(self._target).overwrite(F.lit(True))

    def _merge(self, fresh: DataFrame, facts: Facts, rows: KeyedRows, cells: list[Column]) -> None:
        outcomes = outcomes_of(fresh, rows, special=facts.special)
        if facts.special:
            outcomes = heal(outcomes, self._spark.table(self._target), rows)
        source = outcomes.select("operation", *cells)
        view = f"_outcomes_{next(_views)}"
        source.createOrReplaceTempView(view)
        # A key that a change of key left behind may lie outside the range of the new keys.
        edges = None if facts.special else facts.edges
        try:
            self._spark.sql(merge_sql(self._target, view, source.columns[1:], rows, edges))
        finally:
            self._spark.catalog.dropTempView(view)

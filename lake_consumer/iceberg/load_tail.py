"""The tail of a load: changes of a table's log that its snapshot does not have yet.

The log holds every change of the table, in Iceberg, so the tail is read from there and not from the
stream. It is folded to one outcome per key. Rows that come are written as data files; keys that go
are found in the load's own files, which no reader sees yet.

A short tail is read and folded by the driver itself, without a Spark job: a hundred small tables
that become live together would have to wait for two jobs each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.columns import Columns
from lake_consumer.evolution import Renames, renames_in
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.datafiles import FileTarget, Written, read_files
from lake_consumer.iceberg.decode import log_arrow_schema
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.log_files import Evolved, read_log_files
from lake_consumer.iceberg.mirror import spark_schema
from lake_consumer.iceberg.names import log_of
from lake_consumer.iceberg.opening import OpenPart
from lake_consumer.iceberg.outcomes import FOLDED, Folder, LogFolder
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.initial_load import SHORT_TAIL
from lake_consumer.shapes import ShapeBook
from schemas.names import TableName
from schemas.shapes import TableShape

FOLD_PARTITIONS = 8
_HEALS = "healing IS NOT NULL AS heals"


@dataclass(frozen=True, slots=True)
class Window:
    """Changes with `commit_lsn >= lsn` and a stream sequence above `after`, up to `upto`."""

    lsn: int
    after: int
    upto: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFacts:
    """What decides how a tail is folded."""

    changes: int
    truncated: int
    moved: bool
    unchanged: bool
    revisions: frozenset[int]


@dataclass(frozen=True, slots=True)
class TailOutcome:
    """What a tail makes of the load's files: rows that come as files, and keys that go."""

    files: tuple[Written, ...] = ()
    keys: tuple[bytes, ...] = ()
    is_truncated: bool = False
    heals: bool = False
    """Rows wait for columns that only the loaded rows have (unchanged TOAST)."""


@dataclass(frozen=True)
class Tail:
    """The changes of one window, and how their table is keyed."""

    changes: DataFrame
    facts: TailFacts
    keyed: KeyedRows
    renames: Renames = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.facts.changes

    def fold(self, mirror: Columns, target: FileTarget | None) -> DataFrame:
        """Rows of `FOLDED`; lazy."""
        folder = Folder(self.keyed, mirror, self.facts.truncated, self.renames, target)
        spread = _spread(self.changes, self.keyed, moved=self.facts.moved)
        return spread.mapInArrow(LogFolder(folder), from_arrow_schema(FOLDED))

    def fold_to_files(self, mirror: Columns, target: FileTarget) -> TailOutcome:
        found = self.fold(mirror, target).selectExpr("files", "held", _HEALS).collect()
        return _outcome(found, is_truncated=bool(self.facts.truncated))


@dataclass(frozen=True)
class ShortTail:
    """The changes of one window, in the driver's memory and in stream order."""

    changes: pa.Table
    keyed: KeyedRows
    truncated: int
    renames: Renames = field(default_factory=dict)

    @property
    def size(self) -> int:
        return int(self.changes.num_rows)

    def fold_to_files(self, mirror: Columns, target: FileTarget) -> TailOutcome:
        folder = Folder(self.keyed, mirror, self.truncated, self.renames, target)
        found = [row for batch in folder.fold_all(self.changes) for row in batch.to_pylist()]
        listed = [
            {
                "files": [tuple(file.values()) for file in row["files"] or ()],
                "held": row["held"],
                "heals": row["healing"] is not None,
            }
            for row in found
        ]
        return _outcome(listed, is_truncated=bool(self.truncated))


def _outcome(found: Sequence[Any], *, is_truncated: bool) -> TailOutcome:
    return TailOutcome(
        files=tuple(file for row in found for file in read_files(row["files"] or ())),
        keys=tuple(bytes(row["held"]) for row in found if row["held"] is not None),
        is_truncated=is_truncated,
        heals=any(row["heals"] for row in found),
    )


class LogTails:
    """Reads tails from change logs."""

    def __init__(
        self, spark: SparkSession, tables: LakeTables, shapes: ShapeBook, files: FileAdder
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._shapes = shapes
        self._files = files
        expressions = tables.iceberg.expressions.Expressions
        self._at_least = expressions.greaterThanOrEqual
        self._above = expressions.greaterThan
        self._at_most = expressions.lessThanOrEqual

    def plan(self, log: Table, window: Window) -> dict[str, int]:
        """The log's files that may have changes of a window, and how many rows each has."""
        scan = log.newScan().filter(self._at_least("commit_lsn", window.lsn))
        scan = scan.filter(self._above("stream_seq", window.after))
        planned = scan.filter(self._at_most("stream_seq", window.upto)).planFiles()
        try:
            files = [task.file() for task in self._tables.java.list(planned)]
            return {str(file.location()): int(file.recordCount()) for file in files}
        finally:
            planned.close()

    def count(self, log: Table, window: Window) -> int:
        """How many changes a window has at most, by the metadata of the log's files alone."""
        return sum(self.plan(log, window).values())

    def read_short(self, table: TableName, newest: TableShape, window: Window) -> ShortTail | None:
        """The changes of a window, if they are few and Arrow can read them."""
        log = self._tables.load(log_of(table))
        files, target = self.plan(log, window), self._files.target(log)
        if target is None or sum(files.values()) > SHORT_TAIL:
            return None
        columns = self._tables.columns(log, "new")
        try:
            rows = read_log_files(files, target.schema, log_arrow_schema(columns), target.store)
        except (Evolved, pa.ArrowException):
            return None
        in_window = pc.and_(
            pc.greater_equal(rows["commit_lsn"], window.lsn),
            pc.and_(
                pc.greater(rows["stream_seq"], window.after),
                pc.less_equal(rows["stream_seq"], window.upto),
            ),
        )
        changes = rows.filter(in_window).sort_by("stream_seq")
        truncates = changes.filter(pc.equal(changes["operation"], "TRUNCATE"))
        lacking = changes.filter(pc.greater(pc.list_value_length(changes["unchanged"]), 0))
        revisions = set(lacking["schema_revision"].to_pylist())
        return ShortTail(
            changes,
            KeyedRows(columns, key_of(newest, columns)),
            pc.max(truncates["stream_seq"]).as_py() or 0,
            renames_in(self._shapes.find_all(table, revisions), columns),
        )

    def read(self, table: TableName, newest: TableShape, window: Window) -> Tail | None:
        """The changes of a window; None if there are none."""
        log = self._tables.load(log_of(table))
        if not self.count(log, window):
            return None
        columns = self._tables.columns(log, "new")
        keyed = KeyedRows(columns, key_of(newest, columns))
        changes = self._spark.table(log_of(table).sql).where(
            (F.col("commit_lsn") >= window.lsn)
            & (F.col("stream_seq") > window.after)
            & (F.col("stream_seq") <= window.upto)
        )
        facts = _facts(changes, keyed)
        if not facts.changes:
            return None
        renames = renames_in(self._shapes.find_all(table, facts.revisions), columns)
        return Tail(changes, facts, keyed, renames)


def _facts(changes: DataFrame, keyed: KeyedRows) -> TailFacts:
    truncate = F.when(F.col("operation") == "TRUNCATE", F.col("stream_seq"))
    same = F.lit(True)
    for before, after in zip(keyed.parts("old"), keyed.parts("new"), strict=True):
        same = same & before.eqNullSafe(after)
    moved = (F.col("operation") == "UPDATE") & F.col("old").isNotNull() & ~same
    unchanged = F.size("unchanged") > 0
    found = changes.agg(
        F.count("*").alias("changes"),
        F.coalesce(F.max(truncate), F.lit(0)).alias("truncated"),
        (F.count_if(moved) > 0).alias("moved"),
        (F.count_if(unchanged) > 0).alias("unchanged"),
        F.collect_set(F.when(unchanged, F.col("schema_revision"))).alias("revisions"),
    ).collect()[0]
    return TailFacts(
        changes=found["changes"],
        truncated=found["truncated"],
        moved=found["moved"],
        unchanged=found["unchanged"],
        revisions=frozenset(found["revisions"]),
    )


def _spread(changes: DataFrame, keyed: KeyedRows, *, moved: bool) -> DataFrame:
    """Bring all changes of a key together; a change of key ties all keys to each other."""
    if moved or not keyed.is_plain:
        return changes.repartition(1)
    row = F.when(F.col("operation") == "DELETE", F.col("old")).otherwise(F.col("new"))
    named = keyed.keyed(changes.withColumn("_row", row), "_row")
    return named.repartition(FOLD_PARTITIONS, *keyed.aliases).select(*changes.columns)


def keep(frame: DataFrame, kept: ExitStack) -> DataFrame:
    """Keep what is used several times on disk, as long as it is needed."""
    held = frame.persist(StorageLevel.DISK_ONLY)
    kept.callback(held.unpersist)
    return held


def open_part(folded: DataFrame, part: str, schema: pa.Schema) -> DataFrame:
    """One column of `FOLDED` as the rows it holds."""
    return folded.select(part).mapInArrow(OpenPart(), spark_schema(schema))


def key_of(shape: TableShape, columns: Columns) -> Columns:
    by_position = {column.position: column for column in columns if column.is_current}
    return tuple(by_position[column.position] for column in shape.key)

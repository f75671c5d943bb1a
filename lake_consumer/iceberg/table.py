"""One table's part of a batch: its changes to its log, and their outcome to its mirror.

Each of the two commits leaves out what its own watermark covers, so a batch that was interrupted
between them can be taken again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.columns import Columns
from lake_consumer.iceberg.decode import Decoder, log_arrow_schema
from lake_consumer.iceberg.following import ShapeFollower
from lake_consumer.iceberg.mirror import Facts, MirrorWriter, fact_columns
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.outcomes import KeyedRows, events_of
from lake_consumer.iceberg.renames import with_current_names
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.logs import warn
from lake_consumer.shapes import ShapeBook
from schemas.names import TableName
from schemas.shapes import TableShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a table stands after a batch."""

    table: TableName
    changes: int
    snapshot_id: int | None
    changes_snapshot_id: int | None


class TableApplier:
    """Applies the batches of one table, in order."""

    def __init__(
        self,
        spark: SparkSession,
        tables: LakeTables,
        shapes: ShapeBook,
        states: StateBook,
        table: TableName,
    ) -> None:
        self._tables = tables
        self._shapes = shapes
        self._states = states
        self._table = table
        self._follower = ShapeFollower(tables, shapes, states, table)
        self._writer = MirrorWriter(spark, mirror_of(table).sql)
        self._log_sql = log_of(table).sql
        self._warned = False

    def apply(self, messages: DataFrame, revisions: set[int]) -> Cut:
        """Bring the table's messages of one batch into its log and its mirror."""
        self._follower.learn_held()
        shapes = self._shapes.find_all(self._table, revisions)
        newest = max(shapes)
        log = self._follower.open_log(shapes)
        mirror = self._open_mirror(shapes[newest], newest)
        columns = self._tables.columns(log, "new")
        changes = messages.mapInArrow(
            Decoder(columns, shapes),
            from_arrow_schema(log_arrow_schema(columns), prefer_timestamp_ntz=True),
        ).persist()
        try:
            if mirror is None:
                logged = self._write_log(log, changes)
            else:
                rows = KeyedRows(columns, _key(shapes[newest], columns))
                events = events_of(with_current_names(changes, shapes, columns), rows)
                logged = self._write_both(log, mirror, changes, events, rows)
        finally:
            changes.unpersist()
        return Cut(
            table=self._table,
            changes=logged,
            snapshot_id=_snapshot(mirror),
            changes_snapshot_id=_snapshot(log),
        )

    def _open_mirror(self, shape: TableShape, revision: int) -> Table | None:
        if not self._states.get(self._table).is_live:
            return None
        if shape.key:
            return self._follower.open_mirror(shape, revision)
        if not self._warned:
            warn(
                "the table has no key, so only its change log is kept",
                table=self._table,
                remedy="a primary key, or REPLICA IDENTITY USING INDEX, gives it a mirror",
            )
            self._warned = True
        return None

    def _write_log(self, log: Table, changes: DataFrame) -> int:
        mark = self._tables.watermark(log).stream_sequence
        logged = changes.where(F.col("stream_seq") > mark).count()
        self._append(log, changes, mark, logged)
        return logged

    def _write_both(
        self, log: Table, mirror: Table, changes: DataFrame, events: DataFrame, rows: KeyedRows
    ) -> int:
        log_mark = self._tables.watermark(log).stream_sequence
        mirror_mark = self._tables.watermark(mirror).stream_sequence
        logged, facts = _read_facts(events, rows, log_mark, mirror_mark)
        self._append(log, changes, log_mark, logged)
        names = [column.name for column in self._tables.columns(mirror)]
        self._writer.write(events, mirror_mark, facts, rows, names)
        mirror.refresh()
        return logged

    def _append(self, log: Table, changes: DataFrame, mark: int, logged: int) -> None:
        if logged:
            changes.where(F.col("stream_seq") > mark).writeTo(self._log_sql).append()
            log.refresh()


def _read_facts(
    events: DataFrame, rows: KeyedRows, log_mark: int, mirror_mark: int
) -> tuple[int, Facts]:
    """Learn in one job what both writes need to know; it also fills the cache they read."""
    logged = F.count_if(F.col("stream_seq") > log_mark).alias("logged")
    found = events.agg(logged, *fact_columns(rows, mirror_mark)).collect()[0].asDict()
    return found.pop("logged"), Facts(**found)


def _key(shape: TableShape, columns: Columns) -> Columns:
    by_position = {column.position: column for column in columns if column.is_current}
    return tuple(by_position[column.position] for column in shape.key)


def _snapshot(table: Table | None) -> int | None:
    snapshot = None if table is None else table.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())

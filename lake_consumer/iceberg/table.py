"""One table's part of a batch: its changes to its log, and their outcome to its mirror.

Each of the two commits leaves out what its own watermark covers, so a batch that was interrupted
between them can be taken again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.batches import Batch
from lake_consumer.columns import Columns
from lake_consumer.errors import LakeBusy
from lake_consumer.evolution import renames_in
from lake_consumer.fills import Fill, fills_in
from lake_consumer.forks import FORK_COLUMN
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.blocks import TablePlan
from lake_consumer.iceberg.datafiles import Written
from lake_consumer.iceberg.decode import Decoder, log_arrow_schema
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.folding import Folded
from lake_consumer.iceberg.following import ShapeFollower
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.mirror import MirrorBatch, MirrorWriter
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.opening import OpenBlocks
from lake_consumer.iceberg.staging import Staging
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.logs import warn
from lake_consumer.shapes import ShapeBook, held_revision
from schemas.names import TableName
from schemas.shapes import TableShape

BUCKET_ROWS = 25_000
MAX_BUCKETS = 32


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
        *,
        files: FileAdder,
    ) -> None:
        self._tables = tables
        self._files = files
        self._shapes = shapes
        self._states = states
        self._table = table
        self._follower = ShapeFollower(tables, shapes, states, table)
        self._writer = MirrorWriter(spark, tables, files, mirror_of(table).sql)
        self._log_sql = log_of(table).sql
        self._log: Table | None = None
        self._mirror: Table | None = None
        self._known: dict[int, TableShape] = {}
        self._columns: Columns = ()
        self._rows: int | None = None
        self._warned = False

    def learn_held(self) -> None:
        """Learn the shape the log has: its announcement may lie far back in the stream."""
        self._follower.learn_held()

    def follow_held(self) -> None:
        """Know the shape that the log has, where there is one."""
        held = self._follower.learn_held()
        if held is not None:
            self.follow([held])

    def follow(self, revisions: Iterable[int]) -> None:
        """Lead the log through these revisions, which the book of shapes knows."""
        wanted = set(revisions)
        new = wanted - self._known.keys()
        # A snapshot may have taught a shape before the stream says from where on rows differ.
        if not new and not any(self._known[revision].rewritten for revision in wanted):
            return
        self._known |= self._shapes.find_all(self._table, new)
        self._log = self._follower.open_log(dict(sorted(self._known.items())))
        self._columns = self._tables.columns(self._log, "new")

    def plan(self, batch: Batch) -> TablePlan | None:
        """How the executors decode this table's part of a batch; None if not at all."""
        log = self._log
        if log is None:
            return None
        messages = batch.messages
        expected = messages if self._rows is None else min(messages, 2 * self._rows)
        return TablePlan(
            Decoder(self._columns, dict(self._known)),
            self._keyed(),
            buckets=max(1, min(MAX_BUCKETS, expected // BUCKET_ROWS)),
            log=self._files.target(log),
            above=self._held(log, batch.first),
        )

    def _held(self, log: Table, first: int) -> int:
        """What the log has of a batch that begins with `first`, which is nothing almost always."""
        return max(self._tables.watermark(log).stream_sequence, first - 1)

    def forget(self, files: Iterable[Written]) -> None:
        """Remove files of the log that were written in vain."""
        self._files.forget(self._log, files)

    @property
    def _newest(self) -> TableShape:
        return self._known[max(self._known)]

    def _keyed(self) -> KeyedRows | None:
        by_position = {column.position: column for column in self._columns if column.is_current}
        key = tuple(by_position[column.position] for column in self._newest.key)
        return KeyedRows(self._columns, key) if key else None

    def begin(self, facts: Facts, plan: TablePlan) -> MirrorBatch | None:
        """Say what a batch means for the mirror; None where it means nothing."""
        self._rows = facts.rows
        mirror, keyed = self._open_mirror(), plan.key
        if mirror is None or keyed is None:
            return None
        renames = renames_in(self._known, self._columns) if facts.unchanged else {}
        token = self._table.token
        return self._writer.begin(
            mirror,
            token,
            facts,
            keyed,
            buckets=plan.buckets,
            renames=renames,
            fills=self._fills(mirror),
        )

    def _fills(self, mirror: Table) -> tuple[Fill, ...]:
        """What changes of older revisions lack in the mirror's columns, in the log's names."""
        if len(self._known) == 1:
            return ()
        shape = self._shapes.learn_properties(self._tables.properties(mirror), self._table)
        if shape is None:
            return ()
        names = {column.position: column.name for column in self._columns if column.is_current}
        sent = {column.name: column.position for column in shape.columns}
        found = fills_in(self._known, shape)
        return tuple(replace(fill, column=names[sent[fill.column]]) for fill in found)

    def advance(self) -> bool:
        """Bring a live mirror to the newest schema although no change needs it yet.

        An empty commit follows: readers of a cut see the columns of the snapshot that it names.
        """
        shape = self._newest
        if not self._states.get(self._table).is_live or not shape.key or not self._has_mirror():
            return False
        mirror = self._follower.open_mirror(shape, max(self._known))
        self._mirror = mirror
        return self._tables.commit_schema(mirror)

    def _has_mirror(self) -> bool:
        return self._mirror is not None or self._tables.exists(mirror_of(self._table))

    def finish(self, batch: MirrorBatch, folded: Folded) -> None:
        """Bring what the fold made of a batch into the mirror."""
        self._writer.finish(batch, folded)

    def cut(self, facts: Facts | None) -> Cut:
        """Where the table stands when all of a batch is in."""
        return Cut(
            table=self._table,
            changes=0 if facts is None else facts.rows,
            snapshot_id=_snapshot(self._mirror),
            changes_snapshot_id=_snapshot(self._log),
        )

    def append(self, blocks: DataFrame, facts: Facts, plan: TablePlan) -> None:
        """Bring the table's part of a batch's blocks into its log."""
        log = self._log
        if log is None:
            raise LookupError(f"{self._table} was given changes before its shape")
        # Maintenance moves a table on; another consumer may even have applied this very batch.
        log.refresh()
        mark = self._tables.watermark(log).stream_sequence
        if facts.last <= mark:
            self.forget(facts.files)
            return
        staging = Staging(self._tables, log, self._log_sql)
        if facts.files and mark > plan.above:
            raise LakeBusy(f"{log.name()} was changed by another consumer of the stream")
        if facts.files:
            staging.publish_at_once(
                lambda change, to: self._files.add(log, facts.files, to, change=change)
            )
        else:
            schema = from_arrow_schema(log_arrow_schema(self._columns), prefer_timestamp_ntz=True)
            own = blocks.where(F.col("token") == self._table.token)
            opened = own.select("block").mapInArrow(OpenBlocks(mark), schema)
            if FORK_COLUMN in {field["name"] for field in self._tables.schema(log)["fields"]}:
                opened = opened.withColumn(FORK_COLUMN, F.lit(None).cast("bigint"))
            staging.publish(lambda branch: opened.writeTo(branch).append())
        log.refresh()

    def _open_mirror(self) -> Table | None:
        """Open the mirror in the newest schema: rows come in the log's columns, which have it."""
        if not self._states.get(self._table).is_live:
            self._mirror = None
            return None
        revision = max(self._known)
        shape = self._known[revision]
        if shape.key:
            if self._mirror is None or revision > held_revision(
                self._tables.properties(self._mirror)
            ):
                self._mirror = self._follower.open_mirror(shape, revision)
            return self._mirror
        if not self._warned:
            warn(
                "the table has no key, so only its change log is kept",
                table=self._table,
                remedy="a primary key, or REPLICA IDENTITY USING INDEX, gives it a mirror",
            )
            self._warned = True
        return None


def _snapshot(table: Table | None) -> int | None:
    snapshot = None if table is None else table.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())

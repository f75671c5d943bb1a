"""Initial loads and resyncs: mirrors from snapshots, concurrently with batches.

Why a mirror that becomes live is right. Let S be the snapshot's LSN and P the stream sequence where
the lake stands between two batches, at or after the snapshot's `cdc_complete`. Every change below S
is in the snapshot, and every other one up to P is in the table's change log, because batches write
the log of a table whether it is loading or not. So the mirror as of P is the snapshot's rows with
the outcome of the log's changes with `commit_lsn >= S`, up to P, over them.

| Phase | Where | What |
|---|---|---|
| reading | beside batches | executors write rows as data files; digests and count are verified |
| catching up | beside batches | the log's tail is folded over them, until it is short |
| finish | between batches | the rest of the tail, and one commit with stamp P; then cut and state |

Until the finish no table names any of these files: readers see nothing of a load, and a process
that dies leaves a table that is loading, plus orphan files that maintenance removes. The finish
publishes by fast-forward, so another consumer that committed in between is detected (`staging`).

A load is valid only for the table state it began with. A resync, a gap, a table that was dropped
and created, or a rewrite moves the state; the load is discarded and another snapshot requested.
Shapes are compared at the finish again: a column that was added, renamed or widened meanwhile has
its own field id, so files written before are still right; anything else discards the load.

Only the finish commits, on the thread that applies batches (`load_publish`). A worker thread reads
and writes files and prepares the mirror's table (`load_worker`); what both share is in `load_book`.
If Spark has to write all rows, see `loading`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql import SparkSession

from lake_consumer.errors import LakeBusy, LakeError, ShapeUnknown, SnapshotGone, UndecodableMessage
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.deleting import RowDeleter
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.load_book import LoadBook
from lake_consumer.iceberg.load_mirror import LoadMirrors, check_shapes
from lake_consumer.iceberg.load_publish import LoadPublisher
from lake_consumer.iceberg.load_state import Phase, SnapshotLoad
from lake_consumer.iceberg.load_tail import LogTails
from lake_consumer.iceberg.load_worker import LoadWorker
from lake_consumer.iceberg.names import log_of
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table import Cut
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.initial_load import needs_catch_up, why_stale
from lake_consumer.loads import Meta
from lake_consumer.logs import info
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import ShapeBook
from schemas.names import TableName

UNUSABLE = (SnapshotGone, ShapeUnknown, UndecodableMessage)
"""Failures of one snapshot: another one is requested."""


class SnapshotLoads:
    """Loads snapshots, each into the mirror of its table; for the thread that applies batches."""

    worker_class: ClassVar[type[LoadWorker]] = LoadWorker

    def __init__(
        self,
        spark: SparkSession,
        nats: NatsOptions,
        tables: LakeTables,
        shapes: ShapeBook,
        states: StateBook,
        *,
        files: FileAdder,
        side_by_side: int = 4,
    ) -> None:
        self._tables = tables
        self._shapes = shapes
        self._states = states
        self._book = LoadBook()
        deleter = RowDeleter(spark, tables, files)
        self._mirrors = LoadMirrors(tables, shapes, states, files=files, deleter=deleter)
        self._tails = LogTails(spark, tables, shapes, files)
        self._publisher = LoadPublisher(
            spark, tables, self._mirrors, self._tails, files=files, deleter=deleter
        )
        self.worker = self.worker_class(
            spark,
            nats,
            tables,
            self._book,
            mirrors=self._mirrors,
            tails=self._tails,
            side_by_side=side_by_side,
        )

    def see(self, table: TableName, revision: int, end: int) -> None:
        """Take a table into the lake that it has not seen: its change log is created.

        The stream ended at `end` before KV `schemas` was asked.
        """
        shape = self._shapes.find(table, revision)
        self._mirrors.follower(table).open_log({revision: shape}, seen=end)

    def log_snapshot(self, table: TableName) -> int | None:
        return snapshot_of(self._tables.load(log_of(table)))

    @property
    def under_way(self) -> Mapping[TableName, SnapshotLoad]:
        return self._book.loads

    @clear_errors
    def begin(self, table: TableName, meta: Meta) -> None:
        """Start a load; raises if the snapshot cannot make a mirror of the table as it is."""
        follower = self._mirrors.follower(table)
        # KV need not know what the log itself does.
        follower.learn_held()
        taken = self._shapes.find(table, meta.schema_revision)
        # A shape that no change needed yet is known from the snapshot only.
        follower.open_log({meta.schema_revision: taken})
        _, newest = follower.newest()
        check_shapes(table, meta, taken, newest)
        self._book.add(SnapshotLoad(table, meta, self._states.get(table), taken))
        self.worker.start()

    def take_failed(self) -> dict[TableName, tuple[Meta, str]]:
        """Loads that came to nothing since the last time, and why; raises what is not their own."""
        self.worker.check()
        failed = {t: load for t, load in self.under_way.items() if load.phase is Phase.FAILED}
        for load in failed.values():
            if load.failure is not None and not isinstance(load.failure, UNUSABLE):
                raise load.failure
            self._discard(load)
        return {table: (load.meta, str(load.failure)) for table, load in failed.items()}

    def drop_stale(self) -> dict[TableName, str]:
        """Discard loads whose table is not in the state any more that they began with."""
        stale = {
            table: why
            for table, load in self.under_way.items()
            if (why := why_stale(load.state, self._states.get(table)))
        }
        for table, why in stale.items():
            info("load discarded", table=table, reason=why)
            self._discard(self.under_way[table])
        return stale

    def ready(self) -> list[TableName]:
        return [load.table for load in self._book.in_phase(Phase.READY)]

    @clear_errors
    def finish(self, table: TableName, position: int) -> Cut | None:
        """Make the mirror live as of `position`; None if there is too much left to fold."""
        load = self.under_way[table]
        mirror = self._mirrors.open(load)
        log = self._tables.load(log_of(table))
        left = self._tails.count(log, load.window(position))
        if load.rows is None and needs_catch_up(left, load.catch_ups):
            self._book.move(load, Phase.CATCHING_UP)
            return None
        mirror.table.refresh()
        self._check_not_ahead(table, mirror.table, position)
        self._publisher.publish(load, mirror, position)
        mirror.table.refresh()
        log.refresh()
        self._book.remove(load)
        _report_loaded(load, position)
        return Cut(
            table=table,
            changes=0,
            snapshot_id=snapshot_of(mirror.table),
            changes_snapshot_id=snapshot_of(log),
        )

    def fail(self, table: TableName, error: LakeError) -> None:
        """Note that a load cannot be finished."""
        self.under_way[table].fail(error)

    def close(self) -> None:
        """Stop loading; what is not live yet is loaded again next time."""
        self.worker.stop()
        for load in list(self.under_way.values()):
            self._discard(load)

    def _discard(self, load: SnapshotLoad) -> None:
        self._book.remove(load)
        if load.rows is not None:
            load.rows.unpersist()
        self._mirrors.forget(load, load.written)

    def _check_not_ahead(self, table: TableName, mirror: Table, position: int) -> None:
        reached = self._tables.watermark(mirror).stream_sequence
        if reached > position:
            raise LakeBusy(
                f"the mirror of {table} is at stream sequence {reached} already, put there by"
                f" another consumer, while a snapshot was loaded as of {position}"
            )


def _report_loaded(load: SnapshotLoad, position: int) -> None:
    seconds = time.monotonic() - load.began
    info(
        "snapshot loaded",
        table=load.table,
        snapshot_id=load.meta.snapshot_id,
        rows=load.meta.row_count,
        seconds=seconds,
        rate=f"{load.meta.row_count / seconds:.0f}/s",
        stream_sequence=position,
    )


def snapshot_of(table: Table) -> int | None:
    snapshot = table.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())

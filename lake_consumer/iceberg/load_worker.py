"""The thread that loads snapshots beside batches: rounds of units, verification, catch-ups.

It reads and writes files and prepares the mirror's table, which batches do not touch while the
table is loading. It commits no rows: that is done between batches (`load_publish`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from lake_consumer.columns import Columns
from lake_consumer.errors import LakeError
from lake_consumer.evolution import names_in
from lake_consumer.iceberg.chunk_files import ChunkFiles, ChunkPlan, UnitDone
from lake_consumer.iceberg.datafiles import FileTarget
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.load_book import LoadBook
from lake_consumer.iceberg.load_mirror import LoadMirrors
from lake_consumer.iceberg.load_state import FoldedTail, Phase, SnapshotLoad
from lake_consumer.iceberg.load_tail import LogTails, keep
from lake_consumer.iceberg.loading import ChunkDecoder, SparkRows, compare
from lake_consumer.iceberg.names import log_of
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.initial_load import (
    PROGRESS_SECONDS,
    Unit,
    count_lanes,
    needs_catch_up,
    plan_units,
)
from lake_consumer.jetstream.chunks import ChunkSource
from lake_consumer.logs import info, warn
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import held_revision
from schemas.shapes import TableShape
from schemas.snapshots import combine_digests

POOL = "spark.scheduler.pool"


class LoadWorker:
    """Works on the loads of a book until each is ready to be published or has failed.

    `position` and `batch_at` are all that it reads of the thread that applies batches.
    """

    def __init__(
        self,
        spark: SparkSession,
        nats: NatsOptions,
        tables: LakeTables,
        book: LoadBook,
        *,
        mirrors: LoadMirrors,
        tails: LogTails,
        side_by_side: int = 4,
    ) -> None:
        self._spark = spark
        self._nats = nats
        self._tables = tables
        self._book = book
        self._mirrors = mirrors
        self._tails = tails
        self._spark_rows = SparkRows(spark, nats)
        self._side_by_side = side_by_side
        self._cores = spark.sparkContext.defaultParallelism
        self.naming = threading.Lock()
        """Held while tables get other names or are removed: no mirror is created by an old name."""
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None
        self.position = 0
        self.batch_at = -1e9

    def start(self) -> None:
        """Let it work, if it does not already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="snapshot-load", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop at the end of the round under way."""
        self._book.is_stopping = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._book.is_stopping = False

    def check(self) -> None:
        """Raise what ended the worker, once."""
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken

    def _work(self) -> None:
        # A pool of its own: batches and loads share the cores, and neither waits for the other.
        self._spark.sparkContext.setLocalProperty(POOL, "load")
        while self._book.wait_for_work():
            try:
                self._turn()
            except BaseException as error:
                self._broken, self._thread = error, None
                return

    @clear_errors
    def _turn(self) -> None:
        """Do a second's work or so for the loads under way."""
        new = self._book.in_phase(Phase.NEW)
        with ThreadPoolExecutor(self._side_by_side) as pool:
            with self.naming:
                list(pool.map(partial(self._attempt, self._open), new))
            opened = [load for load in new if load.phase is Phase.NEW]
            list(pool.map(partial(self._attempt, self._queue), opened))
        idle = time.monotonic() - self.batch_at
        lanes, plans = self._book.take_round(count_lanes(self._cores, idle))
        if lanes:
            self._book.take_done(self.read_round(lanes, plans))
        for load in self._book.in_phase(Phase.READING):
            if len(load.done) == len(load.units):
                self._attempt(self._verify, load)
            self._report(load)
        for load in self._book.in_phase(Phase.CATCHING_UP):
            self._attempt(self._catch_up, load)

    def _attempt(self, step: Callable[[SnapshotLoad], None], load: SnapshotLoad) -> None:
        try:
            clear_errors(step)(load)
        except LakeError as error:
            # Perhaps the table is gone or has another name: the batch thread knows.
            load.fail(error)

    def _open(self, load: SnapshotLoad) -> None:
        self._mirrors.open(load)

    def _queue(self, load: SnapshotLoad) -> None:
        """Queue the snapshot's chunks to be read."""
        mirror = load.mirror
        if mirror is None or mirror.target is None:
            self._read_by_spark(load)
            return
        columns = self._tables.columns(mirror.table)
        meta = load.meta
        load.plan = ChunkPlan(
            source=ChunkSource(self._nats, load.table, meta.snapshot_id),
            decoder=Decoder(columns, {meta.schema_revision: load.taken}),
            revision=meta.schema_revision,
            target=_without_unknown(mirror.target, columns, load.taken),
        )
        self._book.queue(load, plan_units(meta))

    def read_round(
        self, lanes: Sequence[Sequence[Unit]], plans: Mapping[str, ChunkPlan]
    ) -> list[UnitDone]:
        """Let executors read and write the units of a round."""
        wanted = {unit.snapshot_id for lane in lanes for unit in lane}
        write = ChunkFiles(self._nats, {key: plans[key] for key in wanted})
        context = self._spark.sparkContext
        return context.parallelize([list(lane) for lane in lanes], len(lanes)).mapPartitions(
            write
        ).collect()  # fmt: skip

    def _verify(self, load: SnapshotLoad) -> None:
        """Compare what was read with the meta, before anything becomes visible."""
        meta, done = load.meta, [load.done[at] for at in sorted(load.done)]
        if meta.chunks_checksum:
            expected = meta.chunks_checksum
            checksum = combine_digests(unit.digests for unit in done)
        else:
            expected, checksum = meta.checksum, self._spark_rows.checksum(load.table, meta)
        rows = sum(unit.rows for unit in done)
        compare(load.table, meta, rows=rows, checksum=checksum, expected=expected)
        load.files = [file for unit in done for file in unit.files]
        load.phase = Phase.CATCHING_UP

    def _read_by_spark(self, load: SnapshotLoad) -> None:
        """Decode the rows of a mirror that only Spark can write, and keep them."""
        log = self._tables.load(log_of(load.table))
        columns = self._tables.columns(log, "new")
        decoder = ChunkDecoder(columns, load.taken, load.meta.schema_revision)
        with ExitStack() as kept:
            rows = keep(self._spark_rows.read(load.table, load.meta, decoder), kept)
            checksum = self._spark_rows.checksum(load.table, load.meta)
            compare(
                load.table,
                load.meta,
                rows=rows.count(),
                checksum=checksum,
                expected=load.meta.checksum,
            )
            kept.pop_all()
        load.rows = rows
        # The tail is merged in the finish, with the rows themselves.
        load.phase = Phase.READY

    def _catch_up(self, load: SnapshotLoad) -> None:
        """Fold the tail as far as the lake is, if that is worth it."""
        mirror, position = load.mirror, self.position
        log = self._tables.load(log_of(load.table))
        window = load.window(position)
        is_same = mirror is not None and mirror.revision == held_revision(
            self._tables.properties(log)
        )
        if (
            mirror is None
            or not is_same
            or not needs_catch_up(self._tails.count(log, window), load.catch_ups)
        ):
            load.phase = Phase.READY
            return
        load.catch_ups += 1
        try:
            tail = self._tails.read(load.table, mirror.shape, window)
            folded = FoldedTail(()) if tail is None else self._mirrors.fold(load, mirror, tail)
        except LakeError as error:
            # Nothing is lost: the finish folds all of it.
            warn("catch-up failed; the tail is folded later", table=load.table, reason=error)
            folded = None
        if folded is not None:
            self._mirrors.forget(load, load.take(folded, position))
            info("load caught up", table=load.table, stream_sequence=position)
        else:
            # It takes Spark, which commits: while batches wait.
            load.catch_ups = 1 << 30
            load.phase = Phase.READY

    def _report(self, load: SnapshotLoad) -> None:
        now = time.monotonic()
        if now - load.reported >= PROGRESS_SECONDS:
            load.reported = now
            info("loading a snapshot", table=load.table, **load.progress.fields)


def _without_unknown(target: FileTarget, columns: Columns, taken: TableShape) -> FileTarget:
    """Leave out columns that the snapshot does not know: Iceberg fills them when it reads."""
    pairs = zip(columns, names_in(taken, columns), strict=True)
    unknown = {column.name for column, name in pairs if name is None}
    known = [field for field in target.schema if field.name not in unknown]
    return replace(target, schema=pa.schema(known))

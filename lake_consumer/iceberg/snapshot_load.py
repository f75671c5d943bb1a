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

Only the finish commits, on the thread that applies batches. The worker thread here reads and
writes files, and prepares the mirror's table, which batches do not touch while it is loading.

If Spark has to write the tail (a key that Arrow cannot search, copy-on-write, rows that wait for
unchanged TOAST values), it does so in the finish. If it has to write all rows, see `loading`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.columns import Columns
from lake_consumer.errors import LakeBusy, LakeError, ShapeUnknown, SnapshotGone, UndecodableMessage
from lake_consumer.evolution import names_in
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.chunk_files import ChunkFiles, ChunkPlan, UnitDone
from lake_consumer.iceberg.datafiles import FileTarget, Written, location_in_iceberg
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.iceberg.deleting import RowDeleter, key_fields
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.finding import FileToSearch, HeldKeys, NewVector, StoredVector
from lake_consumer.iceberg.following import ShapeFollower
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.load_tail import (
    LogTails,
    ShortTail,
    Tail,
    Window,
    keep,
    key_of,
    open_part,
)
from lake_consumer.iceberg.loading import ChunkDecoder, SparkRows, compare, merge
from lake_consumer.iceberg.merge import delete_sql
from lake_consumer.iceberg.mirror import BROADCAST_ROWS
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.outcomes import heal, healing_schema, mirror_arrow_schema
from lake_consumer.iceberg.staging import Staging, Transaction, branch_of
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table import Cut
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.initial_load import (
    PROGRESS_SECONDS,
    Progress,
    Unit,
    count_lanes,
    needs_catch_up,
    plan_units,
    queue_units,
    take_round,
    why_stale,
)
from lake_consumer.jetstream.chunks import ChunkSource
from lake_consumer.loads import Meta
from lake_consumer.logs import info, warn
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.shapes import ShapeBook, held_revision
from lake_consumer.tablestates import TableState, why_unusable
from schemas.names import TableName
from schemas.shapes import TableShape
from schemas.snapshots import combine_digests

POOL = "spark.scheduler.pool"
UNUSABLE = (SnapshotGone, ShapeUnknown, UndecodableMessage)
"""Failures of one snapshot: another one is requested."""

SEARCHED_HERE_BYTES = 16 << 20
"""Files of a load that the driver searches by itself: a Spark job takes longer."""

_views = count()


class Phase(Enum):
    """How far a load is."""

    NEW = auto()
    READING = auto()
    CATCHING_UP = auto()
    READY = auto()
    FAILED = auto()


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The mirror's table, as a load writes to it."""

    table: Table
    revision: int
    shape: TableShape
    target: FileTarget | None
    fields: tuple[int, ...] | None
    """The key's columns, if executors can find rows by them."""


@dataclass(eq=False)
class SnapshotLoad:
    """One snapshot on its way into a mirror."""

    table: TableName
    meta: Meta
    state: TableState
    """What the table's state was when the load began."""
    taken: TableShape
    began: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)
    phase: Phase = Phase.NEW
    mirror: Mirror | None = None
    plan: ChunkPlan | None = None
    units: Sequence[Unit] = ()
    done: dict[int, UnitDone] = field(default_factory=dict)
    files: list[Written] = field(default_factory=list)
    vectors: dict[str, NewVector] = field(default_factory=dict)
    rows: DataFrame | None = None
    """Of a mirror whose files only Spark can write."""
    upto: int = 0
    """The tail is folded up to this stream sequence."""
    catch_ups: int = 0
    failure: LakeError | None = None

    @property
    def progress(self) -> Progress:
        read = sum(unit.rows for unit in list(self.done.values()))
        return Progress(rows=read, total=self.meta.row_count, seconds=time.monotonic() - self.began)

    def window(self, upto: int) -> Window:
        return Window(self.meta.lsn, self.upto, upto)

    def fail(self, error: LakeError) -> None:
        self.failure, self.phase = error, Phase.FAILED


class SnapshotLoads:
    """Loads snapshots, each into the mirror of its table.

    The public methods belong to the thread that applies batches; `position` and `batch_at` are all
    that the worker thread reads of it, besides the loads themselves.
    """

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
        self._spark = spark
        self._nats = nats
        self._tables = tables
        self._shapes = shapes
        self._states = states
        self._files = files
        self._side_by_side = side_by_side
        self._deleter = RowDeleter(spark, tables, files)
        self._tails = LogTails(spark, tables, shapes, files)
        self._spark_rows = SparkRows(spark, nats)
        self._cores = spark.sparkContext.defaultParallelism
        self._loads: dict[TableName, SnapshotLoad] = {}
        self._waiting: deque[Unit] = deque()
        self._changed = threading.Condition()
        self._worker: threading.Thread | None = None
        self._broken: BaseException | None = None
        self._stopping = False
        self.position = 0
        self.batch_at = -1e9

    # On the thread that applies batches.

    def see(self, table: TableName, revision: int) -> None:
        """Take a table into the lake that it has not seen: its change log is created."""
        shape = self._shapes.find(table, revision)
        self._follower(table).open_log({revision: shape})

    def log_snapshot(self, table: TableName) -> int | None:
        return snapshot_of(self._tables.load(log_of(table)))

    @property
    def under_way(self) -> Mapping[TableName, SnapshotLoad]:
        return self._loads

    @property
    def progress(self) -> Progress:
        """Of all loads together."""
        all_ = [load.progress for load in list(self._loads.values())]
        return Progress(
            rows=sum(one.rows for one in all_), total=sum(one.total for one in all_), seconds=0
        )

    @clear_errors
    def begin(self, table: TableName, meta: Meta) -> None:
        """Start a load; raises if the snapshot cannot make a mirror of the table as it is."""
        follower = self._follower(table)
        taken = self._shapes.find(table, meta.schema_revision)
        # A shape that no change needed yet is known from the snapshot only.
        follower.open_log({meta.schema_revision: taken})
        _, newest = follower.newest()
        _check_shapes(table, meta, taken, newest)
        load = SnapshotLoad(table, meta, self._states.get(table), taken)
        with self._changed:
            self._loads[table] = load
            self._start()
            self._changed.notify_all()

    def take_failed(self) -> dict[TableName, tuple[Meta, str]]:
        """Loads that came to nothing since the last time, and why; raises what is not their own."""
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        failed = {t: load for t, load in self._loads.items() if load.phase is Phase.FAILED}
        for load in failed.values():
            if load.failure is not None and not isinstance(load.failure, UNUSABLE):
                raise load.failure
            self._discard(load)
        return {table: (load.meta, str(load.failure)) for table, load in failed.items()}

    def drop_stale(self) -> dict[TableName, str]:
        """Discard loads whose table is not in the state any more that they began with."""
        stale = {
            table: why
            for table, load in self._loads.items()
            if (why := why_stale(load.state, self._states.get(table)))
        }
        for table, why in stale.items():
            info("load discarded", table=table, reason=why)
            self._discard(self._loads[table])
        return stale

    def ready(self) -> list[TableName]:
        return [table for table, load in self._loads.items() if load.phase is Phase.READY]

    @clear_errors
    def finish(self, table: TableName, position: int) -> Cut | None:
        """Make the mirror live as of `position`; None if there is too much left to fold."""
        load = self._loads[table]
        follower = self._follower(table)
        revision, newest = follower.newest()
        _check_shapes(table, load.meta, load.taken, newest)
        mirror = load.mirror
        if mirror is None or revision != mirror.revision:
            mirror = load.mirror = self._open_mirror(follower, newest, revision)
        log = self._tables.load(log_of(table))
        left = self._tails.count(log, load.window(position))
        if load.rows is None and needs_catch_up(left, load.catch_ups):
            self._return_to_worker(load)
            return None
        mirror.table.refresh()
        self._check_not_ahead(table, mirror.table, position)
        self._publish(load, mirror, position)
        mirror.table.refresh()
        log.refresh()
        with self._changed:
            self._loads.pop(table)
        _report_loaded(load, position)
        return Cut(
            table=table,
            changes=0,
            snapshot_id=snapshot_of(mirror.table),
            changes_snapshot_id=snapshot_of(log),
        )

    def fail(self, table: TableName, error: LakeError) -> None:
        """Note that a load cannot be finished."""
        self._loads[table].fail(error)

    def close(self) -> None:
        """Stop at the end of the round under way; what was loaded is loaded again next time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.join()
        for load in list(self._loads.values()):
            self._discard(load)
        self._stopping = False

    def _follower(self, table: TableName) -> ShapeFollower:
        return ShapeFollower(self._tables, self._shapes, self._states, table)

    def _return_to_worker(self, load: SnapshotLoad) -> None:
        with self._changed:
            load.phase = Phase.CATCHING_UP
            self._changed.notify_all()

    def _discard(self, load: SnapshotLoad) -> None:
        with self._changed:
            self._loads.pop(load.table, None)
            self._waiting = deque(
                unit for unit in self._waiting if unit.snapshot_id != load.meta.snapshot_id
            )
            files = [*load.files, *(file for unit in load.done.values() for file in unit.files)]
        if load.rows is not None:
            load.rows.unpersist()
        self._forget(load, files)

    def _forget(self, load: SnapshotLoad, files: Iterable[Written]) -> None:
        if load.mirror is not None:
            self._files.forget(load.mirror.table, set(files))

    def _check_not_ahead(self, table: TableName, mirror: Table, position: int) -> None:
        reached = self._tables.watermark(mirror).stream_sequence
        if reached > position:
            raise LakeBusy(
                f"the mirror of {table} is at stream sequence {reached} already, put there by"
                f" another consumer, while a snapshot was loaded as of {position}"
            )

    def _publish(self, load: SnapshotLoad, mirror: Mirror, position: int) -> None:
        """Commit the load with the rest of its tail."""
        staging = Staging(self._tables, mirror.table, mirror_of(load.table).sql)
        window = load.window(position)
        if load.rows is not None:
            with ExitStack() as kept:
                tail = self._tails.read(load.table, mirror.shape, window)
                kept.callback(load.rows.unpersist)
                names = [column.name for column in self._tables.columns(mirror.table)]
                merged = merge(load.rows, tail, names, kept)
                staging.publish(lambda to: merged.writeTo(to).overwrite(F.lit(True)))
            return
        tail = self._fold_rest(load, mirror, window)
        if tail is None:
            staging.publish_at_once(partial(self._stage, load, mirror))
            return
        with ExitStack() as kept:
            staging.publish(partial(self._stage_by_spark, load, mirror, tail, kept))

    def _fold_rest(self, load: SnapshotLoad, mirror: Mirror, window: Window) -> Tail | None:
        """Fold the rest of the tail over the load's files; gives it if that takes Spark."""
        short = self._tails.read_short(load.table, mirror.shape, window)
        if short is not None and (not short.size or self._fold_by_files(load, mirror, short)):
            return None
        tail = self._tails.read(load.table, mirror.shape, window)
        if tail is None or (short is None and self._fold_by_files(load, mirror, tail)):
            return None
        return tail

    def _stage(self, load: SnapshotLoad, mirror: Mirror, change: Transaction, branch: str) -> None:
        self._files.add(mirror.table, load.files, branch, change=change, instead=True)
        if not load.vectors:
            return
        named = [file for file in load.files if file.path in load.vectors]
        found = {str(file.location()) for file in self._files.data_files(mirror.table, named)}
        if found != load.vectors.keys():
            # Iceberg would ignore a vector of a file that it calls by another name.
            raise LookupError(f"Iceberg has other names for files of {load.table}: {found}")
        self._deleter.add_vectors(change, mirror.table, load.vectors.values(), branch)

    def _stage_by_spark(
        self, load: SnapshotLoad, mirror: Mirror, tail: Tail, kept: ExitStack, to: str
    ) -> None:
        """Write the loaded files to a branch, and let Spark bring the tail over them."""
        table, keyed, branch = mirror.table, tail.keyed, branch_of(to)
        if tail.facts.truncated:
            self._files.add(table, (), branch, instead=True)
        else:
            self._stage(load, mirror, table, branch)
        table.refresh()
        loaded = int(table.refs().get(branch).snapshotId())
        folded = keep(tail.fold(self._tables.columns(table), None), kept)
        self._delete(open_part(folded, "held", keyed.schema), tail, to)
        left = open_part(folded, "rows", mirror_arrow_schema(self._tables.columns(table)))
        if tail.facts.unchanged:
            name = mirror_of(load.table).sql
            held = self._spark.read.option("versionAsOf", loaded).table(name)
            waiting = open_part(folded, "healing", healing_schema(keyed.columns))
            left = left.unionByName(heal(waiting, held, keyed))
        left.writeTo(to).append()

    def _delete(self, keys: DataFrame, tail: Tail, to: str) -> None:
        view = f"_held_in_load_{next(_views)}"
        few = tail.facts.changes <= BROADCAST_ROWS
        (F.broadcast(keys) if few else keys).createOrReplaceTempView(view)
        try:
            self._spark.sql(delete_sql(to, view, tail.keyed, None))
        finally:
            self._spark.catalog.dropTempView(view)

    # On both threads: `finish` folds the last changes, the worker those before.

    def _open_mirror(self, follower: ShapeFollower, shape: TableShape, revision: int) -> Mirror:
        table = follower.rebuild_mirror(shape, revision)
        target = self._files.target(table)
        if target is not None:
            target = replace(target, folder=location_in_iceberg(target.folder))
        columns = self._tables.columns(table)
        keyed = KeyedRows(columns, key_of(shape, columns))
        can_delete = self._deleter.can_delete(table)
        return Mirror(
            table=table,
            revision=revision,
            shape=shape,
            target=target,
            fields=key_fields(keyed, target) if can_delete else None,
        )

    def _fold_by_files(self, load: SnapshotLoad, mirror: Mirror, tail: Tail | ShortTail) -> bool:
        """Fold a tail over the load's files; False if that takes Spark."""
        target, fields = mirror.target, mirror.fields
        if target is None or fields is None or tail.size > BROADCAST_ROWS:
            return False
        outcome = tail.fold_to_files(self._tables.columns(mirror.table), target)
        if outcome.heals:
            self._forget(load, outcome.files)
            return False
        if outcome.is_truncated:
            self._forget(load, load.files)
            load.files, load.vectors = list(outcome.files), {}
            return True
        if outcome.keys:
            held = HeldKeys(outcome.keys, fields, target)
            files = [
                FileToSearch(load.table.token, file.path, _stored(load.vectors.get(file.path)))
                for file in load.files
            ]
            is_small = sum(file.size for file in load.files) <= SEARCHED_HERE_BYTES
            found = self._deleter.find(load.table.token, held, files, here=is_small)
            load.vectors |= {vector.data_path: vector for vector in found}
        load.files += outcome.files
        return True

    # On the worker thread.

    def _start(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="snapshot-load", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        # A pool of its own: batches and loads share the cores, and neither waits for the other.
        self._spark.sparkContext.setLocalProperty(POOL, "load")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._has_work())
                if self._stopping:
                    return
            try:
                self._turn()
            except BaseException as error:
                with self._changed:
                    self._broken, self._worker = error, None
                return

    def _has_work(self) -> bool:
        at_rest = (Phase.READY, Phase.FAILED)
        return any(load.phase not in at_rest for load in self._loads.values())

    def _in(self, phase: Phase) -> list[SnapshotLoad]:
        with self._changed:
            return [load for load in self._loads.values() if load.phase is phase]

    @clear_errors
    def _turn(self) -> None:
        """Do a second's work or so for the loads under way."""
        with ThreadPoolExecutor(self._side_by_side) as pool:
            list(pool.map(partial(self._attempt, self._prepare), self._in(Phase.NEW)))
        with self._changed:
            idle = time.monotonic() - self.batch_at
            lanes = take_round(self._waiting, count_lanes(self._cores, idle))
            plans = {
                load.meta.snapshot_id: load.plan
                for load in self._loads.values()
                if load.plan is not None
            }
        if lanes:
            self._take(self.read_round(lanes, plans))
        for load in self._in(Phase.READING):
            if len(load.done) == len(load.units):
                self._attempt(self._verify, load)
            self._report(load)
        for load in self._in(Phase.CATCHING_UP):
            self._attempt(self._catch_up, load)

    def _attempt(self, step: Callable[[SnapshotLoad], None], load: SnapshotLoad) -> None:
        try:
            clear_errors(step)(load)
        except LakeError as error:
            # Perhaps the table is gone or has another name: the batch thread knows.
            load.fail(error)

    def _prepare(self, load: SnapshotLoad) -> None:
        """Open the mirror, and queue the snapshot's chunks to be read."""
        follower = self._follower(load.table)
        revision, newest = follower.newest()
        _check_shapes(load.table, load.meta, load.taken, newest)
        mirror = load.mirror = self._open_mirror(follower, newest, revision)
        if mirror.target is None:
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
        with self._changed:
            load.units = plan_units(meta)
            load.phase = Phase.READING
            if self._loads.get(load.table) is load:
                self._waiting = queue_units(self._waiting, load.units)

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

    def _take(self, done: Iterable[UnitDone]) -> None:
        with self._changed:
            loads = {load.meta.snapshot_id: load for load in self._loads.values()}
            for unit in done:
                load = loads.get(unit.snapshot_id)
                if load is None:
                    # Discarded meanwhile; its files are orphans.
                    continue
                load.done[unit.first] = unit
                if unit.failure and load.phase is not Phase.FAILED:
                    load.fail(SnapshotGone(unit.failure))
            failed = {i for i, load in loads.items() if load.phase is Phase.FAILED}
            self._waiting = deque(u for u in self._waiting if u.snapshot_id not in failed)

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
            is_folded = tail is None or self._fold_by_files(load, mirror, tail)
        except LakeError as error:
            # Nothing is lost: the finish folds all of it.
            warn("catch-up failed; the tail is folded later", table=load.table, reason=error)
            is_folded = False
        if is_folded:
            load.upto = position
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


def _check_shapes(table: TableName, meta: Meta, taken: TableShape, newest: TableShape) -> None:
    if why := why_unusable(taken, newest):
        raise SnapshotGone(f"snapshot {meta.snapshot_id} of {table} came too early: {why}")


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


def _without_unknown(target: FileTarget, columns: Columns, taken: TableShape) -> FileTarget:
    """Leave out columns that the snapshot does not know: Iceberg fills them when it reads."""
    pairs = zip(columns, names_in(taken, columns), strict=True)
    unknown = {column.name for column, name in pairs if name is None}
    known = [field for field in target.schema if field.name not in unknown]
    return replace(target, schema=pa.schema(known))


def _stored(vector: NewVector | None) -> StoredVector | None:
    return None if vector is None else vector.vector


def snapshot_of(table: Table) -> int | None:
    snapshot = table.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())

"""The commit that makes a load visible, with the rest of its tail over it.

Nearly always all files are written already, and one transaction replaces the mirror's rows. If
Spark has to write the tail (a key that Arrow cannot search, copy-on-write, rows that wait for
unchanged TOAST values), it does so on the branch that is then published.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import count

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.deleting import RowDeleter
from lake_consumer.iceberg.load_mirror import LoadMirrors
from lake_consumer.iceberg.load_state import Mirror, SnapshotLoad
from lake_consumer.iceberg.load_tail import LogTails, Tail, Window, open_part
from lake_consumer.iceberg.loading import merge
from lake_consumer.iceberg.merge import delete_sql
from lake_consumer.iceberg.mirror import BROADCAST_ROWS
from lake_consumer.iceberg.names import mirror_of
from lake_consumer.iceberg.outcomes import heal, healing_schema, mirror_arrow_schema
from lake_consumer.iceberg.staging import Staging, Transaction, branch_of
from lake_consumer.iceberg.tables import LakeTables

_views = count()


class LoadPublisher:
    """Publishes loads, on the thread that applies batches."""

    def __init__(
        self,
        spark: SparkSession,
        tables: LakeTables,
        mirrors: LoadMirrors,
        tails: LogTails,
        *,
        files: FileAdder,
        deleter: RowDeleter,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._mirrors = mirrors
        self._tails = tails
        self._files = files
        self._deleter = deleter

    def publish(self, load: SnapshotLoad, mirror: Mirror, position: int) -> None:
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
        staging.publish(partial(self._stage_by_spark, load, mirror, tail))

    def _fold_rest(self, load: SnapshotLoad, mirror: Mirror, window: Window) -> Tail | None:
        """Fold the rest of the tail over the load's files; gives it if that takes Spark."""
        short = self._tails.read_short(load.table, mirror.shape, window)
        tail = None if short is not None else self._tails.read(load.table, mirror.shape, window)
        rest = short if short is not None else tail
        if rest is None or not rest.size:
            return None
        folded = self._mirrors.fold(load, mirror, rest)
        if folded is None:
            return tail or self._tails.read(load.table, mirror.shape, window)
        self._mirrors.forget(load, load.take(folded, window.upto))
        return None

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

    def _stage_by_spark(self, load: SnapshotLoad, mirror: Mirror, tail: Tail, to: str) -> None:
        """Write the loaded files to a branch, and let Spark bring the tail over them."""
        table, keyed, branch = mirror.table, tail.keyed, branch_of(to)
        if tail.facts.truncated:
            self._files.add(table, (), branch, instead=True)
        else:
            self._stage(load, mirror, table, branch)
        table.refresh()
        loaded = int(table.refs().get(branch).snapshotId())
        # Not only kept: Spark plans no view that still refers to the change log (copy-on-write).
        folded = tail.fold(self._tables.columns(table), None).localCheckpoint(
            storageLevel=StorageLevel.DISK_ONLY
        )
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

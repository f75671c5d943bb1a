"""The mirror that a load is written to: opened in its log's newest schema, and folded over.

Used by the load worker, and by the batch thread when a load is finished.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lake_consumer.errors import SnapshotGone
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.datafiles import Written, location_in_iceberg
from lake_consumer.iceberg.deleting import RowDeleter, key_fields
from lake_consumer.iceberg.finding import FileToSearch, HeldKeys, NewVector, StoredVector
from lake_consumer.iceberg.following import ShapeFollower
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.load_state import FoldedTail, Mirror, SnapshotLoad
from lake_consumer.iceberg.load_tail import ShortTail, Tail, key_of
from lake_consumer.iceberg.mirror import BROADCAST_ROWS
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.loads import Meta
from lake_consumer.shapes import ShapeBook
from lake_consumer.tablestates import why_unusable
from schemas.names import TableName
from schemas.shapes import TableShape

SEARCHED_HERE_BYTES = 16 << 20
"""Files of a load that the driver searches by itself: a Spark job takes longer."""


def check_shapes(table: TableName, meta: Meta, taken: TableShape, newest: TableShape) -> None:
    if why := why_unusable(taken, newest):
        raise SnapshotGone(f"snapshot {meta.snapshot_id} of {table} came too early: {why}")


class LoadMirrors:
    """Opens the mirrors of loads, and folds changes over their files."""

    def __init__(
        self,
        tables: LakeTables,
        shapes: ShapeBook,
        states: StateBook,
        *,
        files: FileAdder,
        deleter: RowDeleter,
    ) -> None:
        self._tables = tables
        self._shapes = shapes
        self._states = states
        self._files = files
        self._deleter = deleter

    def follower(self, table: TableName) -> ShapeFollower:
        return ShapeFollower(self._tables, self._shapes, self._states, table)

    def open(self, load: SnapshotLoad) -> Mirror:
        """Open a load's mirror; raises if the snapshot cannot make one of the table as it is."""
        follower = self.follower(load.table)
        revision, newest = follower.newest()
        check_shapes(load.table, load.meta, load.taken, newest)
        if load.mirror is None or revision != load.mirror.revision:
            load.mirror = self._open(follower, newest, revision)
        return load.mirror

    def _open(self, follower: ShapeFollower, shape: TableShape, revision: int) -> Mirror:
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

    def fold(self, load: SnapshotLoad, mirror: Mirror, tail: Tail | ShortTail) -> FoldedTail | None:
        """Fold a tail over the load's files; None if that takes Spark."""
        target, fields = mirror.target, mirror.fields
        if target is None or fields is None or tail.size > BROADCAST_ROWS:
            return None
        outcome = tail.fold_to_files(self._tables.columns(mirror.table), target)
        if outcome.heals:
            self.forget(load, outcome.files)
            return None
        if outcome.is_truncated or not outcome.keys:
            return FoldedTail(outcome.files, is_truncated=outcome.is_truncated)
        held = HeldKeys(outcome.keys, fields, target)
        files = [
            FileToSearch(load.table.token, file.path, _stored(load.vectors.get(file.path)))
            for file in load.files
        ]
        is_small = sum(file.size for file in load.files) <= SEARCHED_HERE_BYTES
        found = self._deleter.find(load.table.token, held, files, here=is_small)
        return FoldedTail(outcome.files, {vector.data_path: vector for vector in found})

    def forget(self, load: SnapshotLoad, files: Iterable[Written]) -> None:
        """Remove files that no table will name."""
        if load.mirror is not None:
            self._files.forget(load.mirror.table, set(files))


def _stored(vector: NewVector | None) -> StoredVector | None:
    return None if vector is None else vector.vector

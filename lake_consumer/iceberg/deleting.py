"""The delete of a batch's keys from a mirror by deletion vectors that executors make.

The driver plans which data files may hold the keys, executors search them (`finding`), and the new
vectors are committed together with the batch's rows: one snapshot, one commit. Spark's own way, a
MERGE, is planned anew for every table and batch, and that was most of what a small table cost.

Only a mirror of format v3, written merge-on-read and without partitions, with a key that Arrow
compares as PostgreSQL does, and in a place where Python can read and write, can be deleted from in
this way; for any other there is the MERGE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.datafiles import FIELD_ID, FileTarget, Written, can_write
from lake_consumer.iceberg.finding import (
    FileToSearch,
    Finder,
    HeldKeys,
    NewVector,
    StoredVector,
    find_all,
)
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.opening import read_ipc
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.values import may_be_text

VECTOR_VERSION = 3
PARTS_PER_CORE = 2
"""Few tasks, each with several files: what they find of a table goes to one file."""


def key_fields(rows: KeyedRows, target: FileTarget | None) -> tuple[int, ...] | None:
    """The key's columns by field id; None where Arrow cannot find rows by them."""
    if target is None or target.day_of is not None or not rows.is_plain:
        return None
    if any(may_be_text(column.type) for column in rows.key):
        return None
    by_name = {field.name: int(field.metadata[FIELD_ID]) for field in target.schema}
    if any(column.name not in by_name for column in rows.key):
        return None
    return tuple(by_name[column.name] for column in rows.key)


def read_task(token: str, text: str) -> FileToSearch | None:
    """Read Iceberg's own JSON of a file to scan; None where it has deletes of another kind."""
    task = json.loads(text)
    data, deletes = task["data-file"], task.get("delete-files", ())
    if data["file-format"] != "parquet" or len(deletes) > 1:
        return None
    if not deletes:
        return FileToSearch(token, data["file-path"], None)
    (found,) = deletes
    if found["file-format"] != "puffin" or found["content"] != "position-deletes":
        return None
    stored = StoredVector(
        found["file-path"], found["content-offset"], found["content-size-in-bytes"]
    )
    return FileToSearch(token, data["file-path"], stored)


def edges_of(held: HeldKeys) -> tuple[int, int] | None:
    """The range of the first key column, where it is an integer."""
    keys = pa.chunked_array([read_ipc(part).column(0).combine_chunks() for part in held.parts])
    if not pa.types.is_integer(keys.type):
        return None
    found = pc.min_max(keys).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


@dataclass(frozen=True)
class Deleted:
    """What takes a batch's keys from a mirror as it was at one snapshot."""

    vectors: tuple[NewVector, ...]
    replaced: tuple[Any, ...]
    """Iceberg's own objects of the vectors that the new ones stand in for."""


class RowDeleter:
    """Deletes keys from mirrors, with executors that search."""

    def __init__(self, spark: SparkSession, tables: LakeTables, files: FileAdder) -> None:
        self._spark = spark
        self._files = files
        iceberg = tables.iceberg
        self._tables = tables
        # Found once: every look-up of a class by its name asks Java's class loaders several times.
        self._task_to_json = iceberg.ScanTaskParser.toJson
        self._at_least = iceberg.expressions.Expressions.greaterThanOrEqual
        self._at_most = iceberg.expressions.Expressions.lessThanOrEqual
        self._delete_file_builder = iceberg.FileMetadata.deleteFileBuilder

    def can_delete(self, mirror: Table) -> bool:
        """Whether a table takes deletion vectors from us."""
        return bool(
            mirror.properties().get("write.merge.mode") == "merge-on-read"
            and mirror.specs().size() == 1
            and mirror.operations().current().formatVersion() >= VECTOR_VERSION
        )

    def search(self, mirror: Table, token: str, held: HeldKeys) -> Deleted | None:
        """Find the keys in the mirror as we know it; None where it takes a MERGE to delete them."""
        tasks = self._plan(mirror, held)
        planned = [(read_task(token, self._task_to_json(task)), task) for task in tasks]
        files = [file for file, _ in planned if file is not None]
        store = held.target.store
        if len(files) < len(planned) or not all(can_write(file.path, store) for file in files):
            return None
        found = self._find({token: held}, files)
        if any(vector is None for _, vector in found):
            return None
        vectors = tuple(vector for _, vector in found if vector is not None)
        old = {file.path: task for file, task in planned if file is not None and file.vector}
        replaced = [old[vector.data_path].deletes().get(0) for vector in vectors
                    if vector.data_path in old]  # fmt: skip
        return Deleted(vectors, tuple(replaced))

    def _plan(self, mirror: Table, held: HeldKeys) -> list[Any]:
        scan = mirror.newScan()
        edges = edges_of(held)
        if edges is not None:
            # Iceberg leaves out files whose keys are all outside the batch's.
            name = mirror.schema().findColumnName(held.fields[0])
            scan = scan.filter(self._at_least(name, edges[0])).filter(self._at_most(name, edges[1]))
        planned = scan.planFiles()
        try:
            return self._tables.java.list(planned)
        finally:
            planned.close()

    def _find(
        self, held: Mapping[str, HeldKeys], files: Sequence[FileToSearch]
    ) -> list[tuple[str, NewVector | None]]:
        if not files:
            return []
        context = self._spark.sparkContext
        parts = min(len(files), PARTS_PER_CORE * context.defaultParallelism)
        keys = context.broadcast(held)
        try:
            return context.parallelize(files, parts).mapPartitions(Finder(keys)).collect()
        finally:
            keys.destroy()

    def find(
        self, token: str, held: HeldKeys, files: Sequence[FileToSearch], *, here: bool
    ) -> list[NewVector]:
        """Make the new deletion vectors of files that no table names yet; `here`: no Spark job."""
        found = list(find_all({token: held}, files)) if here else self._find({token: held}, files)
        if any(vector is None for _, vector in found):
            raise LookupError(f"a file of {token} lacks a column of the key")
        return [vector for _, vector in found if vector is not None]

    def add_vectors(
        self, change: Any, mirror: Table, vectors: Iterable[NewVector], branch: str
    ) -> None:
        """Add deletion vectors of files that the same transaction or branch has added."""
        delta = change.newRowDelta()
        for vector in vectors:
            delta = delta.addDeletes(self._delete_file(mirror, vector))
        for name, value in self._tables.stamp.items():
            delta = delta.set(name, value)
        delta.toBranch(branch).commit()

    def commit(
        self, change: Any, mirror: Table, rows: Iterable[Written], deleted: Deleted, branch: str
    ) -> None:
        """Let rows come and others go, in one snapshot on a branch of a transaction."""
        delta = change.newRowDelta().validateFromSnapshot(mirror.currentSnapshot().snapshotId())
        for file in self._files.data_files(mirror, rows):
            delta = delta.addRows(file)
        for vector in deleted.vectors:
            delta = delta.addDeletes(self._delete_file(mirror, vector))
        for vector in deleted.replaced:
            delta = delta.removeDeletes(vector)
        for name, value in self._tables.stamp.items():
            delta = delta.set(name, value)
        delta.toBranch(branch).commit()

    def _delete_file(self, mirror: Table, vector: NewVector) -> Any:
        stored = vector.vector
        builder = self._delete_file_builder(mirror.spec()).ofPositionDeletes().withFormat("PUFFIN")
        builder = builder.withPath(stored.path).withFileSizeInBytes(vector.size)
        builder = builder.withReferencedDataFile(vector.data_path).withRecordCount(vector.rows)
        return builder.withContentOffset(stored.offset).withContentSizeInBytes(stored.size).build()

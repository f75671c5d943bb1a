"""Rows of data files found by their keys, in the executors: what a batch deletes from a mirror.

A data file has its rows in one order for good, so "these keys are gone" is a set of row positions.
Whoever looks for them reads nothing but the key's columns, and of those no row group whose range
holds none of the keys; what it finds it joins with what was gone before and writes as the file's
new deletion vector. Nothing of a mirror is shuffled, and no row of it is handed to Spark.
"""

from __future__ import annotations

import array
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64
from pyspark import Broadcast

from lake_consumer.iceberg.datafiles import FIELD_ID, FileTarget, filesystem, fit
from lake_consumer.iceberg.opening import read_ipc
from lake_consumer.iceberg.vectors import decode_vector, write_puffin
from lake_consumer.stores import ObjectStore

Rows = np.ndarray[Any, np.dtype[np.int64]]


class StoredVector(NamedTuple):
    """Where a deletion vector lies."""

    path: str
    offset: int
    size: int


class FileToSearch(NamedTuple):
    """A data file of a table, and which of its rows are gone already."""

    token: str
    path: str
    vector: StoredVector | None


class NewVector(NamedTuple):
    """The deletion vector that a data file has from now on; `size` is that of the whole file."""

    data_path: str
    vector: StoredVector
    rows: int
    size: int


class NoSuchColumn(Exception):
    """A data file lacks a column of the key, so it says nothing about which rows are which."""


class HeldKeys(NamedTuple):
    """Keys that a table's batch deletes: bytes of Arrow, as the fold made them."""

    parts: Sequence[bytes]
    fields: tuple[int, ...]
    """The key's columns in the mirror, by field id."""
    target: FileTarget


class KeySearch:
    """Finds the rows of a table's keys in its data files."""

    def __init__(self, held: HeldKeys) -> None:
        by_id = {int(field.metadata[FIELD_ID]): field for field in held.target.schema}
        self._fields = held.fields
        self._types = [_stored_type(by_id[number].type) for number in held.fields]
        keys = pa.concat_tables([read_ipc(part) for part in held.parts]).combine_chunks()
        self._keys = [
            _stored(fit(column.combine_chunks(), by_id[number].type))
            for column, number in zip(keys.itercolumns(), held.fields, strict=True)
        ]
        first = self._keys[0]
        self._sorted: Rows | None = None
        if len(self._keys) == 1 and pa.types.is_integer(first.type):
            self._sorted = np.unique(first.to_numpy(zero_copy_only=False)).astype(np.int64)

    def find(self, file: pq.ParquetFile) -> Rows:
        """Say at which positions the file has any of the keys."""
        columns = self._columns(file)
        found = [np.empty(0, dtype=np.int64)]
        start = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            if self._may_hold(group, columns[0]):
                found.append(start + self._find_in(file.read_row_group(number, columns), columns))
            start += group.num_rows
        return np.concatenate(found)

    def _columns(self, file: pq.ParquetFile) -> list[str]:
        """What the key's columns are called in the file, which may be older than their names."""
        names = {
            int(field.metadata[FIELD_ID]): field.name
            for field in file.schema_arrow
            if field.metadata and FIELD_ID in field.metadata
        }
        if not names.keys() >= set(self._fields):
            raise NoSuchColumn
        return [names[number] for number in self._fields]

    def _may_hold(self, group: Any, column: str) -> bool:
        if self._sorted is None:
            return True
        at = next(n for n in range(group.num_columns) if group.column(n).path_in_schema == column)
        edges = group.column(at).statistics
        if edges is None or not edges.has_min_max:
            return True
        low = np.searchsorted(self._sorted, edges.min)
        return bool(low < np.searchsorted(self._sorted, edges.max, "right"))

    def _find_in(self, rows: pa.Table, columns: list[str]) -> Rows:
        pairs = zip(columns, self._types, strict=True)
        parts = [_stored(rows[name].combine_chunks()).cast(kind) for name, kind in pairs]
        if self._sorted is not None and not parts[0].null_count:
            return find_integers(parts[0].to_numpy(zero_copy_only=False), self._sorted)
        if len(parts) == 1:
            return _true_at(pc.is_in(parts[0], value_set=self._keys[0]))
        return _find_tuples(parts, self._keys)


def find_integers(rows: Rows, keys: Rows) -> Rows:
    """Say where rows have one of the keys, which are sorted; quick where the rows are as well."""
    if not (rows[1:] > rows[:-1]).all():
        return np.flatnonzero(np.isin(rows, keys))
    at = np.searchsorted(rows, keys)
    inside = at < len(rows)
    at, keys = at[inside], keys[inside]
    found: Rows = at[rows[at] == keys].astype(np.int64)
    return found


def _find_tuples(parts: list[pa.Array], keys: list[pa.Array]) -> Rows:
    names = [f"k{n}" for n in range(len(parts))]
    at = pa.array(np.arange(len(parts[0]), dtype=np.int64))
    rows = pa.table([*parts, at], names=[*names, "at"])
    wanted = pa.table(keys, names=names)
    found = rows.join(wanted, keys=names, join_type="left semi", use_threads=False)
    return np.sort(found["at"].to_numpy())


def _true_at(mask: pa.Array) -> Rows:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _stored(column: pa.Array) -> pa.Array:
    """Values as a file holds them: Arrow compares those, and not its extensions of them."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _stored_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


@dataclass(frozen=True)
class Finder:
    """Makes the new deletion vectors of data files, for `mapPartitions`; pickled to executors."""

    held: Broadcast[Mapping[str, HeldKeys]]

    def __call__(self, files: Iterable[FileToSearch]) -> Iterator[tuple[str, NewVector | None]]:
        """Give what is new of every file's table; None where a table cannot be searched so."""
        yield from find_all(self.held.value, files)


def find_all(
    all_held: Mapping[str, HeldKeys], files: Iterable[FileToSearch]
) -> Iterator[tuple[str, NewVector | None]]:
    """Search files for the keys of their tables, in this process."""
    by_table: dict[str, list[FileToSearch]] = {}
    for file in files:
        by_table.setdefault(file.token, []).append(file)
    for token, some in by_table.items():
        held = all_held[token]
        try:
            vectors = _search(held, some)
        except NoSuchColumn:
            yield token, None
            continue
        for vector in _write(vectors, held.target):
            yield token, vector


def _search(held: HeldKeys, files: Sequence[FileToSearch]) -> dict[str, BitMap64]:
    search, store = KeySearch(held), held.target.store
    vectors: dict[str, BitMap64] = {}
    for file in files:
        system, path = filesystem(file.path, store)
        with system.open_input_file(path) as source:
            found = search.find(pq.ParquetFile(source))
        if not len(found):
            continue
        rows = BitMap64(array.array("Q", found.astype(np.uint64).tobytes()))
        before = None if file.vector is None else _read_vector(file.vector, store)
        if before is None or not rows.issubset(before):
            vectors[file.path] = rows if before is None else rows | before
    return vectors


def _read_vector(vector: StoredVector, store: ObjectStore | None) -> BitMap64:
    system, path = filesystem(vector.path, store)
    with system.open_input_file(path) as source:
        return decode_vector(source.read_at(vector.size, vector.offset))


def _write(vectors: Mapping[str, BitMap64], target: FileTarget) -> Iterator[NewVector]:
    if not vectors:
        return
    data, places = write_puffin(vectors)
    uri = f"{target.folder}{uuid.uuid4()}.puffin"
    with target.create(uri) as sink:
        sink.write(data)
    for data_path, blob in places.items():
        yield NewVector(data_path, StoredVector(uri, blob.offset, blob.size), blob.rows, len(data))

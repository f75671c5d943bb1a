"""Deletion vectors of data files as bitmaps that DuckDB can index by row number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from lake_consumer.iceberg.vectors import decode_vector


def are_vectors(tasks: Iterable[FileScanTask]) -> bool:
    """Whether every deleted row is in a deletion vector; v2's delete files are not read here."""
    return all(
        file.file_format == FileFormat.PUFFIN for task in tasks for file in task.delete_files
    )


def read_bitmaps(io: FileIO, tasks: Sequence[FileScanTask]) -> list[bytes | None]:
    """Read one bitmap per data file, in order; None for a file of which no row is deleted."""
    puffins = {file.file_path for task in tasks for file in task.delete_files}
    vectors = {path: _read_vectors(io, path) for path in sorted(puffins)}
    return [_bitmap(task, vectors) for task in tasks]


def to_bitmap(vectors: Iterable[BitMap64], rows: int) -> bytes:
    """Bit n, counted from the most significant of the first byte, is set if row n is deleted."""
    deleted = np.zeros(rows, dtype=bool)
    for vector in vectors:
        deleted[np.fromiter(vector, dtype=np.int64, count=len(vector))] = True
    return np.packbits(deleted).tobytes()


def _bitmap(task: FileScanTask, vectors: Mapping[str, Mapping[str, BitMap64]]) -> bytes | None:
    # pyiceberg names every Puffin file of the partition, and each may hold many files' vectors.
    path = task.file.file_path
    named = (vectors[file.file_path].get(path) for file in task.delete_files)
    found = [vector for vector in named if vector is not None]
    return to_bitmap(found, task.file.record_count) if found else None


def _read_vectors(io: FileIO, path: str) -> dict[str, BitMap64]:
    with io.new_input(path).open() as stream:
        puffin = PuffinFile(stream.read())
    return {
        blob.properties[PROPERTY_REFERENCED_DATA_FILE]: decode_vector(puffin.get_blob_payload(blob))
        for blob in puffin.footer.blobs
    }

"""Bitmaps of deleted rows from Puffin files."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyroaring import BitMap64

from lake_consumer.iceberg.vectors import write_puffin
from lake_consumer.reading.deletions import are_vectors, read_bitmaps


def data_file(path: str, format: FileFormat, content: DataFileContent, rows: int = 0) -> DataFile:
    return DataFile.from_args(
        file_path=path, file_format=format, content=content, record_count=rows,
        file_size_in_bytes=1, partition={},
    )  # fmt: skip


def data(path: str, rows: int) -> DataFile:
    return data_file(path, FileFormat.PARQUET, DataFileContent.DATA, rows)


def deletes(path: Path, format: FileFormat = FileFormat.PUFFIN) -> DataFile:
    return data_file(str(path), format, DataFileContent.POSITION_DELETES)


def test_each_data_file_gets_its_own_vectors(tmp_path: Path) -> None:
    """Every task names every Puffin file, also those that hold nothing of its data file."""
    (tmp_path / "1.puffin").write_bytes(
        write_puffin({"a": BitMap64([0, 9]), "b": BitMap64([1])})[0]
    )
    (tmp_path / "2.puffin").write_bytes(write_puffin({"b": BitMap64([1, 2])})[0])
    both = {deletes(tmp_path / "1.puffin"), deletes(tmp_path / "2.puffin")}
    tasks = [FileScanTask(data(name, 10), delete_files=both) for name in ("a", "b", "c")]
    tasks.append(FileScanTask(data("d", 10)))

    found = read_bitmaps(PyArrowFileIO(), tasks)

    assert found == [b"\x80\x40", b"\x60\x00", None, None]


def test_delete_files_of_v2_are_not_vectors(tmp_path: Path) -> None:
    """They are left to pyiceberg."""
    vector, file = deletes(tmp_path / "a"), deletes(tmp_path / "b", FileFormat.PARQUET)

    assert are_vectors([FileScanTask(data("a", 1)), FileScanTask(data("a", 1), {vector})])
    assert not are_vectors([FileScanTask(data("a", 1), {vector, file})])

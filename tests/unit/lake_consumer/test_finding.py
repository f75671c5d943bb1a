"""Rows are found by their keys, whatever the key is and however the file is ordered."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_consumer.iceberg.datafiles import FIELD_ID, FileTarget
from lake_consumer.iceberg.finding import (
    FileToSearch,
    Finder,
    HeldKeys,
    KeySearch,
    NoSuchColumn,
    find_integers,
)
from lake_consumer.iceberg.opening import write_ipc
from lake_consumer.iceberg.vectors import decode_vector

UUIDS = [str(uuid.UUID(int=number)) for number in range(6)]


def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


def target(tmp_path: Path, *fields: pa.Field) -> FileTarget:
    return FileTarget(schema=pa.schema(fields), folder=f"file://{tmp_path}/")


def write(tmp_path: Path, table: pa.Table, rows_per_group: int = 3) -> str:
    path = tmp_path / f"{uuid.uuid4()}.parquet"
    pq.write_table(table, path, row_group_size=rows_per_group)
    return str(path)


@pytest.mark.parametrize(
    "rows", [[1, 3, 5, 7], [7, 1, 5, 3], [3, 3, 1, 9], [1, 3, 3, 9], [7, 3], [], [4], [5]]
)
def test_integers_are_found_sorted_or_not(rows: list[int]) -> None:
    """The quick way counts on an order that not every file has."""
    keys = np.array([3, 4, 7], dtype=np.int64)

    found = find_integers(np.array(rows, dtype=np.int64), keys)

    assert found.tolist() == [at for at, key in enumerate(rows) if key in (3, 4, 7)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [10, 20, 30, 40, 50, 60]),
        (pa.int32(), [60, 50, 40, 30, 20, 10]),
        (pa.string(), ["f", "e", "d", "c", "b", "a"]),
        (pa.uuid(), UUIDS),
    ],
    ids=["int64", "int32", "text", "uuid"],
)
def test_a_key_of_any_kind_is_found_across_row_groups(
    tmp_path: Path, kind: pa.DataType, values: list[Any]
) -> None:
    """Positions count from the file's first row, not from that of a row group."""
    stored = [uuid.UUID(v).bytes for v in values] if kind == pa.uuid() else values
    rows = pa.table([pa.array(stored, type=kind)], schema=pa.schema([field("old_name", kind, 1)]))
    keys = pa.table({"_k0": [values[1], values[4]]})
    held = HeldKeys([write_ipc(keys)], (1,), target(tmp_path, field("id", kind, 1)))

    found = KeySearch(held).find(pq.ParquetFile(write(tmp_path, rows)))

    assert found.tolist() == [1, 4]


def test_a_key_of_several_columns_is_found_as_a_whole(tmp_path: Path) -> None:
    """Neither of its columns alone says which row it is."""
    fields = [field("a", pa.int64(), 1), field("b", pa.string(), 2)]
    rows = pa.table(
        [pa.array([1, 1, 2, 2]), pa.array(["x", "y", "x", "y"])], schema=pa.schema(fields)
    )
    keys = pa.table({"_k0": [2, 1], "_k1": ["x", "y"]})
    held = HeldKeys([write_ipc(keys)], (1, 2), target(tmp_path, *fields))

    found = KeySearch(held).find(pq.ParquetFile(write(tmp_path, rows)))

    assert found.tolist() == [1, 2]


def test_row_groups_without_any_of_the_keys_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where keys are clustered, a batch costs what it touches and not what the mirror holds."""
    column = field("id", pa.int64(), 1)
    rows = pa.table([pa.array(range(30))], schema=pa.schema([column]))
    held = HeldKeys([write_ipc(pa.table({"_k0": [4, 29]}))], (1,), target(tmp_path, column))
    read: list[int] = []
    file = pq.ParquetFile(write(tmp_path, rows))
    really = file.read_row_group

    def noted(number: int, columns: list[str]) -> pa.Table:
        read.append(number)
        return really(number, columns)

    monkeypatch.setattr(file, "read_row_group", noted)

    found = KeySearch(held).find(file)

    assert found.tolist() == [4, 29]
    assert read == [1, 9]


def test_row_groups_without_statistics_are_read(tmp_path: Path) -> None:
    """Nothing says which keys they have."""
    column = field("id", pa.int64(), 1)
    path = tmp_path / "plain.parquet"
    rows = pa.table([pa.array(range(6))], schema=pa.schema([column]))
    pq.write_table(rows, path, row_group_size=3, write_statistics=False)
    held = HeldKeys([write_ipc(pa.table({"_k0": [4]}))], (1,), target(tmp_path, column))

    assert KeySearch(held).find(pq.ParquetFile(path)).tolist() == [4]


def test_integers_are_told_apart_also_beside_a_null(tmp_path: Path) -> None:
    """As floating-point numbers, which have NaN for NULL, these two would be one."""
    column, large = field("id", pa.int64(), 1), 2**53
    rows = pa.table([pa.array([large, None, large + 1])], schema=pa.schema([column]))
    keys = write_ipc(pa.table({"_k0": [large + 1]}))
    held = HeldKeys([keys], (1,), target(tmp_path, column))

    assert KeySearch(held).find(pq.ParquetFile(write(tmp_path, rows))).tolist() == [2]


def test_columns_without_an_id_are_not_looked_at(tmp_path: Path) -> None:
    column, own = field("id", pa.int64(), 1), pa.field("own", pa.int64())
    noted = pa.field("noted", pa.int64(), metadata={"by": "somebody"})
    rows = pa.table(
        [pa.array([5]), pa.array([6]), pa.array([7])], schema=pa.schema([own, noted, column])
    )
    held = HeldKeys([write_ipc(pa.table({"_k0": [7]}))], (1,), target(tmp_path, column))

    assert KeySearch(held).find(pq.ParquetFile(write(tmp_path, rows))).tolist() == [0]


def test_every_file_of_every_table_is_searched(tmp_path: Path) -> None:
    """One table that cannot be searched, and a file without any of the keys, hide no other."""
    column = field("id", pa.int64(), 1)
    older = write(
        tmp_path, pa.table([pa.array([7])], schema=pa.schema([field("id", pa.int64(), 9)]))
    )
    empty, full = (
        write(tmp_path, pa.table([pa.array(keys)], schema=pa.schema([column])))
        for keys in ([1, 2], [3, 7])
    )
    held = HeldKeys([write_ipc(pa.table({"_k0": [7]}))], (1,), target(tmp_path, column))
    finder = Finder(SimpleNamespace(value={"old": held, "t": held}))  # type: ignore[arg-type]

    found = list(
        finder(
            [
                FileToSearch("old", older, None),
                FileToSearch("t", empty, None),
                FileToSearch("t", full, None),
            ]
        )
    )

    assert [(token, vector and vector.data_path) for token, vector in found] == [
        ("old", None), ("t", full),
    ]  # fmt: skip


def test_a_file_without_the_keys_column_is_not_searched(tmp_path: Path) -> None:
    """It is older than the key; by name it might even have another column."""
    rows = pa.table([pa.array([1])], schema=pa.schema([field("id", pa.int64(), 7)]))
    held = HeldKeys(
        [write_ipc(pa.table({"_k0": [1]}))], (1,), target(tmp_path, field("id", pa.int64(), 1))
    )

    with pytest.raises(NoSuchColumn):
        KeySearch(held).find(pq.ParquetFile(write(tmp_path, rows)))


def test_rows_that_were_gone_stay_gone(tmp_path: Path) -> None:
    """A file has one deletion vector, so the new one takes over what the old one says."""
    column = field("id", pa.int64(), 1)
    path = write(tmp_path, pa.table([pa.array(range(9))], schema=pa.schema([column])))

    def delete(key: int, vector: Any) -> Any:
        held = HeldKeys([write_ipc(pa.table({"_k0": [key]}))], (1,), target(tmp_path, column))
        finder = Finder(SimpleNamespace(value={"t": held}))  # type: ignore[arg-type]
        return list(finder([FileToSearch("t", path, vector)]))

    [(_, first)] = delete(3, None)
    [(_, second)] = delete(7, first.vector)

    data = Path(second.vector.path.removeprefix("file://")).read_bytes()
    assert second.rows == 2
    assert len(data) == second.size
    offset = second.vector.offset
    assert list(decode_vector(data[offset : offset + second.vector.size])) == [3, 7]
    assert delete(7, second.vector) == []
    assert delete(11, None) == []

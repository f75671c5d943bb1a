"""What can be deleted by deletion vectors of our own, and what is left to Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from lake_consumer.columns import columns_of
from lake_consumer.iceberg.datafiles import FIELD_ID, FileTarget
from lake_consumer.iceberg.deleting import edges_of, key_fields, read_task
from lake_consumer.iceberg.finding import FileToSearch, HeldKeys, StoredVector
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.opening import write_ipc
from tests.support.lake import make_shape

DATA = {"file-path": "file:/a.parquet", "file-format": "parquet"}
VECTOR = {
    "content": "position-deletes", "file-path": "file:/d.puffin", "file-format": "puffin",
    "content-offset": 4, "content-size-in-bytes": 44,
}  # fmt: skip


def task(*deletes: dict[str, Any], **data: str) -> str:
    return json.dumps({"data-file": {**DATA, **data}, "delete-files": deletes})


def test_a_file_with_a_vector_or_without_is_searched() -> None:
    """Iceberg's own words for both."""
    stored = StoredVector("file:/d.puffin", 4, 44)

    assert read_task("t", task()) == FileToSearch("t", "file:/a.parquet", None)
    assert read_task("t", task(VECTOR)) == FileToSearch("t", "file:/a.parquet", stored)


def test_deletes_of_another_kind_are_left_to_spark() -> None:
    """A table that was of format v2 once has deletes in files of their own, and several."""
    assert read_task("t", task({**VECTOR, "file-format": "parquet"})) is None
    assert read_task("t", task({**VECTOR, "content": "equality-deletes"})) is None
    assert read_task("t", task(VECTOR, VECTOR)) is None
    assert read_task("t", task(**{"file-format": "orc"})) is None


def _fields(kind: str) -> tuple[int, ...] | None:
    columns = columns_of(make_shape("t", {"id": kind, "v": "text"}))
    made = [("v", 2), ("id", 7)]
    schema = pa.schema(
        [pa.field(name, pa.string(), metadata={FIELD_ID: str(number)}) for name, number in made]
    )
    key = tuple(column for column in columns if column.name == "id")
    return key_fields(KeyedRows(columns, key), FileTarget(schema=schema, folder="/x/"))


def test_keys_are_found_by_field_id_where_arrow_compares_as_postgresql_does() -> None:
    """A float has two zeros, and a timestamp may be infinite, which only its text says."""
    assert _fields("int64") == _fields("uuid") == _fields("text") == (7,)
    assert _fields("float64") is None
    assert _fields("timestamptz") is None


def test_the_range_of_keys_is_that_of_all_parts() -> None:
    """Files outside of it are not even planned."""
    where = FileTarget(schema=pa.schema([]), folder="/x/")
    numbers = [write_ipc(pa.table({"_k0": part})) for part in ([5, 9], [2, 3])]
    texts = [write_ipc(pa.table({"_k0": ["a"]}))]

    assert edges_of(HeldKeys(numbers, (1,), where)) == (2, 9)
    assert edges_of(HeldKeys(texts, (1,), where)) is None

"""Files that executors write must be what Iceberg takes for its own."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_consumer.iceberg.datafiles import (
    FIELD_ID,
    FileTarget,
    Written,
    arrow_schema,
    can_write,
    codec_of,
    filesystem,
    fit,
)
from lake_consumer.iceberg.types import build_schema
from lake_consumer.stores import ObjectStore

_UUID = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
_ROW: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"name": "id", "required": False, "type": "uuid", "doc": ""},
        {"name": "n", "required": False, "type": "decimal(10, 2)", "doc": ""},
    ],
}
_SCHEMA = build_schema(
    [
        ("at", "timestamptz", ""),
        ("row", _ROW, ""),
        ("ids", {"type": "list", "element": "uuid", "element-required": False}, ""),
        ("texts", {"type": "map", "key": "string", "value": "string", "value-required": False}, ""),
    ]
)


def _ids(fields: Any) -> list[str]:
    """Field ids of a type, from outside to inside."""
    found = []
    for field in fields:
        found.append(field.metadata[FIELD_ID].decode())
        if pa.types.is_struct(field.type):
            found += _ids(field.type)
        elif pa.types.is_list(field.type):
            found += _ids([field.type.value_field])
        elif pa.types.is_map(field.type):
            found += _ids([field.type.key_field, field.type.item_field])
    return found


def test_every_field_has_the_id_that_iceberg_gave_it() -> None:
    """By its id alone Iceberg knows a column again, however it is called by then."""
    assert _ids(arrow_schema(_SCHEMA)) == [str(number) for number in range(1, 10)]


def test_columns_of_a_row_are_found_by_name_and_absent_ones_are_null() -> None:
    """A table that was altered has its columns in another order than a change has."""
    rows = pa.array([{"b": 1, "a": "x"}, None], pa.struct([("b", pa.int32()), ("a", pa.string())]))
    target = pa.struct([("a", pa.string()), ("new", pa.int64()), ("b", pa.int64())])

    fitted = fit(rows, target)

    assert fitted.type == target
    assert fitted.to_pylist() == [{"a": "x", "new": None, "b": 1}, None]


def test_a_file_holds_what_it_was_given(tmp_path: Path) -> None:
    """Also under a name that an address would have to escape."""
    moment = datetime(2025, 12, 8, 23, 59, 59, 999_999, tzinfo=UTC)
    rows = pa.RecordBatch.from_pylist(
        [
            {"at": moment, "row": {"id": _UUID, "n": "1.50"}, "ids": [_UUID, None]},
            {"at": moment, "row": None, "ids": None, "texts": [("a", "b")]},
        ],
        schema=pa.schema(
            [
                ("at", pa.timestamp("us", tz="UTC")),
                ("row", pa.struct([("id", pa.string()), ("n", pa.string())])),
                ("ids", pa.list_(pa.string())),
                ("texts", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )
    target = FileTarget(arrow_schema(_SCHEMA), f"file:{tmp_path}/Odd Table%20/data/")

    (written,) = target.write(rows)

    path = Path(written.path.removeprefix("file:"))
    assert written == Written(written.path, path.stat().st_size, 2, None)
    found = pq.ParquetFile(path).read().to_pylist()
    key = uuid.UUID(_UUID)
    assert [str(row["row"] and row["row"]["n"]) for row in found] == ["1.50", "None"]
    assert [row["ids"] for row in found] == [[key, None], None]
    assert found[0]["row"]["id"] == key
    assert found[1]["texts"] == [("a", "b")]


def test_each_day_has_a_file_of_its_own(tmp_path: Path) -> None:
    """A file lies in one partition, and midnight does not wait for a batch to end."""
    days = [datetime(2025, 12, day, hour, tzinfo=UTC) for day, hour in ((8, 23), (9, 0), (8, 1))]
    schema = arrow_schema(build_schema([("at", "timestamptz", "")]))
    target = FileTarget(schema, f"{tmp_path}/", day_of="at", partition="at_day")

    files = target.write(pa.RecordBatch.from_arrays([pa.array(days)], names=["at"]))

    assert {(file.day, file.rows) for file in files} == {("2025-12-08", 2), ("2025-12-09", 1)}
    assert all(f"/at_day={file.day}/" in file.path for file in files)
    assert sum(pq.ParquetFile(file.path).metadata.num_rows for file in files) == 3


@pytest.mark.parametrize(
    ("folder", "store", "can"),
    [
        ("file:/data/lake/", None, True),
        ("/data/lake/", None, True),
        ("s3://bucket/lake/", ObjectStore(region="us-east-1"), True),
        ("s3://bucket/lake/", None, False),
        ("hdfs://name/lake/", ObjectStore(), False),
        ("abfss://box@account/lake/", None, False),
    ],
)
def test_spark_writes_where_python_cannot(
    folder: str, store: ObjectStore | None, can: bool
) -> None:
    assert can_write(folder, store) is can


def test_an_object_store_is_reached_where_it_was_said_to_be() -> None:
    store = ObjectStore(endpoint="http://127.0.0.1:9", region="r", key="k", secret="s")

    system, path = filesystem("s3://bucket/a b/x.parquet", store)

    assert path == "bucket/a b/x.parquet"
    assert system.type_name == "s3"


def test_a_codec_that_arrow_lacks_is_left_to_spark() -> None:
    assert codec_of({}) == "zstd"
    assert codec_of({"write.parquet.compression-codec": "snappy"}) == "snappy"
    assert codec_of({"write.parquet.compression-codec": "lzo"}) is None

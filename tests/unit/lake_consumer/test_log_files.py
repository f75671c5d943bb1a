from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake_consumer.columns import Columns, LakeColumn
from lake_consumer.iceberg.datafiles import FileTarget, arrow_schema, location_in_iceberg
from lake_consumer.iceberg.decode import log_arrow_schema
from lake_consumer.iceberg.log_files import Evolved, read_log_files
from lake_consumer.iceberg.types import log_schema
from schemas.types import parse_type

_KINDS = {
    "id": "int32",
    "who": "uuid",
    "them": "list<uuid>",
    "price": "decimal(12,2)",
    "tags": "list<text>",
    "at": "timestamptz",
}
_NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def columns(*names: str) -> Columns:
    return tuple(
        LakeColumn(at, name, parse_type(_KINDS[name])) for at, name in enumerate(names, start=1)
    )


def change(new: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "operation": "INSERT" if new else "TRUNCATE",
        "stream_seq": 7,
        "commit_lsn": 5_000_000_000,
        "commit_ts": _NOW,
        "lsn": 1,
        "xid": 2,
        "seq": 0,
        "last": True,
        "schema_revision": 3,
        "msg_id": "m",
        "unchanged": ["price"],
        "new": new,
        "old": None,
    }


def test_a_log_reads_back_as_it_was_decoded(tmp_path: Path) -> None:
    """The driver folds what it reads here as executors fold what they decode."""
    held = columns(*_KINDS)
    someone = str(uuid.uuid4())
    row = {
        "id": 1,
        "who": someone,
        "them": [someone, None],
        "price": None,
        "tags": ["x", None],
        "at": _NOW,
        "_bridge_text": [("price", "NaN")],
    }
    empty = dict.fromkeys((*_KINDS, "_bridge_text"))
    wanted, stored = log_arrow_schema(held), arrow_schema(log_schema(held))
    rows = pa.RecordBatch.from_pylist(
        [change(row), change({**empty, "id": 2}), change(None)], schema=wanted
    )
    (file,) = FileTarget(stored, f"{tmp_path}/").write(rows)

    found = read_log_files([file.path], stored, wanted, None)

    assert found.schema == wanted
    assert found.to_pylist() == rows.to_pylist()


def test_a_file_that_lacks_a_column_is_left_to_spark(tmp_path: Path) -> None:
    """Only Iceberg knows what stands for it: NULL, or the column's initial default."""
    before, after = columns("id"), columns("id", "who")
    schema = log_arrow_schema(before)
    rows = pa.RecordBatch.from_pylist([change({"id": 1, "_bridge_text": None})], schema=schema)
    (file,) = FileTarget(arrow_schema(log_schema(before)), f"{tmp_path}/").write(rows)

    with pytest.raises(Evolved):
        read_log_files([file.path], arrow_schema(log_schema(after)), log_arrow_schema(after), None)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("/lake/t/data/", "file:/lake/t/data/"),
        ("file:///lake/t", "file:/lake/t"),
        ("file:/lake/t", "file:/lake/t"),
        ("s3://bucket/t", "s3://bucket/t"),
    ],
)
def test_files_have_the_name_that_iceberg_gives_them(uri: str, name: str) -> None:
    """A deletion vector of a file with another name would be ignored without a word."""
    assert location_in_iceberg(uri) == name

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lake_consumer.columns import columns_of
from lake_consumer.iceberg.decode import Decoder
from schemas.codecs import CODECS
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.types import parse_type

TYPES = {
    "id": "int64", "price": "decimal(10,2)", "day": "date", "at": "timestamptz",
    "tags": "list<int32>", "doc": "json", "raw": "binary",
}  # fmt: skip


def shape(types: dict[str, str], first: int = 1) -> TableShape:
    columns = tuple(
        Column(
            name=name,
            position=position,
            data_type=kind,
            type_oid=0,
            type_modifier=-1,
            type=parse_type(kind),
            key=0 if name == "id" else None,
        )
        for position, (name, kind) in enumerate(types.items(), start=first)
    )
    return TableShape(
        name=TableName("public", "t"), relation_id=1, replica_identity="default", columns=columns
    )


def decode(*changes: dict[str, Any], codec: str = "msgpack", **shapes: Any) -> list[dict[str, Any]]:
    known = shapes.get("shapes", {1: shape(TYPES)})
    columns = columns_of(known[max(known)])
    coder = CODECS[codec]  # type: ignore[index]
    sent = [coder.decode(coder.encode({**PLACE, **change})) for change in changes]
    decoded = Decoder(columns, known).decode(range(1, len(sent) + 1), sent)
    rows: list[dict[str, Any]] = decoded.to_pylist()
    return rows


PLACE = {
    "operation": "INSERT", "lsn": 1, "commit_lsn": 2, "commit_ts": "2025-12-08T13:45:21.719719Z",
    "xid": 3, "seq": 0, "last": True, "schema_revision": 1, "msg_id": "1-t-insert",
}  # fmt: skip
ROW = {
    "id": 1, "price": "12.30", "day": "2025-12-08", "at": "2025-12-08T13:45:21.5Z",
    "tags": [1, None], "doc": {"a": [1]}, "raw": b"\x00",
}  # fmt: skip


def test_values_get_the_types_of_their_columns() -> None:
    """Arrow and Iceberg hold them natively, so every engine can read them."""
    [row] = decode({"data": ROW})

    assert row["new"] == {
        "id": 1,
        "price": Decimal("12.30"),
        "day": date(2025, 12, 8),
        "at": datetime(2025, 12, 8, 13, 45, 21, 500000, tzinfo=UTC),
        "tags": [1, None],
        "doc": '{"a":[1]}',
        "raw": b"\x00",
        "_bridge_text": None,
    }
    assert row["commit_ts"] == datetime(2025, 12, 8, 13, 45, 21, 719719, tzinfo=UTC)
    assert row["old"] is None


def test_values_without_a_native_form_are_in_the_text_map() -> None:
    """One odd value must neither be altered nor take its neighbours with it."""
    odd = {
        **ROW, "price": "NaN", "day": "infinity", "at": "0044-03-15 00:00:00+00 BC",
        "tags": [[1], [2]],
    }  # fmt: skip
    plain, row = decode({"data": ROW}, {"data": odd, "text": ["day", "at"]})

    assert plain["new"]["price"] == Decimal("12.30")
    assert [row["new"][name] for name in ("price", "day", "at", "tags")] == [None] * 4
    assert dict(row["new"]["_bridge_text"]) == {
        "price": "NaN",
        "day": "infinity",
        "at": "0044-03-15 00:00:00+00 BC",
        "tags": "{{1},{2}}",
    }


def test_a_document_is_spelled_alike_however_it_travelled() -> None:
    """As text because the row before it held 2.50, or natively: it is one value in the lake."""
    sent = {"operation": "UPDATE", "data": {**ROW, "doc": '{"a": [1]}'}, "text": ["doc"]}

    [native, text] = decode({"data": ROW}, {**sent, "old": {**ROW, "doc": '{"a": [2.50, 1]}'}})

    assert text["new"] == native["new"]
    assert text["old"]["doc"] == '{"a":[2.50,1]}'


def test_json_messages_give_the_same_rows() -> None:
    """The format is the bridge's choice; the lake must not show it."""
    in_json = {**ROW, "raw": "\\x00"}

    [row] = decode({"data": in_json, "text": ["raw"]}, codec="json")

    assert row["new"] == decode({"data": ROW})[0]["new"]


@pytest.mark.parametrize(
    ("change", "new", "old"),
    [
        ({"operation": "DELETE", "data": {"id": 1}}, None, 1),
        ({"operation": "TRUNCATE", "data": {}}, None, None),
        ({"operation": "UPDATE", "data": ROW, "key": {"id": 7}}, 1, 7),
        ({"operation": "UPDATE", "data": ROW, "old": {**ROW, "id": 8}}, 1, 8),
        ({"operation": "UPDATE", "data": ROW}, 1, None),
    ],
)
def test_old_is_whatever_postgresql_said_of_the_row_before(
    change: dict[str, Any], new: int | None, old: int | None
) -> None:
    """A delete has no new row, and readers must not take its key for one."""
    [row] = decode(change)

    assert (row["new"] and row["new"]["id"]) == new
    assert (row["old"] and row["old"]["id"]) == old


def test_an_older_revision_fills_the_columns_it_has() -> None:
    """A batch may hold changes from before and after a rename and an added column."""
    before = shape({"id": "int32", "title": "text"})
    after = shape({"id": "int64", "name": "text", "extra": "int32"})

    rows = decode(
        {"data": {"id": 1, "title": "x"}, "schema_revision": 4},
        {"data": {"id": 2, "name": "y", "extra": 5}, "schema_revision": 5},
        shapes={4: before, 5: after},
    )

    assert [(r["new"]["id"], r["new"]["name"], r["new"]["extra"]) for r in rows] == [
        (1, "x", None),
        (2, "y", 5),
    ]

"""Iceberg schemas as data: the JSON that Iceberg itself reads and writes.

A mirror has the table's columns and a text map. A change log has the change's place and `new` and
`old` rows, each shaped like a row of the mirror, so `SELECT new.* FROM log` reads like the table.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from lake_consumer.columns import TEXT_COLUMN, Columns
from schemas.types import ContractType

IcebergType = str | dict[str, Any]

_PRIMITIVES = {
    "bigint": "long",
    "timestamp_ntz": "timestamp",
    "timestamp": "timestamptz",
}
"""Spark names that Iceberg spells in another way."""

_LIST_OF_STRINGS: IcebergType = {"type": "list", "element": "string", "element-required": False}
_TEXT_MAP: IcebergType = {
    "type": "map", "key": "string", "value": "string", "value-required": False,
}  # fmt: skip

PLACE_FIELDS: tuple[tuple[str, IcebergType, str], ...] = (
    ("operation", "string", "INSERT, UPDATE, DELETE or TRUNCATE"),
    ("stream_seq", "long", "sequence of the message in the CDC stream"),
    ("commit_lsn", "long", "WAL position of the commit"),
    ("commit_ts", "timestamptz", "time of the commit"),
    ("lsn", "long", "WAL position of the change"),
    ("xid", "long", "transaction id"),
    ("seq", "long", "ordinal in the transaction, from 0"),
    ("last", "boolean", "whether this is the transaction's last change"),
    ("schema_revision", "long", "revision of the table's shape in KV `schemas`"),
    ("msg_id", "string", "id of the message"),
    ("unchanged", _LIST_OF_STRINGS, "columns PostgreSQL did not send because they did not change"),
)
"""What a change log says of every change, beside its rows."""

FORK_FIELD: tuple[str, IcebergType, str] = (
    "fork_seq",
    "long",
    "stream sequence of the bridge-fork that made this invalid: it never happened; else null",
)

CUTS_FIELDS: tuple[tuple[str, IcebergType, str], ...] = (
    ("table_name", "string", "the table; null where a batch touched none"),
    ("commit_lsn", "long", "WAL position of the last commit in this lake commit"),
    ("commit_ts", "timestamptz", "time of that commit"),
    ("stream_seq", "long", "last sequence of the CDC stream in this lake commit"),
    ("snapshot_id", "long", "the mirror's snapshot that is the table at this commit"),
    ("changes_snapshot_id", "long", "the change log's snapshot that ends at this commit"),
    ("gone_since", "long", "WAL position since which PostgreSQL does not publish the table"),
    FORK_FIELD,
)


def iceberg_type(type: ContractType) -> IcebergType:
    """The Iceberg type of a column; uuid is the one type that Spark cannot name."""
    if type.element is not None:
        return {"type": "list", "element": iceberg_type(type.element), "element-required": False}
    if type.kind == "uuid":
        return "uuid"
    return _PRIMITIVES.get(type.spark, type.spark)


def row_fields(columns: Columns) -> list[tuple[str, IcebergType, str]]:
    fields = [(column.name, iceberg_type(column.type), column.doc) for column in columns]
    return [*fields, (TEXT_COLUMN, _TEXT_MAP, "PostgreSQL's text of values without a native form")]


def mirror_schema(columns: Columns) -> dict[str, Any]:
    return build_schema(row_fields(columns))


def log_schema(columns: Columns) -> dict[str, Any]:
    row = build_struct(row_fields(columns))
    return build_schema(
        [
            *PLACE_FIELDS,
            ("new", row, "the row after the change; null for a delete and a truncate"),
            ("old", row, "the row before, as far as PostgreSQL sent it: the key, or all of it"),
            FORK_FIELD,
        ]
    )


def cuts_schema() -> dict[str, Any]:
    return build_schema(list(CUTS_FIELDS))


def one_type_schema(type: IcebergType, default: Any = None) -> dict[str, Any]:
    """A schema of one field `x`, by which Iceberg reads a type and a default for us."""
    schema = build_schema([("x", type, "")])
    if default is not None:
        schema["fields"][0]["initial-default"] = default
    return schema


def build_struct(fields: list[tuple[str, IcebergType, str]]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "required": False, "type": kind, "doc": doc}
            for name, kind, doc in fields
        ],
    }


def build_schema(fields: list[tuple[str, IcebergType, str]]) -> dict[str, Any]:
    schema = _numbered(build_struct(fields), count(1))
    assert isinstance(schema, dict)  # noqa: S101 - a struct stays a struct
    return {**schema, "schema-id": 0}


_IDS = {"list": ("element",), "map": ("key", "value")}


def _numbered(type: IcebergType, ids: count[int]) -> IcebergType:
    """Give every field, element, key and value of a type its id."""
    if isinstance(type, str):
        return type
    if type["type"] == "struct":
        fields = [
            {**field, "id": next(ids), "type": _numbered(field["type"], ids)}
            for field in type["fields"]
        ]
        return {**type, "fields": fields}
    numbered = dict(type)
    for part in _IDS[type["type"]]:
        numbered[f"{part}-id"] = next(ids)
        numbered[part] = _numbered(type[part], ids)
    return numbered

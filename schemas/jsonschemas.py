"""JSON Schemas of every payload, built from the code: `python -m schemas.jsonschemas` writes them.

The files in `json/` state the contract for consumers in any language; a test keeps them equal to
what this module builds. They describe the decoded map, so one schema serves MessagePack and JSON,
with one difference: MessagePack has bytes, which JSON Schema has no word for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from schemas import CONTRACT_VERSION
from schemas.ddl import DDL_KINDS, DDL_VERSION
from schemas.forks import FORK_VERSION
from schemas.shapes import ReplicaIdentity
from schemas.subjects import (
    CDC,
    DDL_PREFIX,
    FORK_PREFIX,
    LOGICAL_MESSAGES,
    MESSAGE_OPERATION,
    OPERATIONS,
    SCHEMA_OPERATION,
    Operation,
)
from schemas.types import KINDS, TYPES, JsonSchema, Kind

FOLDER = Path(__file__).parent / "json"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

NAME = "[-/_=a-zA-Z0-9]+"
"""What a table's token is made of: one NATS subject token and one KV key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One kind of body: where it travels, its fields, and which of them may be missing."""

    travels: str
    about: str
    fields: Mapping[str, JsonSchema]
    optional: Iterable[str] = ()
    rules: JsonSchema = field(default_factory=dict)
    definitions: JsonSchema = field(default_factory=dict)

    def document(self, name: str) -> JsonSchema:
        body: JsonSchema = {
            "$schema": DRAFT,
            "$id": f"urn:walbridge:contract:{CONTRACT_VERSION}:{name}",
            "title": self.travels,
            "description": self.about,
            **_map(self.fields, self.optional),
            **self.rules,
        }
        return {**body, "$defs": self.definitions} if self.definitions else body


def _map(fields: Mapping[str, JsonSchema], optional: Iterable[str] = ()) -> JsonSchema:
    return {
        "type": "object",
        "required": [name for name in fields if name not in set(optional)],
        "properties": dict(fields),
        "additionalProperties": False,
    }


def _whole(pattern: str, about: str = "") -> JsonSchema:
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    return {"description": about, **schema} if about else schema


def _integer(minimum: int, maximum: int | None = None, about: str = "") -> JsonSchema:
    schema: JsonSchema = {"description": about} if about else {}
    schema |= {"type": "integer", "minimum": minimum}
    return schema if maximum is None else {**schema, "maximum": maximum}


def _list(items: JsonSchema, **rules: Any) -> JsonSchema:
    return {"type": "array", "items": items, **rules}


def _or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


TEXT: JsonSchema = {"type": "string"}
BOOLEAN: JsonSchema = {"type": "boolean"}
OID = _integer(1, (1 << 32) - 1)
COUNT = _integer(0)
MOMENT = _whole(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", "UTC, microseconds"
)
REVISION = _integer(1, about="revision of the table's entry in KV `schemas`")
COLUMN_NAMES = _list(TEXT, minItems=1, uniqueItems=True)
ROW: JsonSchema = {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}}
SNAPSHOT_ID = _whole(r"[^.*>\s]+", "one snapshot, never used twice")
TABLE: JsonSchema = {"description": "PostgreSQL's name, as it is", **TEXT}
SCHEMA: JsonSchema = {"description": "PostgreSQL's name, as it is", **TEXT}


SOURCE: JsonSchema = {
    "description": "whose it is: system identifier, database OID and slot, such as 7451/16384/shop",
    **TEXT,
}


def _lsn(about: str) -> JsonSchema:
    return _integer(0, (1 << 64) - 1, about)


PLACE: Mapping[str, JsonSchema] = {
    "lsn": _lsn("position of this message in the WAL; not monotonic across transactions"),
    "commit_lsn": _lsn("position of the commit; (commit_lsn, seq) is the stream's order"),
    "commit_ts": MOMENT,
    "xid": _integer(0, (1 << 32) - 1, "transaction id"),
    "seq": _integer(0, about="ordinal in the transaction"),
    "last": {"description": "the transaction's last published change", **BOOLEAN},
}


def _value_definitions() -> JsonSchema:
    """Give each kind of value its schema, and the PostgreSQL types it stands for."""
    kinds: dict[str, JsonSchema] = {}
    for kind, row in KINDS.items():
        schema = dict(row.json_schema)
        about = "; ".join(filter(None, [_stands_for(kind), schema.pop("description", "")]))
        kinds[kind] = {"description": about, **schema}
    kinds["list"] |= {"items": {"$ref": "#/$defs/value"}}
    value = {
        "description": "By the column's `type` in KV `schemas`; PostgreSQL's text where the column"
        " is named in `text`.",
        "anyOf": [{"type": "null"}, *({"$ref": f"#/$defs/{kind}"} for kind in kinds)],
    }
    return {"value": value, **kinds}


def _stands_for(kind: Kind) -> str:
    if kind == "list":
        return "any array, nested by dimension"
    names = ", ".join(sorted(row.name for row in TYPES if row.kind == kind))
    return f"{names}, and every type without a kind of its own" if kind == "text" else names


VALUES = _value_definitions()

# Which of the optional parts an operation may have.
_PARTS: Mapping[Operation, tuple[str, ...]] = {
    "INSERT": ("text",),
    "UPDATE": ("key", "old", "unchanged", "text"),
    "DELETE": ("old", "text"),
    "TRUNCATE": (),
}
_OPTIONAL_PARTS = _PARTS["UPDATE"]


def _rule_of(operation: Operation) -> JsonSchema:
    verb = operation.lower()
    then: JsonSchema = {
        "subject": {"pattern": rf"\.{verb}$"},
        "msg_id": {"pattern": f"-{verb}(-[0-9]+)?$"},
        **{part: False for part in _OPTIONAL_PARTS if part not in _PARTS[operation]},
    }
    if operation == "TRUNCATE":
        then["data"] = {"maxProperties": 0}
    return {
        "if": {"properties": {"operation": {"const": operation}}},
        "then": {"properties": then},
    }


_VERBS = "|".join(operation.lower() for operation in OPERATIONS)

CHANGE = Payload(
    travels=f"{CDC}.{{table}}.{{{_VERBS}}}",
    about="One row change, or the truncate of one table.",
    fields={
        "subject": _whole(rf"{CDC}\.{NAME}\.({_VERBS})"),
        "msg_id": _whole(f"[0-9a-f]+-{NAME}-({_VERBS})(-[1-9][0-9]*)?"),
        "schema": SCHEMA,
        "table": TABLE,
        "operation": {"enum": list(OPERATIONS)},
        "relation_id": OID,
        **PLACE,
        "schema_revision": REVISION,
        "data": {
            "description": "INSERT, UPDATE: every column except those in `unchanged`."
            " DELETE: the key columns (under REPLICA IDENTITY FULL all), the rest null."
            " TRUNCATE: empty.",
            **ROW,
        },
        "key": {"description": "the old key columns, where an UPDATE changed the key", **ROW},
        "old": {"description": "the whole old row, under REPLICA IDENTITY FULL", **ROW},
        "unchanged": {
            "description": "TOASTed columns that did not change: not in `data`, and not null",
            **COLUMN_NAMES,
        },
        "text": {
            "description": "columns whose value has no exact native form: PostgreSQL's own text",
            **COLUMN_NAMES,
        },
    },
    optional=_OPTIONAL_PARTS,
    rules={"allOf": [_rule_of(operation) for operation in OPERATIONS]},
    definitions=VALUES,
)


def _type_pattern() -> str:
    plain = "|".join(kind for kind in KINDS if kind != "list")
    one = rf"({plain}|decimal\([0-9]+,-?[0-9]+\))"
    return f"({one}|list<{one}>)"


COLUMN: Mapping[str, JsonSchema] = {
    "name": TEXT,
    "position": _integer(1, about="the catalog's attnum, which survives a rename"),
    "data_type": {"description": "as PostgreSQL writes it, such as numeric(10,2)", **TEXT},
    "is_nullable": BOOLEAN,
    "column_default": {"type": ["string", "null"]},
    "type_oid": OID,
    "type_modifier": _integer(-1),
    "type": _whole(_type_pattern(), "the contract's own type name"),
    "key": {"description": "position in the key from 0, or null", **_or_null(COUNT)},
    "fill": {
        "description": "only on a column that was added to an existing table: what rows that"
        " existed then hold, by the value rule; null if they hold NULL"
    },
}

SHAPE: Mapping[str, JsonSchema] = {
    "table": TABLE,
    "schema": {"description": "the qualified name, such as public.users", **TEXT},
    "timestamp": MOMENT,
    "relation_id": OID,
    "replica_identity": {"enum": list(get_args(ReplicaIdentity))},
    "fingerprint": _whole("[0-9a-f]{16}", "equal for equal shapes"),
    "lsn": _lsn("from which position of the WAL on the table has this shape"),
    "source": SOURCE,
    "columns": _list({"$ref": "#/$defs/column"}),
    "rewritten": {
        "description": "values of existing rows may have changed here without change messages:"
        " only a snapshot requested after this message shows them; absent otherwise",
        "const": True,
    },
    "storage": {
        "description": "KV only: what the bridge remembers of the catalog, to notice DDL that"
        " happens while it is down; not for consumers"
    },
}

ANNOUNCED: Mapping[str, JsonSchema] = {
    "subject": _whole(rf"{CDC}\.{NAME}\.schema"),
    "msg_id": _whole(f"[0-9a-f]+-{NAME}-schema(-[1-9][0-9]*)?"),
    "operation": {"const": SCHEMA_OPERATION},
    **{name: schema for name, schema in PLACE.items() if name != "lsn"},
    "last": {
        "description": "false: the change that needs the shape follows at the same place; true:"
        " announced between transactions",
        **BOOLEAN,
    },
    "schema_revision": REVISION,
}

SCHEMA_PAYLOAD = Payload(
    travels=f"KV schemas, key {{table}}; {CDC}.{{table}}.schema",
    about="A table's shape. On the stream it also says where it stands, and comes before the first"
    " change that needs it.",
    fields={**SHAPE, **ANNOUNCED},
    optional=(*ANNOUNCED, "rewritten", "storage"),
    rules={"dependentRequired": {name: [n for n in ANNOUNCED if n != name] for name in ANNOUNCED}},
    definitions={"column": _map(COLUMN, ("fill",))},
)

MESSAGE = Payload(
    travels=f"{CDC}.{LOGICAL_MESSAGES}.{{prefix}}",
    about="What pg_logical_emit_message wrote.",
    fields={
        "subject": _whole(rf"{CDC}\.{LOGICAL_MESSAGES}\.{NAME}"),
        "msg_id": _whole(f"[0-9a-f]+-{LOGICAL_MESSAGES}-{NAME}(-[1-9][0-9]*)?"),
        "operation": {"const": MESSAGE_OPERATION},
        "prefix": TEXT,
        "transactional": BOOLEAN,
        "source": SOURCE,
        **PLACE,
        "commit_ts": {"description": "null outside a transaction", **_or_null(MOMENT)},
        "content": {"description": "text; MessagePack bin where it is not UTF-8"},
    },
)

DDL_EVENT: Mapping[str, JsonSchema] = {
    "kind": {
        "description": "drop: the table is gone; rename: same relation, other name or schema;"
        " publish, unpublish: it joined or left the publication; rewrite: values of existing rows"
        " may have changed; alter: anything else",
        "enum": list(DDL_KINDS),
    },
    "relation_id": OID,
    "schema": SCHEMA,
    "table": TABLE,
    "new_schema": {"description": "rename: the schema it is in now", **TEXT},
    "new_table": {"description": "rename: the name it has now", **TEXT},
    "reason": {"description": "for people", **TEXT},
}

DDL = Payload(
    travels=f"content of {CDC}.{LOGICAL_MESSAGES}.{DDL_PREFIX}, as JSON",
    about="What DDL did to published tables. The event trigger reports it inside the transaction of"
    " the statement, the bridge's catalog watch between transactions; both may report the same.",
    fields={
        "version": {"const": DDL_VERSION},
        "events": _list({"$ref": "#/$defs/event"}),
    },
    definitions={
        "event": {
            **_map(DDL_EVENT, ("new_schema", "new_table", "reason")),
            "additionalProperties": True,
        }
    },
)

FORK = Payload(
    travels=f"content of {CDC}.{LOGICAL_MESSAGES}.{FORK_PREFIX}, as JSON",
    about="The source's history was replaced (failover, restore, rewind). Every message of this"
    " `source` that is stored before with commit_lsn >= switch_lsn never happened. Positions start"
    " again above the place of this message. Consumers take new snapshots of the source's tables.",
    fields={
        "version": {"const": FORK_VERSION},
        "slot": TEXT,
        "system": {"description": "PostgreSQL's system identifier", **TEXT},
        "timeline": _integer(0, (1 << 32) - 1, "the timeline that survived"),
        "switch_lsn": _lsn("where the histories part; 0: nothing before is proven"),
        "reason": {"description": "for people", **TEXT},
    },
    optional=("reason",),
)

SNAPSHOT_REQUEST = Payload(
    travels="snapshot.request.{table}; init.request.{table}",
    about="JSON. An empty body, or an empty map, asks for the whole table. `from` (inclusive) and"
    " `to` (exclusive) are keys: the values of the key columns in key order, or of the first few.",
    fields={"from": _list({}, minItems=1), "to": _list({}, minItems=1), "columns": COLUMN_NAMES},
    optional=("from", "to", "columns"),
)

_SNAPSHOT_LSN = _lsn("a transaction with commit_lsn < lsn is in the snapshot, any other is not")
_SNAPSHOT: Mapping[str, JsonSchema] = {
    "snapshot_id": SNAPSHOT_ID,
    "table": TABLE,
    "schema": SCHEMA,
    "lsn": _SNAPSHOT_LSN,
}
_CDC_SEQUENCE = _integer(
    0, about="sequence of the CDC stream; every change that the snapshot lacks is behind it"
)
_ACCEPTED = {
    "status": {"const": "accepted"},
    "snapshot_id": SNAPSHOT_ID,
    "lsn": _SNAPSHOT_LSN,
    "cdc_sequence": _CDC_SEQUENCE,
}
_REJECTED = {
    "status": {"const": "rejected"},
    "error": TEXT,
    "available_tables": _list(TEXT),
}

SNAPSHOT_REPLY = Payload(
    travels="the reply subject of snapshot.request.{table}",
    about="JSON. Accepted, begun or joined: sent as soon as the LSN is known, which waits for"
    " transactions that are open. Rejected: sent at once.",
    fields={**_ACCEPTED, **_REJECTED, "status": {"enum": ["accepted", "rejected"]}},
    optional={*_ACCEPTED, *_REJECTED} - {"status"},
    rules={"oneOf": [_map(_ACCEPTED), _map(_REJECTED)]},
)

SNAPSHOT_START = Payload(
    travels="init.start.{table}",
    about="A snapshot begins.",
    fields={**_SNAPSHOT, "cdc_sequence": _CDC_SEQUENCE, "timestamp": MOMENT},
)

SNAPSHOT_CHUNK = Payload(
    travels="init.snap.{table}.{snapshot_id}.{chunk}",
    about="Rows of a snapshot, by the same value rule as changes.",
    fields={
        **_SNAPSHOT,
        "operation": {"const": "snapshot"},
        "chunk": _integer(0, about="ordinal of the chunk in the snapshot"),
        "schema_revision": REVISION,
        "data": _list(ROW),
        "text": {
            "description": "ordinal of a row in `data`, as a string, to its columns that carry"
            " PostgreSQL's own text",
            "type": "object",
            "minProperties": 1,
            "propertyNames": _whole("(0|[1-9][0-9]*)"),
            "additionalProperties": COLUMN_NAMES,
        },
    },
    optional=("text",),
    definitions=VALUES,
)

SNAPSHOT_META = Payload(
    travels="init.meta.{table}",
    about="A snapshot is complete: every chunk was stored before this was sent.",
    fields={
        **_SNAPSHOT,
        "cdc_sequence": _CDC_SEQUENCE,
        "timestamp": MOMENT,
        "batch_count": {"description": "chunks", **COUNT},
        "row_count": COUNT,
        "checksum": _whole(
            "sha256:[0-9a-f]{64}",
            "SHA-256 over the bodies of all chunks, in chunk order, as they are: an oversize one"
            " is the object's content, a compressed one is taken decompressed",
        ),
        "chunks_checksum": _whole(
            "sha256:[0-9a-f]{64}",
            "SHA-256 over the 32-byte SHA-256 digests of the same bodies, in chunk order; for"
            " consumers that read chunks concurrently",
        ),
        "cdc_complete": _integer(
            0, about="sequence of the CDC stream; every change in the snapshot is at or before it"
        ),
        "schema_revision": REVISION,
        "whole": {
            "description": "whether it is the whole table, and not only a range or some columns",
            "type": "boolean",
        },
    },
    # Older bridges do not send them.
    optional=("cdc_complete", "schema_revision", "whole", "chunks_checksum"),
)

SNAPSHOT_ERROR = Payload(
    travels="init.error.{table}",
    about="A snapshot failed; chunks under its id are to be forgotten.",
    fields={
        "snapshot_id": SNAPSHOT_ID,
        "error": TEXT,
        "advice": {"description": "what to do about it", **TEXT},
    },
)

PAYLOADS: Mapping[str, Payload] = {
    "change": CHANGE,
    "schema": SCHEMA_PAYLOAD,
    "message": MESSAGE,
    "bridge-ddl": DDL,
    "bridge-fork": FORK,
    "snapshot-request": SNAPSHOT_REQUEST,
    "snapshot-reply": SNAPSHOT_REPLY,
    "snapshot-start": SNAPSHOT_START,
    "snapshot-chunk": SNAPSHOT_CHUNK,
    "snapshot-meta": SNAPSHOT_META,
    "snapshot-error": SNAPSHOT_ERROR,
}


def files() -> dict[str, str]:
    """Give every file's name and text, the same at every run."""
    return {
        f"{name}.json": json.dumps(payload.document(name), indent=2, ensure_ascii=False) + "\n"
        for name, payload in PAYLOADS.items()
    }


def write(folder: Path = FOLDER) -> None:
    """Make the folder's JSON files exactly those of this module."""
    wanted = files()
    for stale in {path.name for path in folder.glob("*.json")} - wanted.keys():
        (folder / stale).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write()

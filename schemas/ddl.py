"""`bridge-ddl`: what DDL did to published tables, as the content of a logical message.

Two writers send it: the event trigger of `init.sh`, inside the transaction of the DDL statement,
and the bridge's catalog watch, between transactions. Readers expect the same event more than once.
Any database role can write a logical message under this prefix, so `parse_ddl` accepts any bytes:
what is not an event of this version is left out. The bridge publishes only what its catalog
confirms (`is_confirmed`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from schemas.names import TableName
from schemas.values import Value

DDL_VERSION = 1

DdlKind = Literal["drop", "rename", "publish", "unpublish", "rewrite", "alter"]
DDL_KINDS: tuple[DdlKind, ...] = get_args(DdlKind)

_MAX_OID = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """One thing that happened to one table.

    `drop`: it is gone from the database. `rename`: the same relation has `new_name`. `publish`,
    `unpublish`: it joined or left the publication. `rewrite`: values of existing rows may have
    changed without change messages. `alter`: anything else.
    """

    kind: DdlKind
    relation_id: int
    name: TableName
    new_name: TableName | None = None
    reason: str = ""

    def to_map(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "kind": self.kind,
            "relation_id": self.relation_id,
            "schema": self.name.schema,
            "table": self.name.table,
        }
        if self.new_name is not None:
            fields |= {"new_schema": self.new_name.schema, "new_table": self.new_name.table}
        return {**fields, "reason": self.reason} if self.reason else fields


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What the catalog says of a relation that still exists."""

    name: TableName
    is_published: bool


def is_confirmed(event: DdlEvent, now: CatalogState | None) -> bool:
    """Whether the catalog bears out an event; `None` stands for a relation that is gone.

    `rewrite` and `alter` only say where to look, so there is nothing to confirm.
    """
    match event.kind:
        case "drop":
            return now is None
        case "unpublish":
            return now is None or not now.is_published
        case "publish":
            return now is not None and now.is_published and now.name == event.name
        case "rename":
            # It may be called something else again by now.
            return now is not None and event.new_name is not None and now.name != event.name
    return True


def format_ddl(events: Iterable[DdlEvent]) -> str:
    """Write the content of a `bridge-ddl` message."""
    content = {"version": DDL_VERSION, "events": [event.to_map() for event in events]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def parse_ddl(content: Value) -> tuple[DdlEvent, ...]:
    """Read a content as a message carries it: text, bytes, or PostgreSQL's notation for bytes."""
    try:
        fields = json.loads(_text(content))
    except (ValueError, RecursionError):
        return ()
    if not isinstance(fields, dict) or fields.get("version") != DDL_VERSION:
        return ()
    events = fields.get("events")
    parsed = (_event(event) for event in events) if isinstance(events, list) else ()
    return tuple(event for event in parsed if event is not None)


def _text(content: Value) -> str:
    if isinstance(content, str):
        is_hex = content.startswith("\\x")
        return bytes.fromhex(content[2:]).decode() if is_hex else content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content).decode()
    raise ValueError(f"{type(content).__name__} is no content of a logical message")


def _event(fields: Any) -> DdlEvent | None:
    if not isinstance(fields, dict):
        return None
    kind, relation_id = fields.get("kind"), fields.get("relation_id")
    name = _name(fields, "schema", "table")
    if kind not in DDL_KINDS or type(relation_id) is not int or name is None:
        return None
    if not 0 < relation_id <= _MAX_OID:
        return None
    reason = fields.get("reason")
    return DdlEvent(
        kind=kind,
        relation_id=relation_id,
        name=name,
        new_name=_name(fields, "new_schema", "new_table"),
        reason=reason if isinstance(reason, str) else "",
    )


def _name(fields: Mapping[str, Any], schema: str, table: str) -> TableName | None:
    parts = fields.get(schema), fields.get(table)
    if not all(isinstance(part, str) and part and _is_utf8(part) for part in parts):
        return None
    return TableName(str(parts[0]), str(parts[1]))


def _is_utf8(text: str) -> bool:
    """JSON can spell a lone surrogate, which no PostgreSQL name holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""`bridge-ddl`: what DDL did to published tables, as the content of a logical message.

Two writers send it: the event trigger of `init.sh`, inside the transaction of the DDL statement,
and the bridge's catalog watch, between transactions. Readers expect the same event more than once.
Any database role can write a logical message under this prefix, so `parse_ddl` accepts any bytes:
what is not an event of this version is left out. The bridge publishes only what its catalog
confirms (`is_confirmed`).

A writer puts `DDL_EVENTS` events into one message at most. A content that is far beyond that is
nobody's DDL: it has no events, and the catalog watch finds what is true of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from schemas.contents import content_text
from schemas.names import TableName
from schemas.values import Value

DDL_VERSION = 1

DdlKind = Literal["drop", "rename", "publish", "unpublish", "rewrite", "alter"]
DDL_KINDS: tuple[DdlKind, ...] = get_args(DdlKind)

DDL_EVENTS = 1_000
"""How many events a writer puts into one message."""

MOST_EVENTS = 10_000
MOST_BYTES = 4 << 20
"""A content with more has no events: any role can write a gigabyte, and reading it takes long."""

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


def is_confirmed(event: DdlEvent, known: Collection[TableName], now: CatalogState | None) -> bool:
    """Whether the catalog bears out an event.

    `known` has the names under which the bridge has told consumers of the relation: none if it is
    not its own, and two between the first change under a new name and the report of the rename.
    `now` is `None` for a relation that is gone. Only a name that consumers know can be dropped,
    renamed or unpublished.
    """
    match event.kind:
        case "drop":
            return event.name in known and now is None
        case "unpublish":
            return event.name in known and (now is None or not now.is_published)
        case "publish":
            return now is not None and now.is_published and now.name == event.name
        case "rename":
            is_moved = now is not None and event.name != now.name == event.new_name
            return is_moved and event.name in known
        case "rewrite" | "alter":
            return now is not None and now.is_published and event.name in {*known, now.name}


def is_contradicted(
    event: DdlEvent, known: Collection[TableName], now: CatalogState | None
) -> bool:
    """Whether the catalog says otherwise: an event that it only does not confirm may be true.

    The catalog is read later, when the relation may have been renamed, dropped or unpublished.
    """
    if now is None:
        return False
    match event.kind:
        case "drop":
            return True
        case "unpublish":
            return now.is_published
        case "rename":
            return now.name != event.new_name
        case "publish" | "rewrite" | "alter":
            return now.is_published and event.name != now.name and now.name in known


def format_ddl(events: Iterable[DdlEvent]) -> str:
    """Write the content of a `bridge-ddl` message, of `DDL_EVENTS` events at most."""
    content = {"version": DDL_VERSION, "events": [event.to_map() for event in events]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def parse_ddl(content: Value) -> tuple[DdlEvent, ...]:
    """Read a content as a message carries it: text, bytes, or PostgreSQL's notation for bytes."""
    try:
        fields = json.loads(content_text(content, MOST_BYTES))
    except (ValueError, RecursionError):
        return ()
    if not isinstance(fields, dict) or fields.get("version") != DDL_VERSION:
        return ()
    events = fields.get("events")
    if not isinstance(events, list) or len(events) > MOST_EVENTS:
        return ()
    return tuple(event for fields in events if (event := _event(fields)))


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

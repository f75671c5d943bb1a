"""A table's shape: columns, key and replica identity, as KV `schemas` and the stream carry it.

Two shapes are the same shape when their fingerprints are equal. The fingerprint covers what changes
the meaning of a row, and leaves out when and where the shape was seen.

`fill` and `rewritten` report what DDL did to rows that existed already. They are not part of the
fingerprint: they say how existing rows got their values, not what a row means.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from schemas.names import TableName
from schemas.types import ContractType, parse_type
from schemas.values import Value

ReplicaIdentity = Literal["default", "full", "index", "nothing"]


class Unfilled:
    """The type of `NO_FILL`."""

    def __repr__(self) -> str:
        return "NO_FILL"

    def __reduce__(self) -> str:
        return "NO_FILL"  # one object in every process, so that `is` keeps its meaning


NO_FILL: Final = Unfilled()
"""The column has no `fill`: the table was created with it, or the value is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; `position` is the catalog's attnum, which survives a rename.

    `fill` is set on a column that was added to an existing table: the value, by the value rule, of
    rows that existed then. None means that they hold NULL.
    """

    name: str
    position: int
    data_type: str
    type_oid: int
    type_modifier: int
    type: ContractType
    is_nullable: bool = True
    column_default: str | None = None
    key: int | None = None
    fill: Value | Unfilled = field(default=NO_FILL, hash=False)

    def to_map(self) -> dict[str, Any]:
        fields = {
            "name": self.name,
            "position": self.position,
            "data_type": self.data_type,
            "is_nullable": self.is_nullable,
            "column_default": self.column_default,
            "type_oid": self.type_oid,
            "type_modifier": self.type_modifier,
            "type": str(self.type),
            "key": self.key,
        }
        return fields if self.fill is NO_FILL else {**fields, "fill": self.fill}

    @classmethod
    def from_map(cls, fields: Mapping[str, Any]) -> Column:
        return cls(
            name=fields["name"],
            position=fields["position"],
            data_type=fields["data_type"],
            is_nullable=fields["is_nullable"],
            column_default=fields["column_default"],
            type_oid=fields["type_oid"],
            type_modifier=fields["type_modifier"],
            type=parse_type(fields["type"]),
            key=fields["key"],
            fill=fields.get("fill", NO_FILL),
        )


@dataclass(frozen=True, kw_only=True)
class TableShape:
    """What a table looks like from some position of the WAL on.

    `rewritten` says that values of existing rows may have changed here without change messages:
    only a snapshot requested after this announcement shows them.
    """

    name: TableName
    relation_id: int
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]
    rewritten: bool = False

    @cached_property
    def key(self) -> tuple[Column, ...]:
        """The key columns in key order; empty where the table has no key."""
        keyed = [column for column in self.columns if column.key is not None]
        return tuple(sorted(keyed, key=lambda column: column.key or 0))

    @cached_property
    def fingerprint(self) -> str:
        meaning = [
            # Apart, because both may hold dots: a."b.c" and "a.b".c are two tables.
            [self.name.schema, self.name.table],
            self.relation_id,
            self.replica_identity,
            [
                [c.name, c.position, c.type_oid, c.type_modifier, str(c.type), c.is_nullable, c.key]
                for c in self.columns
            ],
        ]
        text = json.dumps(meaning, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_map(self, *, timestamp: str, lsn: int, source: str) -> dict[str, Any]:
        """Write the shape as seen at a time and a position of one database's WAL."""
        fields = {
            "table": self.name.table,
            "schema": str(self.name),
            "timestamp": timestamp,
            "relation_id": self.relation_id,
            "replica_identity": self.replica_identity,
            "fingerprint": self.fingerprint,
            "lsn": lsn,
            "source": source,
            "columns": [column.to_map() for column in self.columns],
        }
        return {**fields, "rewritten": True} if self.rewritten else fields

    @classmethod
    def from_map(cls, fields: Mapping[str, Any]) -> TableShape:
        table, qualified = fields["table"], fields["schema"]
        # `schema` is the qualified name, and both parts may hold dots: cut the known end off.
        return cls(
            name=TableName(qualified[: -len(table) - 1], table),
            relation_id=fields["relation_id"],
            replica_identity=fields["replica_identity"],
            columns=tuple(Column.from_map(column) for column in fields["columns"]),
            rewritten=fields.get("rewritten") is True,
        )

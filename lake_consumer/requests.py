"""Which table a request of `resync` or `forget` means, whatever it is called by then. Pure.

A request waits in the lake until a consumer carries it out. Meanwhile the table may get another
name, and another table the name. So a request keeps who the table was: the UUID of its change log,
which a rename does not change, and PostgreSQL's relation, which is another one if the table was
replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lake_consumer.ddl_plan import AWAITED_PROPERTY
from lake_consumer.shapes import SHAPE_PROPERTY
from schemas.names import TableName

RESYNC_PREFIX = "bridge.resync."
"""On `_bridge.resyncs`, with the table's token: somebody wants its mirror to be built anew."""
FORGET_PREFIX = "bridge.forget."


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a table is."""

    uuid: str
    relation: int

    @classmethod
    def of(cls, uuid: object, properties: Mapping[str, str]) -> Identity:
        """Read the properties of the table's change log, which has this UUID."""
        shape = json.loads(properties.get(SHAPE_PROPERTY, "{}"))
        awaited = int(properties.get(AWAITED_PROPERTY, "0"))
        return cls(str(uuid), awaited or int(shape.get("relation_id", 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was requested of one table; earlier versions did not say who it was."""

    table: TableName
    identity: Identity | None
    purge: bool = False
    force: bool = False

    def find(self, held: Mapping[TableName, Identity]) -> TableName | None:
        """The table that is meant, by the name it has now; None if it is not there any more."""
        if self.identity is None:
            return self.table if self.table in held else None
        return next((table for table, one in held.items() if one == self.identity), None)

    def to_property(self, prefix: str) -> dict[str, str]:
        fields: dict[str, Any] = {"purge": self.purge, "force": self.force}
        if self.identity is not None:
            fields |= {"uuid": self.identity.uuid, "relation": self.identity.relation}
        return {self.key(prefix): json.dumps(fields)}

    def key(self, prefix: str) -> str:
        return prefix + self.table.token


def read_requests(properties: Mapping[str, str], prefix: str) -> list[Request]:
    """The requests of a kind that the properties of `_bridge.resyncs` hold."""
    return [
        _read(TableName.from_token(key.removeprefix(prefix)), value)
        for key, value in sorted(properties.items())
        if key.startswith(prefix)
    ]


def _read(table: TableName, value: str) -> Request:
    # `resync` of earlier versions wrote nothing but the time.
    fields: dict[str, Any] = json.loads(value) if value.startswith("{") else {}
    identity = Identity(fields["uuid"], fields["relation"]) if "uuid" in fields else None
    return Request(
        table=table,
        identity=identity,
        purge=bool(fields.get("purge")),
        force=bool(fields.get("force")),
    )

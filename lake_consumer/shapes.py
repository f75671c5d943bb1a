"""Which shape a change has: by table and revision, from wherever it is still known.

Shapes come in the stream before the first change that needs them. One that expired there is in the
table itself (the newest it followed) or in KV `schemas`; beyond that nobody knows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from lake_consumer.errors import ShapeUnknown
from schemas.names import TableName
from schemas.shapes import TableShape

SHAPE_PROPERTY = "bridge.shape"
REVISION_PROPERTY = "bridge.schema-revision"

Fallback = Callable[[TableName, int], dict[str, Any] | None]


class ShapeBook:
    """Every shape seen so far."""

    def __init__(self, fallback: Fallback) -> None:
        self._fallback = fallback
        self._known: dict[tuple[TableName, int], TableShape] = {}
        self._announced: dict[tuple[TableName, int], int] = {}
        self._sources: dict[TableName, str] = {}

    def learn(
        self,
        fields: Mapping[str, Any],
        revision: int,
        sequence: int | None = None,
        table: TableName | None = None,
    ) -> TableShape:
        """Learn a shape; `sequence` is where the stream announces it, if it was read there.

        A `table` that was renamed since is known by the name it has now.
        """
        shape = TableShape.from_map(fields)
        shape = shape if table is None else replace(shape, name=table)
        self._known[shape.name, revision] = shape
        if source := fields.get("source"):
            self._sources[shape.name] = str(source)
        if sequence is not None:
            self._announced[shape.name, revision] = sequence
        return shape

    def announced_at(self, table: TableName, revision: int) -> int | None:
        """The stream sequence of a revision's announcement; None if it was found elsewhere."""
        return self._announced.get((table, revision))

    def learn_properties(
        self, properties: Mapping[str, str], table: TableName | None = None
    ) -> TableShape | None:
        """Learn the shape a lake table says it has."""
        if SHAPE_PROPERTY not in properties:
            return None
        fields = json.loads(properties[SHAPE_PROPERTY])
        return self.learn(fields, int(properties[REVISION_PROPERTY]), table=table)

    def properties(self, shape: TableShape, revision: int) -> dict[str, str]:
        """What a lake table says of its shape."""
        return shape_properties(shape, revision, self._sources.get(shape.name, ""))

    def find(self, table: TableName, revision: int) -> TableShape:
        if (table, revision) not in self._known:
            fields = self._fallback(table, revision)
            if fields is None:
                raise ShapeUnknown(f"nobody knows revision {revision} of the shape of {table}")
            self.learn(fields, revision, table=table)
        return self._known[table, revision]

    def find_all(self, table: TableName, revisions: Iterable[int]) -> dict[int, TableShape]:
        """The shapes of several revisions, oldest first."""
        return {revision: self.find(table, revision) for revision in sorted(revisions)}


def shape_properties(shape: TableShape, revision: int, source: str = "") -> dict[str, str]:
    fields = shape.to_map(timestamp="", lsn=0, source=source)
    return {
        SHAPE_PROPERTY: json.dumps(fields, default=_text_of_bytes),
        REVISION_PROPERTY: str(revision),
    }


def _text_of_bytes(value: Any) -> str:
    """Write a bytea `fill` as PostgreSQL does: JSON has no bytes."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError(f"a shape holds a {type(value).__name__}")


def held_revision(properties: Mapping[str, str]) -> int:
    """The newest revision a lake table has followed; revisions only ever grow."""
    return int(properties.get(REVISION_PROPERTY, "0"))

"""Which shape a change has: by table and revision, from wherever it is still known.

Shapes come in the stream before the first change that needs them. One that expired there is in the
table itself (the newest it followed) or in KV `schemas`; beyond that nobody knows it.

A shape inherits the fills of the revision before it (`fills.inherit_fills`). That is settled when
it is first looked for, and again only if an earlier revision is learned later.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from lake_consumer.errors import ShapeUnknown
from lake_consumer.fills import inherit_fills
from schemas.names import TableName
from schemas.shapes import TableShape

SHAPE_PROPERTY = "bridge.shape"
REVISION_PROPERTY = "bridge.schema-revision"

Fallback = Callable[[TableName, int], dict[str, Any] | None]


@dataclass(slots=True)
class _Revisions:
    """The shapes of one table; `settled` ones have inherited their fills, oldest first."""

    known: dict[int, TableShape] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    settled: list[TableShape] = field(default_factory=list)

    def learn(self, revision: int, shape: TableShape) -> None:
        if self.known.get(revision) == shape:
            return
        if revision not in self.known:
            insort(self.order, revision)
        self.known[revision] = shape
        # What follows it may have inherited something else.
        del self.settled[bisect_left(self.order, revision) :]

    def find(self, revision: int) -> TableShape:
        at, settled = bisect_left(self.order, revision), self.settled
        for later in self.order[len(settled) : at + 1]:
            shape = self.known[later]
            settled.append(inherit_fills(settled[-1], shape) if settled else shape)
        return settled[at]


class ShapeBook:
    """Every shape seen so far; batches and loads look into it at the same time."""

    def __init__(self, fallback: Fallback) -> None:
        self._fallback = fallback
        self._lock = Lock()
        self._tables: dict[TableName, _Revisions] = {}
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
        with self._lock:
            self._tables.setdefault(shape.name, _Revisions()).learn(revision, shape)
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

    def source_of(self, table: TableName) -> str:
        """The source that announced the table's shape; empty if nothing is known of it."""
        return self._sources.get(table, "")

    def find(self, table: TableName, revision: int) -> TableShape:
        if not self._knows(table, revision):
            fields = self._fallback(table, revision)
            if fields is None:
                raise ShapeUnknown(f"nobody knows revision {revision} of the shape of {table}")
            self.learn(fields, revision, table=table)
        with self._lock:
            return self._tables[table].find(revision)

    def _knows(self, table: TableName, revision: int) -> bool:
        return table in self._tables and revision in self._tables[table].known

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

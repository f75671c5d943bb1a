"""A table's change log and mirror, made where missing and led through every change of shape.

The log follows every revision a batch brings, one by one, so that no column of a revision between
is missing. The mirror goes straight to the newest. Revisions only grow: one that a table is already
past belongs to a batch taken again, and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from lake_consumer.columns import columns_of
from lake_consumer.evolution import plan_log, plan_mirror
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.iceberg.types import log_schema, mirror_schema
from lake_consumer.logs import info
from lake_consumer.shapes import (
    ShapeBook,
    held_revision,
    require_same_relation,
    shape_properties,
)
from schemas.names import TableName
from schemas.shapes import TableShape


class ShapeFollower:
    """Opens the two lake tables of one PostgreSQL table."""

    def __init__(self, tables: LakeTables, shapes: ShapeBook, table: TableName) -> None:
        self._tables = tables
        self._shapes = shapes
        self._table = table

    def open_log(self, shapes: Mapping[int, TableShape]) -> Table:
        """Open the change log, evolved to hold every one of these revisions."""
        log = self._find_log()
        held, before = self._followed(log)
        for revision, shape in shapes.items():
            require_same_relation(before, shape)
            before = shape
            if log is None:
                log = self._make_log(shape, revision)
            elif revision > held:
                steps = plan_log(
                    str(self._table), self._tables.columns(log, "new"), columns_of(shape)
                )
                properties = shape_properties(shape, revision)
                self._tables.evolve(log, steps, ("new", "old"), properties)
        return log

    def open_mirror(self, shape: TableShape, revision: int) -> Table:
        """Open the mirror, evolved to the newest shape."""
        name = mirror_of(self._table)
        columns, properties = columns_of(shape), shape_properties(shape, revision)
        if not self._tables.exists(name):
            info("new table in the lake", table=self._table, columns=len(columns))
            return self._tables.create(name, mirror_schema(columns), properties=properties)
        mirror = self._tables.load(name)
        if revision > self._followed(mirror)[0]:
            steps = plan_mirror(str(self._table), self._tables.columns(mirror), columns)
            if steps:
                info("the table changed its shape", table=self._table, steps=len(steps))
            self._tables.evolve(mirror, steps, (None,), properties)
        return mirror

    def learn_held(self) -> int | None:
        """Learn the shape the log has: its announcement may lie far back in the stream."""
        revision, shape = self._followed(self._find_log())
        return None if shape is None else revision

    def _find_log(self) -> Table | None:
        name = log_of(self._table)
        return self._tables.load(name) if self._tables.exists(name) else None

    def _make_log(self, shape: TableShape, revision: int) -> Table:
        return self._tables.create(
            log_of(self._table),
            log_schema(columns_of(shape)),
            day_of="commit_ts",
            properties=shape_properties(shape, revision),
        )

    def _followed(self, table: Table | None) -> tuple[int, TableShape | None]:
        """The newest revision a lake table has followed, and its shape."""
        properties = {} if table is None else self._tables.properties(table)
        return held_revision(properties), self._shapes.learn_properties(properties)

"""A table's change log and mirror, made where missing and led through every change of shape.

The log follows every revision a batch brings, one by one, so that no column of a revision between
is missing, and never refuses one. The mirror goes straight to the newest, as long as the table's
state lets it (`tablestates`); the state is decided and kept in the commit that evolves the log.
Revisions only grow: one that a table is already past belongs to a batch taken again, or the table
learned a later one from KV or from a snapshot; only columns that it has no place for are added.
"""

from __future__ import annotations

from collections.abc import Mapping

from lake_consumer.columns import are_named, columns_of
from lake_consumer.ddl_plan import AWAITED_PROPERTY, SEEN_PROPERTY
from lake_consumer.errors import ShapeUnknown
from lake_consumer.evolution import plan_earlier, plan_log, plan_mirror, plan_rebuild
from lake_consumer.fills import defaults_of
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.iceberg.types import log_schema, mirror_schema
from lake_consumer.logs import info
from lake_consumer.shapes import ShapeBook, held_revision
from lake_consumer.tablestates import REWRITTEN_PROPERTY
from schemas.names import TableName
from schemas.shapes import TableShape


def _rewritten(shape: TableShape, revision: int, announced: int | None) -> dict[str, str]:
    """Note that a table's state takes this revision's `rewritten` into account.

    Only the stream says at which place rows changed; a shape found elsewhere does not count.
    """
    is_counted = shape.rewritten and announced is not None
    return {REWRITTEN_PROPERTY: str(revision)} if is_counted else {}


class ShapeFollower:
    """Opens the two lake tables of one PostgreSQL table."""

    def __init__(
        self, tables: LakeTables, shapes: ShapeBook, states: StateBook, table: TableName
    ) -> None:
        self._tables = tables
        self._shapes = shapes
        self._states = states
        self._table = table

    def open_log(self, shapes: Mapping[int, TableShape], *, seen: int = 0) -> Table:
        """Open the change log, evolved to hold every one of these revisions.

        `seen` is where the stream ended when KV `schemas` named a table that is new here.
        """
        log = self._find_log()
        held, before = self._followed(log)
        for revision, shape in shapes.items():
            if log is None or before is None:
                log = self._make_log(shape, revision, seen)
            elif revision > held:
                self._evolve_log(log, before, shape, revision)
            else:
                self._find_room(log, shape, before)
                self._follow_rewrite(log, shape, revision)
                continue
            held, before = revision, shape
        return log

    def _find_room(self, log: Table, earlier: TableShape, newest: TableShape) -> None:
        """Let a log that is already past a revision hold what that revision's changes carry."""
        held, wanted = self._tables.columns(log, "new"), columns_of(newest)
        if not are_named(held, wanted):
            self._tables.evolve(log, plan_log(held, wanted), ("new", "old"), {})
            held = self._tables.columns(log, "new")
        if steps := plan_earlier(held, earlier, newest):
            self._tables.evolve(log, steps, ("new", "old"), {})

    def _make_log(self, shape: TableShape, revision: int, seen: int) -> Table:
        announced = self._shapes.announced_at(self._table, revision)
        state = self._states.begin(shape, announced)
        log = self._tables.create(
            log_of(self._table),
            log_schema(columns_of(shape)),
            day_of="commit_ts",
            properties={
                **self._shapes.properties(shape, revision),
                **state.to_properties(),
                **_rewritten(shape, revision, announced),
                SEEN_PROPERTY: str(seen),
            },
        )
        self._states.remember(self._table, state)
        return log

    def _evolve_log(self, log: Table, before: TableShape, shape: TableShape, revision: int) -> None:
        announced = self._shapes.announced_at(self._table, revision)
        logged = self._tables.columns(log, "new")
        state = self._states.follow(before, shape, announced, logged)
        left = before.relation_id if before.relation_id != shape.relation_id else None
        steps = plan_log(logged, columns_of(shape), left=left, now=shape.relation_id)
        properties = {
            **self._shapes.properties(shape, revision),
            **state.to_properties(),
            **_rewritten(shape, revision, announced),
            # This is the relation that was awaited, or one after it.
            **({} if left is None else {AWAITED_PROPERTY: "0"}),
        }
        self._tables.evolve(log, steps, ("new", "old"), properties)
        self._states.remember(self._table, state)

    def _follow_rewrite(self, log: Table, shape: TableShape, revision: int) -> None:
        """Act on a `rewritten` whose shape the log learned from a snapshot before the stream."""
        announced = self._shapes.announced_at(self._table, revision)
        if not shape.rewritten or announced is None:
            return
        acted = int(self._tables.properties(log).get(REWRITTEN_PROPERTY, "0"))
        if revision > acted:
            state = self._states.follow(shape, shape, announced)
            self._states.set(self._table, state, _rewritten(shape, revision, announced))

    def newest(self) -> tuple[int, TableShape]:
        """The newest revision the log has followed, and its shape."""
        revision, shape = self._followed(self._find_log())
        if shape is None:
            raise ShapeUnknown(f"the change log of {self._table} does not say its shape")
        return revision, shape

    def rebuild_mirror(self, shape: TableShape, revision: int) -> Table:
        """Open the mirror in this shape, whatever it was; its rows are about to be replaced."""
        name, columns = mirror_of(self._table), columns_of(shape)
        properties = self._shapes.properties(shape, revision)
        if not self._tables.exists(name):
            return self._tables.create(name, mirror_schema(columns), properties=properties)
        mirror = self._tables.load(name)
        _, before = self._followed(mirror)
        anew = before is not None and before.relation_id != shape.relation_id
        steps = plan_rebuild(self._tables.columns(mirror), columns, anew=anew)
        self._tables.evolve(mirror, steps, (None,), properties)
        return mirror

    def open_mirror(self, shape: TableShape, revision: int) -> Table:
        """Open the mirror, evolved to the newest shape."""
        name = mirror_of(self._table)
        columns, properties = columns_of(shape), self._shapes.properties(shape, revision)
        if not self._tables.exists(name):
            info("new table in the lake", table=self._table, columns=len(columns))
            return self._tables.create(name, mirror_schema(columns), properties=properties)
        mirror = self._tables.load(name)
        held = self._tables.columns(mirror)
        if revision > self._followed(mirror)[0] or not are_named(held, columns):
            steps = plan_mirror(str(self._table), held, columns, defaults_of(shape))
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

    def _followed(self, table: Table | None) -> tuple[int, TableShape | None]:
        """The newest revision a lake table has followed, and its shape."""
        properties = {} if table is None else self._tables.properties(table)
        return held_revision(properties), self._shapes.learn_properties(properties, self._table)

"""The states of all tables, as their change logs keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lake_consumer.columns import Columns
from lake_consumer.iceberg.names import LakeName, log_of, mirror_of, table_of_log
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.logs import error, info, warn
from lake_consumer.tablestates import (
    LIVE,
    FirstSight,
    TableState,
    first_state,
    names_given_up,
    next_state,
)
from schemas.names import TableName
from schemas.shapes import TableShape

FindTexts = Callable[[LakeName], frozenset[str]]
"""Gives the columns of which some row of a mirror holds a text."""

_SAID = {
    "loading": ("the mirror waits for a snapshot", "none: it is asked for and loaded by itself"),
    "parked": ("the mirror is parked", "lake-consumer resync {table}"),
    "gone": ("the table is gone", "none if that was meant; lake-consumer forget {table}"),
}
_LEVELS: Mapping[str, Callable[..., None]] = {"parked": error}


class StateBook:
    """What is known of every table's state; `position` is what the lake has applied so far."""

    def __init__(
        self,
        tables: LakeTables,
        *,
        first_sight: FirstSight = "stream",
        can_load: bool = False,
        find_texts: FindTexts | None = None,
    ) -> None:
        self._tables = tables
        self.first_sight = first_sight
        self._can_load = can_load
        self._find_texts = find_texts
        self._known: dict[TableName, TableState] = {}
        self._told: set[TableName] = set()
        self.position = 0

    def read_all(self) -> list[TableName]:
        """Read every table's state from the lake; gives all tables there are."""
        tables = map(table_of_log, self._tables.names())
        found = [table for table in tables if table is not None]
        for table in found:
            self.get(table)
        return sorted(found)

    def get(self, table: TableName) -> TableState:
        if table not in self._known:
            state = self._read(table)
            if state is None:
                # Not remembered: another table may take the name, with a state of its own.
                return LIVE
            self._known[table] = state
        return self._known[table]

    def _read(self, table: TableName) -> TableState | None:
        name = log_of(table)
        if not self._tables.exists(name):
            return None
        return TableState.from_properties(self._tables.properties(self._tables.load(name)))

    def loading(self) -> dict[TableName, TableState]:
        return {t: state for t, state in sorted(self._known.items()) if state.kind == "loading"}

    def parked(self) -> list[TableName]:
        """Tables that wait for a person."""
        return [table for table, state in sorted(self._known.items()) if state.kind == "parked"]

    def begin(self, shape: TableShape, announced: int | None) -> TableState:
        """Of a table that is seen for the first time."""
        return first_state(shape, self.first_sight, self.position, announced)

    def follow(
        self,
        before: TableShape,
        after: TableShape,
        announced: int | None = None,
        logged: Columns = (),
    ) -> TableState:
        """Of a table that changed its shape; `announced` is where the stream says so.

        `logged` are the columns of its change log until now.
        """
        return next_state(
            self.get(after.name),
            before,
            after,
            since=self.position if announced is None else announced,
            can_load=self._can_load,
            has_defaults=self._tables.has_defaults(mirror_of(after.name)),
            rewritten=after.rewritten and announced is not None,
            misnamed=self._misnamed(after.name, names_given_up(before, after, logged)),
        )

    def _misnamed(self, table: TableName, names: frozenset[str]) -> frozenset[str]:
        """Those names by which rows of the mirror do hold texts; of a mirror in the making, all."""
        mirror = mirror_of(table)
        if not names or self._find_texts is None or not self.get(table).is_live:
            return names
        return names & self._find_texts(mirror) if self._tables.exists(mirror) else frozenset()

    def remember(self, table: TableName, state: TableState) -> None:
        """Note a state that its log has been told already."""
        before = self._known.get(table, LIVE)
        self._known[table] = state
        if state == before:
            return
        if state.is_live:
            self._told.discard(table)
            if before.kind == "loading":
                info("the mirror is live", table=table)
            return
        what, remedy = _SAID[state.kind]
        say = info if state.reason.startswith("first sight") else _LEVELS.get(state.kind, warn)
        say(what, table=table, reason=state.reason, remedy=remedy.format(table=table))

    def set(
        self, table: TableName, state: TableState, properties: Mapping[str, str] | None = None
    ) -> None:
        """Keep a state in the table's log."""
        log = self._tables.load(log_of(table))
        self._tables.set_properties(log, {**state.to_properties(), **(properties or {})})
        self.remember(table, state)

    def rename(self, moves: Mapping[TableName, TableName]) -> None:
        """Follow tables that have other names now, in their logs as here."""
        # What was known of a name that a table now takes is of no table any more.
        stale = set(moves.values()) - set(moves)
        self._known = {moves.get(t, t): state for t, state in self._known.items() if t not in stale}
        self._told = {moves.get(table, table) for table in self._told - stale}

    def forget(self, table: TableName) -> None:
        """Know nothing of a table any more."""
        self._known.pop(table, None)
        self._told.discard(table)

    def untold(self) -> list[TableName]:
        """Tables whose mirror cannot be read, and of which no cut of this process says so yet."""
        return [
            table
            for table, state in sorted(self._known.items())
            if not state.is_live and table not in self._told
        ]

    def told(self, tables: Iterable[TableName]) -> None:
        self._told.update(table for table in tables if not self.get(table).is_live)

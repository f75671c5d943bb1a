"""The states of all tables, over a lake that exists in memory only."""

from __future__ import annotations

from typing import Any

from lake_consumer.iceberg.states import StateBook
from lake_consumer.tablestates import LIVE, loading
from schemas.names import TableName

OLD, NEW, T = (TableName("public", name) for name in ("t_old", "t_new", "t"))
WAITING = loading("first sight of the table", 7)


class NoTables:
    """A lake without any table."""

    def exists(self, _name: Any) -> bool:
        return False


def test_a_name_that_is_taken_over_brings_no_state_along() -> None:
    """Asked of a name that no table has, nothing may be remembered as live: the next one loads."""
    states = StateBook(NoTables())  # type: ignore[arg-type]
    for table in (T, NEW):
        states.remember(table, WAITING)
    states.rename({T: OLD})

    assert states.get(T) == LIVE
    states.rename({NEW: T})

    assert (states.get(OLD), states.get(T)) == (WAITING, WAITING)


def test_a_stale_state_of_a_name_gives_way_to_the_table_that_takes_it() -> None:
    states = StateBook(NoTables())  # type: ignore[arg-type]
    states.remember(NEW, WAITING)
    states.remember(T, LIVE)

    states.rename({NEW: T})

    assert states.get(T) == WAITING

"""Whose changes they are: which database's WAL, read by which slot.

Positions in the stream are compared to decide what is stored already. That is right only among the
changes of one slot: another slot of the same database may be further, another database counts its
LSNs from somewhere else. So every table in a stream belongs to one slot, and this module decides
who may have it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceId:
    """A slot of a database of a cluster, by what never changes about them."""

    system: str
    database: int
    slot: str

    def __str__(self) -> str:
        return f"{self.system}/{self.database}/{self.slot}"

    def same_database(self, other: SourceId) -> bool:
        return (self.system, self.database) == (other.system, other.database)


def parse_source(text: str) -> SourceId | None:
    """Read what `str(SourceId)` wrote; anything else is nobody we know."""
    match text.split("/"):
        case [system, database, slot] if database.isdecimal():
            return SourceId(system, int(database), slot)
    return None


def may_take(owner: str | None, ours: SourceId, live_slots: Collection[str]) -> bool:
    """Decide whether a table is ours: nobody's, ours already, or of a slot that is gone."""
    if owner is None:
        return True
    found = parse_source(owner)
    if found is None or not found.same_database(ours):
        return False
    return found.slot == ours.slot or found.slot not in live_slots

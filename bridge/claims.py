"""What `bridge-ddl` messages in the WAL claim, weighed against the catalog.

Any role can write such a message, true or not, and a million of them in one transaction. All
messages of a transaction are weighed against one reading of the catalog, which was made after it
committed, so the catalog is asked for each relation once. A table is looked at once for each kind
of DDL that is reported of it, and again if the WAL describes it anew in between. Beyond
`MOST_ASKED` relations nothing is asked and nothing confirmed, and beyond as many looks there are no
more; the catalog watch finds what is true of them. Pure; `shapebook` asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from schemas.ddl import CatalogState, DdlEvent, DdlKind, is_confirmed, is_contradicted
from schemas.names import TableName

MOST_ASKED = 10_000


class Claims:
    """The claims of one transaction after the other."""

    def __init__(self) -> None:
        self._xid: int | None = None
        self._states: dict[int, CatalogState | None] = {}
        self._looked: dict[int, set[DdlKind]] = {}
        """After what kinds of DDL each relation was looked at."""

        self._looks = 0

    def to_ask(self, events: Iterable[DdlEvent], xid: int, seen: Collection[int]) -> list[int]:
        """Give the relations that the catalog is to be asked for; of any other nothing is true.

        Only one that joined the publication may be new.
        """
        self._turn_to(xid)
        ids = {e.relation_id for e in events if e.kind == "publish" or e.relation_id in seen}
        return sorted(ids - self._states.keys())[: MOST_ASKED - len(self._states)]

    def may_look(self, relation_id: int, xid: int, kinds: Collection[DdlKind]) -> bool:
        """Whether a look at a table may show something new; it counts as made."""
        self._turn_to(xid)
        looked = self._looked.setdefault(relation_id, set())
        if looked.issuperset(kinds) or self._looks >= MOST_ASKED:
            return False
        looked.update(kinds)
        self._looks += 1
        return True

    def described(self, relation_id: int) -> None:
        """Note that the WAL describes a table: it may be an older shape than the one looked at."""
        self._looked.pop(relation_id, None)

    def learn(self, asked: Iterable[int], states: Mapping[int, CatalogState]) -> None:
        """Take what the catalog said of relations; those that are gone have no state."""
        self._states |= {one: states.get(one) for one in asked}

    def is_true(self, event: DdlEvent, names: Collection[TableName]) -> bool:
        """Whether the catalog confirms an event about a table that consumers know by `names`."""
        relation_id = event.relation_id
        return relation_id in self._states and is_confirmed(event, names, self._states[relation_id])

    def is_false(self, event: DdlEvent, names: Collection[TableName]) -> bool:
        """Whether the catalog contradicts it; most events that are neither are only late."""
        return is_contradicted(event, names, self._states.get(event.relation_id))

    def _turn_to(self, xid: int) -> None:
        if xid != self._xid:
            self._xid = xid
            self._states.clear()
            self._looked.clear()
            self._looks = 0

"""What the bridge knows of published tables, and what consumers have not been told yet.

`assess` takes what the catalog says now and compares it with what it said before. Where values of
existing rows may have changed, consumers are owed a `rewritten` announcement. `dress` gives a shape
as it is to be announced, `tell` notes that it was queued, and only then may the storage it was
based on be remembered: after a crash in between the comparison finds the same difference again.
Pure; `catalogwatch` and `shapebook` bring the facts and carry the announcements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bridge.storage import TableStorage, added_fills, compare, reads_alike
from schemas.names import TableName
from schemas.shapes import NO_FILL, TableShape
from schemas.values import Value

TRUNCATES_KEPT = 100
"""Of how many transactions it is known that they sent a TRUNCATE, by table."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A table under the name that consumers know, and its storage when it was last looked at."""

    name: TableName
    storage: TableStorage


class TableMemory:
    """Follows the tables of one session by their OID."""

    def __init__(self, forgotten: Iterable[TableName] = ()) -> None:
        self.seen: dict[int, Seen] = {}
        self.owed: dict[int, tuple[str, ...]] = {}
        """Why each table is to be announced as rewritten."""

        self.version = 0
        """Rises with every look, so that whoever holds an older one can tell."""

        self._forgotten = set(forgotten)
        self._fills: dict[int, dict[int, tuple[int, Value]]] = {}
        self._due: dict[int, Seen] = {}
        self._truncated: dict[int, deque[int]] = {}

    def truncated(self, relation_id: int, xid: int) -> None:
        """Note that a transaction sent a TRUNCATE of a table."""
        self._truncated.setdefault(relation_id, deque(maxlen=TRUNCATES_KEPT)).append(xid)

    def recall(self, shape: TableShape, storage: TableStorage) -> None:
        """Take up what an earlier session remembered of a table."""
        self.seen[shape.relation_id] = Seen(shape.name, storage)
        self._fills[shape.relation_id] = {
            column.position: (column.type_oid, column.fill)
            for column in shape.columns
            if column.fill is not NO_FILL
        }

    def assess(
        self,
        shape: TableShape,
        storage: TableStorage,
        *,
        is_watched: bool,
        is_rewritten: bool = False,
    ) -> None:
        """Compare what the catalog says of a table, in the shape that it has there, with before.

        `is_rewritten` is a report that ALTER TABLE wrote a new file. It is believed if the file is
        another: SET LOGGED leaves no other trace of the rows that came while it was UNLOGGED.
        """
        self.version += 1
        relation_id = shape.relation_id
        before = self.seen.get(relation_id)
        if before is None:
            self._begin(shape, storage)
            return
        told = self._truncated.get(relation_id, ())
        reasons = compare(before.storage, storage, is_watched=is_watched, truncated_by=told)
        fills = added_fills(shape, before.storage, storage)
        if not reasons and is_rewritten and before.storage.filenode != storage.filenode:
            reasons = ("ALTER TABLE is reported to have rewritten the table",)
        if not reasons and NO_FILL in fills.values():
            reasons = ("the value of an added column has no exact native form",)
        types = {column.position: column.type_oid for column in shape.columns}
        self._fills.setdefault(relation_id, {}).update(
            {at: (types[at], fill) for at, fill in fills.items() if fill is not NO_FILL}
        )
        if reasons:
            self.owe(relation_id, *reasons)
        self._saw(relation_id, Seen(before.name, storage))

    def _begin(self, shape: TableShape, storage: TableStorage) -> None:
        """Meet a table; one whose name was published before has rows that nobody was told of."""
        names = {seen.name for seen in self.seen.values()} | self._forgotten
        if shape.name in names:
            self._forgotten.discard(shape.name)
            self.owe(shape.relation_id, "the name was published before")
        self._saw(shape.relation_id, Seen(shape.name, storage))

    def _saw(self, relation_id: int, seen: Seen) -> None:
        if relation_id not in self.owed and self.seen.get(relation_id) != seen:
            self._due[relation_id] = seen
        self.seen[relation_id] = seen

    def owe(self, relation_id: int, *reasons: str) -> None:
        """Note why consumers need a new snapshot of a table."""
        self.owed[relation_id] = (*self.owed.get(relation_id, ()), *reasons)
        self._due.pop(relation_id, None)

    def rename(self, relation_id: int, name: TableName) -> None:
        """Note under what name consumers know a table from now on."""
        self._saw(relation_id, replace(self.seen[relation_id], name=name))

    def forget(self, relation_id: int, *, is_name_free: bool) -> None:
        """Note that consumers know that a table is gone, or is published no more."""
        gone = self.seen.pop(relation_id)
        for known in (self.owed, self._fills, self._due):
            known.pop(relation_id, None)
        if is_name_free:
            self._forgotten.add(gone.name)

    def filled(self, shape: TableShape) -> TableShape:
        """Give a shape with what rows hold that are older than its columns."""
        fills = self._fills.get(shape.relation_id)
        if not fills:
            return shape
        return replace(
            shape,
            columns=tuple(
                replace(column, fill=fills[column.position][1])
                if reads_alike(fills.get(column.position, (0,))[0], column.type_oid)
                else column
                for column in shape.columns
            ),
        )

    def dress(self, shape: TableShape) -> TableShape:
        """Give a shape as it is to be announced."""
        return replace(self.filled(shape), rewritten=shape.relation_id in self.owed)

    def dress_older(self, shape: TableShape, now: TableStorage | None) -> TableShape:
        """Give a shape that the catalog has left behind, as it is to be announced.

        It may have columns that were added since the last look and altered again since.
        """
        seen, shape = self.seen.get(shape.relation_id), self.filled(shape)
        if seen is None or now is None:
            return shape
        fills = added_fills(shape, seen.storage, now)
        lives = {at for at, column in now.columns.items() if not column.is_dropped}
        is_unknown = any(fill is NO_FILL and at in lives for at, fill in fills.items())
        columns = (replace(c, fill=fills.get(c.position, c.fill)) for c in shape.columns)
        return replace(shape, columns=tuple(columns), rewritten=is_unknown)

    def tell(self, relation_id: int) -> None:
        """Note that a table's announcement is queued, as `dress` gave it."""
        if self.owed.pop(relation_id, None):
            self._due[relation_id] = self.seen[relation_id]

    def take_due(self) -> dict[int, Seen]:
        """Give what may be remembered once everything that is queued by now is stored."""
        due, self._due = self._due, {}
        return due

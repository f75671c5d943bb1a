"""What the bridge knows of published tables, and what consumers have not been told yet.

`assess` takes what the catalog says now and compares it with what it said before. If values of
existing rows may have changed, consumers are owed a `rewritten` announcement; of a column that was
added they are owed one with its `fill`. `dress` gives a shape as it is to be announced, `tell`
notes that it was queued, and only then may the storage it was based on be remembered: after a crash
in between the comparison finds the same difference again.
Pure; `catalogwatch` and `shapebook` bring the facts and carry the announcements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bridge.storage import NOTHING_KNOWN, TableStorage, added_fills, compare, reads_alike
from schemas.names import TableName
from schemas.shapes import NO_FILL, TableShape, Unfilled
from schemas.values import Value

TRUNCATES_KEPT = 100
"""Of how many transactions it is known that they sent a TRUNCATE, by table."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A table under the name that consumers know, and its storage when it was last looked at."""

    name: TableName
    storage: TableStorage


@dataclass(frozen=True, slots=True)
class Owed:
    """An announcement that consumers wait for, unknowingly."""

    reasons: tuple[str, ...] = ()
    """Why values of existing rows may have changed; without any it does not say `rewritten`."""

    columns: frozenset[int] = frozenset()
    """Columns that were added, by attnum: a shape that lacks one does not tell of it."""


class TableMemory:
    """Follows the tables of one session by their OID."""

    def __init__(self, forgotten: Iterable[TableName] = ()) -> None:
        self.seen: dict[int, Seen] = {}
        self.owed: dict[int, Owed] = {}
        """What is to be announced of each table."""

        self.version = 0
        """Rises with every look, so that whoever holds an older one can tell."""

        self._forgotten = set(forgotten)
        self._announced: dict[int, list[TableName]] = {}
        self._fills: dict[int, dict[int, tuple[int, Value]]] = {}
        self._due: dict[int, Seen] = {}
        self._blind: dict[int, set[int]] = {}
        self._truncated: dict[int, deque[int]] = {}
        self._moved: set[int] = set()
        """Tables that had another file at the session's start; the WAL may still tell why."""

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
        self._note_blind(shape)

    def assess(
        self,
        shape: TableShape,
        storage: TableStorage,
        *,
        is_watched: bool,
        is_rewritten: bool = False,
    ) -> bool:
        """Compare what the catalog says of a table, in the shape that it has there, with before.

        Says whether the table is new and nothing is owed: then its first entry can remember this.

        `is_rewritten` is a report that ALTER TABLE wrote a new file. It is believed if the file is
        another: SET LOGGED leaves no other trace of the rows that came while it was UNLOGGED.
        """
        self.version += 1
        relation_id = shape.relation_id
        before = self.seen.get(relation_id)
        if before is None:
            self._begin(shape, storage)
            return relation_id not in self.owed
        told = self._truncated.get(relation_id, ())
        reasons = compare(before.storage, storage, is_watched=is_watched, truncated_by=told)
        fills = added_fills(shape, before.storage, storage)
        if not reasons and is_rewritten and self._has_moved(relation_id, storage):
            reasons = ("ALTER TABLE is reported to have rewritten the table",)
        if not is_watched and before.storage.file.node != storage.file.node:
            self._moved.add(relation_id)
        if reasons:
            self._moved.discard(relation_id)
        if not reasons and NO_FILL in fills.values():
            reasons = ("the value of an added column has no exact native form",)
        if not reasons and self._is_late(relation_id, fills, storage):
            reasons = ("a column was announced before it was known what existing rows hold",)
        self._blind.pop(relation_id, None)
        types = {column.position: column.type_oid for column in shape.columns}
        self._fills.setdefault(relation_id, {}).update(
            {at: (types[at], fill) for at, fill in fills.items() if fill is not NO_FILL}
        )
        if reasons or fills:
            self.owe(relation_id, *reasons, columns=fills)
        self._saw(relation_id, Seen(before.name, storage))
        return False

    def _is_late(
        self, relation_id: int, fills: Mapping[int, Value | Unfilled], storage: TableStorage
    ) -> bool:
        """Whether a fill is found behind changes of its column, so that no fill tells which rows.

        A column at an attnum that no column ever had was announced at a wrong one.
        """
        blind = self._blind.get(relation_id, ())
        return any(fills.get(at) is not None or at not in storage.columns for at in blind)

    def _has_moved(self, relation_id: int, now: TableStorage) -> bool:
        """Whether the table's file is another than the one that consumers' values are from."""
        before = self.seen[relation_id].storage
        return before.file.node != now.file.node or relation_id in self._moved

    def may_differ(self, relation_id: int, now: TableStorage | None, *, is_rewritten: bool) -> bool:
        """Whether rows may read otherwise than consumers know; changes nothing.

        Of a table that is gone by now, `None`, nothing is known.
        """
        if now is None or relation_id in self.owed:
            return True
        before, told = self.seen[relation_id].storage, self._truncated.get(relation_id, ())
        if is_rewritten and self._has_moved(relation_id, now):
            return True
        is_wider = not now.columns.keys() <= before.columns.keys()
        return is_wider or bool(compare(before, now, is_watched=True, truncated_by=told))

    def glimpse(self, relation_id: int, name: TableName) -> None:
        """Meet a table of which only changes are left: consumers will know it, and it must end."""
        if relation_id not in self.seen:
            self.version += 1
            self.seen[relation_id] = Seen(name, NOTHING_KNOWN)

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

    def owe(self, relation_id: int, *reasons: str, columns: Iterable[int] = ()) -> None:
        """Note why consumers need a new snapshot of a table, and the fill of which columns."""
        owed = self.owed.get(relation_id, Owed())
        self.owed[relation_id] = Owed((*owed.reasons, *reasons), owed.columns | {*columns})
        self._due.pop(relation_id, None)

    def rename(self, relation_id: int, name: TableName) -> None:
        """Note under what name consumers know a table from now on."""
        self._saw(relation_id, replace(self.seen[relation_id], name=name))
        self._announced.pop(relation_id, None)

    def announce(self, relation_id: int, name: TableName) -> None:
        """Note that changes announce a table by a name, maybe before its rename is reported."""
        if relation_id in self.seen and self.last_name(relation_id) != name:
            self.version += 1  # A look that began before may show an older name.
        names = self._announced.setdefault(relation_id, [])
        names[:] = [*(one for one in names if one != name), name]

    def names(self, relation_id: int) -> set[TableName]:
        """Give the names by which consumers know a table: none, one, or more during a rename."""
        if relation_id not in self.seen:
            return set()
        return {self.seen[relation_id].name, *self._announced.get(relation_id, ())}

    def other_name(self, relation_id: int, name: TableName) -> TableName | None:
        """Give another name than this by which consumers may know a table; the oldest counts.

        One that has its name back was known by another to those who read its changes meanwhile.
        """
        if relation_id not in self.seen:
            return None
        known = (self.seen[relation_id].name, *self._announced.get(relation_id, ()))
        return next((one for one in known if one != name), None)

    def last_name(self, relation_id: int) -> TableName:
        """Give the name under which a table was last announced."""
        return (self._announced.get(relation_id) or [self.seen[relation_id].name])[-1]

    def forget(self, relation_id: int, *, is_name_free: bool) -> None:
        """Note that consumers know that a table is gone, or is published no more."""
        names = self.names(relation_id)
        del self.seen[relation_id]
        for known in (self.owed, self._fills, self._due, self._blind, self._announced):
            known.pop(relation_id, None)
        self._moved.discard(relation_id)
        if is_name_free:
            self._forgotten |= names

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
        owed = self.owed.get(shape.relation_id, Owed())
        return replace(self.filled(shape), rewritten=bool(owed.reasons))

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

    def tell(self, shape: TableShape) -> tuple[str, ...]:
        """Note that an announcement is queued, and give the reasons that were owed with it."""
        relation_id = shape.relation_id
        self._note_blind(shape)
        owed = self.owed.get(relation_id)
        if owed is None or (owed.reasons and not shape.rewritten):
            return ()
        left = owed.columns - {column.position for column in shape.columns}
        if left:
            self.owed[relation_id] = Owed(columns=left)
        else:
            del self.owed[relation_id]
            self._due[relation_id] = self.seen[relation_id]
        return owed.reasons

    def _note_blind(self, shape: TableShape) -> None:
        """Remember columns that are announced without a word of what existing rows hold."""
        seen = self.seen.get(shape.relation_id)
        if seen is None or shape.rewritten:
            return
        unknown = {
            column.position
            for column in shape.columns
            if column.fill is NO_FILL and column.position not in seen.storage.columns
        }
        if unknown:
            self.version += 1  # A look that began before has no word of these columns.
            self._blind.setdefault(shape.relation_id, set()).update(unknown)

    def take_due(self) -> dict[int, Seen]:
        """Give what may be remembered once everything that is queued by now is stored."""
        due, self._due = self._due, {}
        return due

"""What DDL messages and schema announcements of a batch mean for the lake's tables. Pure decisions.

A PostgreSQL table is its relation OID, not its name. The messages of a batch are read in stream
order over what the lake holds, and the plan says three things:

- `moves`: lake tables that get another name, because the same relation has one;
- `routes`: changes that carry an old name and belong to the table under its new one, by token and
  relation: a batch may hold changes from before and after a rename, or of two tables that swapped;
- `ends`: tables that are gone, and tables that came back and need a snapshot.

A rename is followed as a rename only if the new name is free in the lake. If the lake keeps another
table's history under that name, the old name is gone and the new one is reloaded.
Every message may come twice, and a batch may be planned again after a crash: a rename up to
`renamed_upto` was carried out already and is only routed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.ddl import DdlEvent
from schemas.names import TableName

FORMER_PROPERTY = "bridge.former-names"
AWAITED_PROPERTY = "bridge.awaited-relation"
"""On a change log: the relation that the table has next, once a schema message says so."""
SEEN_PROPERTY = "bridge.seen-upto"
"""On a change log: where the stream ended when KV `schemas` named the table."""

DROPPED = "the table was dropped"
UNPUBLISHED = "the table was removed from the publication"
NOT_PUBLISHED = "the bridge does not publish the table any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A table that the lake holds."""

    name: TableName
    relation: int
    source: str = ""
    revision: int = 0
    gone: str = ""
    """Why it is gone; empty if it is not."""
    former_relations: frozenset[int] = frozenset()
    awaited: int = 0
    """The relation it is going to have, if a rename said so and no schema message did yet."""
    seen: int = 0
    """The end of the stream when KV `schemas` named it: notices up to there are older than it."""

    @property
    def present_relation(self) -> int:
        """The relation that it is, also if its shape is not known yet."""
        return self.awaited or self.relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A name that a lake table had up to a stream sequence; `table` is its name now."""

    table: TableName
    name: TableName
    relation: int
    until: int

    def to_json(self) -> dict[str, Any]:
        return {
            "table": [self.table.schema, self.table.table],
            "name": [self.name.schema, self.name.table],
            "relation": self.relation,
            "until": self.until,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Former:
        return cls(
            table=TableName(*fields["table"]),
            name=TableName(*fields["name"]),
            relation=fields["relation"],
            until=fields["until"],
        )


def read_former(properties: Mapping[str, str]) -> list[Former]:
    """Read the former names of all tables from the properties of the table of cuts."""
    return [Former.from_json(one) for one in json.loads(properties.get(FORMER_PROPERTY, "[]"))]


def former_property(former: Iterable[Former]) -> dict[str, str]:
    return {FORMER_PROPERTY: json.dumps([one.to_json() for one in former])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A schema message."""

    sequence: int
    lsn: int
    name: TableName
    relation: int
    source: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """One event of a `bridge-ddl` message."""

    sequence: int
    lsn: int
    source: str
    event: DdlEvent


Notice = Announced | Ddl


@dataclass(frozen=True, slots=True)
class Move:
    """A lake table that gets another name."""

    before: TableName
    after: TableName
    relation: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The table is gone since a WAL position."""

    lsn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """The table came back at a stream sequence: only a snapshot taken after it counts."""

    sequence: int
    reason: str
    relation: int


Routes = Mapping[tuple[str, int], str]
"""From token and relation of a change to the token of the lake table it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlPlan:
    """What to do before a batch is decoded; names in `ends` are those after all moves."""

    moves: tuple[Move, ...] = ()
    ends: Mapping[TableName, Gone | Back] = field(default_factory=dict)
    routes: Routes = field(default_factory=dict)
    aliases: tuple[Former, ...] = ()
    """Names under which the stream still carries changes from before the lake saw the table."""
    upto: int = 0
    """The newest notice that was considered."""

    def name_of(self, name: TableName, relation: int) -> TableName:
        """The lake table that a message of this name and relation belongs to."""
        token = self.routes.get((name.token, relation))
        return name if token is None else TableName.from_token(token)


def plan_ddl(
    notices: Sequence[Notice],
    held: Iterable[Held],
    former: Iterable[Former] = (),
    *,
    renamed_upto: int = 0,
    taken: frozenset[TableName] = frozenset(),
    can_rename: bool = True,
) -> DdlPlan:
    """Read the notices of a batch in order; `taken` are names in the catalog that are not ours."""
    book = _Book(held, tuple(former), renamed_upto, taken, can_rename=can_rename)
    for notice in notices:
        match notice:
            case Announced():
                book.announced(notice)
            case Ddl():
                book.happened(notice)
    return book.plan(max((notice.sequence for notice in notices), default=0))


def routes_of(former: Iterable[Former]) -> Routes:
    """Where changes go that carry a former name; the last word counts, also that they stay."""
    routes = {(one.name.token, one.relation): one.table.token for one in former}
    return {key: token for key, token in routes.items() if key[0] != token}


@dataclass(slots=True)
class _Entry:
    """One table while the notices are read."""

    name: TableName
    relation: int
    source: str
    revision: int
    gone: str
    former_relations: set[int]
    origin: TableName | None
    seen: int = 0
    end: Gone | Back | None = None
    names: list[tuple[TableName, int]] = field(default_factory=list)
    aliases: list[TableName] = field(default_factory=list)

    def old_names(self) -> list[TableName]:
        """Names that changes may carry, and that no cut of the lake knows the table by."""
        return [*self.aliases, *(name for name, _ in self.names if self.origin is None)]

    def known_by(self, name: TableName) -> Former:
        return Former(table=self.origin or self.name, name=name, relation=self.relation, until=0)

    def told_end(self) -> Gone | Back | None:
        """What became of it; what it awaits is the relation that it was told of last."""
        end = self.end
        return replace(end, relation=self.relation) if isinstance(end, Back) else end

    def become(self, relation: int) -> None:
        """Be another relation; what is told of those before comes too late."""
        self.former_relations.add(self.relation)
        self.relation = relation

    def leave(self, lsn: int, reason: str) -> None:
        if not self.gone:
            self.gone, self.end = reason, Gone(lsn, reason)

    def come_back(self, sequence: int, reason: str) -> None:
        self.gone, self.end = "", Back(sequence, reason, self.relation)


class _Book:
    """The lake's tables as the notices change them."""

    def __init__(
        self,
        held: Iterable[Held],
        former: tuple[Former, ...],
        renamed_upto: int,
        taken: frozenset[TableName],
        *,
        can_rename: bool,
    ) -> None:
        self._entries = [
            _Entry(
                h.name,
                h.present_relation,
                h.source,
                h.revision,
                h.gone,
                set(h.former_relations),
                h.name,
                h.seen,
            )
            for h in held
        ]
        self._former = former
        self._renamed_upto = renamed_upto
        self._taken = taken
        self._can_rename = can_rename

    def announced(self, notice: Announced) -> None:
        if self._was_renamed(notice, notice.name, notice.relation):
            return
        at = self._named(notice.name)
        same = self._relation(notice.source, notice.relation)
        if at is not None and at.relation == notice.relation:
            self._announced_again(at, notice)
        elif at is not None:
            self._created_anew(at, same, notice)
        elif same is None:
            self._add(notice)
        elif notice.revision <= same.revision or notice.sequence <= self._renamed_upto:
            # The lake has the table under its present name already, from reading further before
            # or from a batch that is taken again; changes under this name are still its own.
            same.aliases.append(notice.name)
        else:
            self._rename(same, notice.name, notice)

    def _announced_again(self, at: _Entry, notice: Announced) -> None:
        if at.gone and notice.revision > at.revision:
            at.come_back(notice.sequence, "the table is published again")
        self._learn(at, notice)

    def _created_anew(self, at: _Entry, same: _Entry | None, notice: Announced) -> None:
        if notice.revision <= at.revision:
            if same is not None:
                # Another table has the name by now; changes under it are still this one's.
                same.aliases.append(notice.name)
            return
        if same is not None and notice.revision <= same.revision:
            # The lake has the relation by a later name already, and the name's next table follows.
            same.aliases.append(notice.name)
            return
        if same is not None and not same.gone:
            same.leave(notice.lsn, f"the table was renamed to {notice.name}")
        at.become(notice.relation)
        if at.gone:
            at.come_back(notice.sequence, "the table was created anew")
        self._learn(at, notice)

    def _add(self, notice: Announced) -> None:
        made = _Entry(notice.name, notice.relation, notice.source, 0, "", set(), None)
        self._learn(made, notice)
        self._entries.append(made)

    def _learn(self, entry: _Entry, notice: Announced) -> None:
        entry.revision = max(entry.revision, notice.revision)
        entry.source = notice.source or entry.source

    def happened(self, notice: Ddl) -> None:
        match notice.event.kind:
            case "drop":
                self._left(notice, DROPPED)
            case "unpublish":
                self._left(notice, UNPUBLISHED)
            case "rename":
                self._renamed(notice)
            case "publish":
                self._published(notice)
            case _:
                pass

    def _left(self, notice: Ddl, reason: str) -> None:
        if (at := self._meant(notice)) is not None:
            at.leave(notice.lsn, reason)
        same = self._relation(notice.source, notice.event.relation_id)
        if same is not None:
            same.leave(notice.lsn, reason)

    def _meant(self, notice: Ddl) -> _Entry | None:
        """The table that an event names; one about an earlier table of the name may come late."""
        at = self._named(notice.event.name)
        if at is None or notice.event.relation_id != at.relation:
            return None
        return at if may_be_same_database(at.source, notice.source) else None

    def _renamed(self, notice: Ddl) -> None:
        event = notice.event
        if event.new_name is None or event.new_name == event.name:
            return
        if self._was_renamed(notice, event.name, event.relation_id):
            return
        if (at := self._meant(notice) or self._known_otherwise(notice)) is not None:
            self._rename(at, event.new_name, notice)
        else:
            self._arrived(event.new_name, notice)

    def _known_otherwise(self, notice: Ddl) -> _Entry | None:
        """The relation of a rename, if changes showed it by a name between the two it speaks of."""
        same = self._relation(notice.source, notice.event.relation_id)
        if same is None or same.gone or same.name == notice.event.new_name:
            return None
        return same if notice.sequence > max(same.seen, self._renamed_upto) else None

    def _arrived(self, name: TableName, notice: Ddl) -> None:
        """A relation has a name, and the lake does not have it by the name that it had.

        Of tables that swap names, the one whose name is taken first is lost sight of.
        """
        at, relation = self._named(name), notice.event.relation_id
        if at is None or not at.gone or at.relation == relation or notice.sequence <= at.seen:
            return
        same = self._relation(notice.source, relation)
        if may_be_same_database(at.source, notice.source) and (same is None or same.gone):
            at.become(relation)
            at.come_back(notice.sequence, f"{notice.event.name} was renamed to {name}")

    def _was_renamed(self, notice: Notice, name: TableName, relation: int) -> bool:
        """Whether a batch that is taken again names a table that it has renamed already."""
        return notice.sequence <= self._renamed_upto and any(
            (one.name, one.relation) == (name, relation) for one in self._former
        )

    def _published(self, notice: Ddl) -> None:
        event = notice.event
        at = self._named(event.name)
        if at is None:
            at = self._relation(notice.source, event.relation_id)
            if at is not None and notice.sequence > self._renamed_upto:
                self._rename(at, event.name, notice)
        if at is not None and at.gone and at.name == event.name:
            at.come_back(notice.sequence, "the table is published again")

    def _rename(self, entry: _Entry, name: TableName, notice: Notice) -> None:
        other = self._named(name)
        is_free = other is None and name not in self._taken
        if is_free and (self._can_rename or entry.origin is None):
            entry.names.append((entry.name, entry.relation))
            entry.name = name
            if entry.gone == NOT_PUBLISHED or (entry.gone and isinstance(notice, Announced)):
                entry.come_back(notice.sequence, "the table is published again")
            if isinstance(notice, Announced):
                self._learn(entry, notice)
            return
        entry.leave(notice.lsn, f"the table was renamed to {name}")
        if other is not None and notice.sequence <= other.seen:
            # The lake knows the name's next table already, which came after this one had left it.
            entry.aliases.append(name)
        elif other is not None and (other.gone or other.relation != entry.relation):
            other.become(entry.relation)
            other.come_back(notice.sequence, f"{entry.name} was renamed to {name}")
        elif other is None and isinstance(notice, Announced):
            self._add(notice)

    def _named(self, name: TableName) -> _Entry | None:
        return next((entry for entry in self._entries if entry.name == name), None)

    def _relation(self, source: str, relation: int) -> _Entry | None:
        """The table that is this relation of the same database; one that was dropped is none."""
        found = [
            entry
            for entry in self._entries
            if entry.relation == relation
            and entry.gone != DROPPED
            and is_same_database(entry.source, source)
        ]
        return min(found, key=lambda entry: bool(entry.gone), default=None)

    def plan(self, upto: int) -> DdlPlan:
        moved = {e.origin: e.name for e in self._entries if e.origin and e.origin != e.name}
        tokens = {before.token: after.token for before, after in moved.items()}
        routes = {key: tokens.get(token, token) for key, token in routes_of(self._former).items()}
        for entry in self._entries:
            for name, relation in entry.names:
                routes[name.token, relation] = entry.name.token
            for name in entry.aliases:
                routes[name.token, entry.relation] = entry.name.token
        own = [
            entry
            for entry in self._entries
            if not entry.gone
            and routes.get((entry.name.token, entry.relation), entry.name.token) != entry.name.token
        ]
        for entry in own:
            # It has a name back that another lake table was known by when that was the relation.
            routes[entry.name.token, entry.relation] = entry.name.token
        return DdlPlan(
            moves=tuple(
                Move(entry.origin, entry.name, entry.relation)
                for entry in self._entries
                if entry.origin in moved
            ),
            ends={entry.name: end for entry in self._entries if (end := entry.told_end())},
            routes={key: token for key, token in routes.items() if key[0] != token},
            aliases=(
                *(
                    entry.known_by(name)
                    for entry in self._entries
                    for name in entry.old_names()
                    if name != entry.name
                ),
                *(entry.known_by(entry.name) for entry in own),
            ),
            upto=upto,
        )


def is_same_database(one: str, other: str) -> bool:
    """Whether two sources are known to be one database; its slot may be another."""
    return bool(one and other) and one.rpartition("/")[0] == other.rpartition("/")[0]


def may_be_same_database(one: str, other: str) -> bool:
    """The same for a lake that does not know yet where its table comes from."""
    return not (one and other) or is_same_database(one, other)


def record_moves(former: Iterable[Former], moves: Sequence[Move], until: int) -> list[Former]:
    """The former names of all tables when these moves are done; `until` is the last old cut."""
    after = {move.before: move.after for move in moves}
    kept = [
        Former(
            table=after.get(one.table, one.table),
            name=one.name,
            relation=one.relation,
            until=one.until,
        )
        for one in former
    ]
    made = [
        Former(table=move.after, name=move.before, relation=move.relation, until=until)
        for move in moves
    ]
    # Of what is said twice, the last place counts: something else may have been said between.
    return list(dict.fromkeys(reversed([*kept, *made])))[::-1]

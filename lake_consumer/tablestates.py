"""Whether a table's mirror can follow: live, loading, parked or gone. Pure decisions.

The state stands in the properties of the table's change log, which every table has that was ever
seen, so that whoever starts next goes on where the last one was. The log itself always follows.

| State   | The mirror | Ends |
|---|---|---|
| live    | follows every batch; a table without a key has none | |
| loading | waits for a snapshot, cannot be read | when the snapshot and what followed it are in |
| parked  | waits for a person, cannot be read   | by `resync`, or when the table is created or \
rewritten again |
| gone    | is not part of the database any more; older cuts show it | when it is published again |

A schema message with `rewritten` says that existing rows changed without change messages: from its
place on, only a snapshot whose `cdc_sequence` is at or after it counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from lake_consumer.batches import describe_gaps
from lake_consumer.columns import Columns, columns_of
from lake_consumer.evolution import can_hold
from lake_consumer.fills import default_of, has_fill
from lake_consumer.values import may_be_text
from schemas.positions import Lsn
from schemas.shapes import NO_FILL, Column, TableShape

STATE_PROPERTY = "bridge.state"
REASON_PROPERTY = "bridge.state-reason"
SINCE_PROPERTY = "bridge.load-since"
AFTER_PROPERTY = "bridge.load-after"
REWRITTEN_PROPERTY = "bridge.rewritten-revision"
"""The newest revision with `rewritten` that the table's state has taken into account."""
GONE_PROPERTY = "bridge.gone-since"
FORGOTTEN_PROPERTY = "bridge.forgotten"
GAPS_PROPERTY = "bridge.gaps"

GAPS_AT_MOST = 50

StateKind = Literal["live", "loading", "parked", "gone"]
STATE_KINDS: tuple[StateKind, ...] = get_args(StateKind)
FirstSight = Literal["snapshot", "stream"]


@dataclass(frozen=True, slots=True)
class TableState:
    """What becomes of a table's mirror, and why.

    While loading, the change log has everything behind the stream sequence `since`: a snapshot will
    do if all that it lacks is behind there, and its meta is behind sequence `after` of INIT.
    A table is gone since the WAL position `lsn`; a forgotten one is not listed any more.
    """

    kind: StateKind
    reason: str = ""
    since: int = 0
    after: int = 0
    lsn: int = 0
    is_forgotten: bool = False

    @property
    def is_live(self) -> bool:
        return self.kind == "live"

    @property
    def is_gone(self) -> bool:
        return self.kind == "gone"

    def to_properties(self) -> dict[str, str]:
        return {
            STATE_PROPERTY: self.kind,
            REASON_PROPERTY: self.reason,
            SINCE_PROPERTY: str(self.since),
            AFTER_PROPERTY: str(self.after),
            GONE_PROPERTY: str(self.lsn),
            FORGOTTEN_PROPERTY: str(self.is_forgotten).lower(),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TableState:
        """Read a change log's properties; one that says nothing is of a live table."""
        held = properties.get(STATE_PROPERTY, "")
        kind: StateKind = next((kind for kind in STATE_KINDS if kind == held), "live")
        return cls(
            kind,
            properties.get(REASON_PROPERTY, ""),
            int(properties.get(SINCE_PROPERTY, "0")),
            int(properties.get(AFTER_PROPERTY, "0")),
            int(properties.get(GONE_PROPERTY, "0")),
            properties.get(FORGOTTEN_PROPERTY) == "true",
        )


LIVE = TableState("live")

KEY_LOST = "the table has no key any more, so its rows cannot be told apart"
"""A mirror that nothing can follow must not be read as if it did."""


def loading(reason: str, since: int) -> TableState:
    return TableState("loading", reason, since)


def parked(reason: str) -> TableState:
    return TableState("parked", reason)


GONE = "gone since"
"""How a note begins that says that PostgreSQL does not publish the table any more."""


def gone(reason: str, lsn: int) -> TableState:
    return TableState("gone", reason, lsn=lsn)


def describe_gone(state: TableState) -> str:
    """Say since when a table is gone, and why."""
    return f"{GONE} {Lsn(state.lsn)}: {state.reason}"


def first_state(
    shape: TableShape, first_sight: FirstSight, since: int, announced: int | None = None
) -> TableState:
    """Of a table that the lake has not seen before.

    `announced` is the stream sequence of the message that announces the shape, if it is known.
    """
    if first_sight == "stream" or not shape.key:
        return LIVE
    if shape.rewritten and announced is not None:
        since = max(since, announced)
    return loading("first sight of the table", since)


def next_state(
    state: TableState,
    before: TableShape,
    after: TableShape,
    *,
    since: int,
    can_load: bool,
    has_defaults: bool = False,
    rewritten: bool = False,
    misnamed: Collection[str] = (),
) -> TableState:
    """Of a table whose schema changed, or whose rows were `rewritten`, at stream sequence `since`.

    `has_defaults` tells whether the mirror's format knows the default of an added column, and
    `misnamed` which of its rows' texts stand under a wrong name now.
    """
    if not after.key:
        return parked(KEY_LOST) if before.key or state.reason == KEY_LOST else LIVE
    if before.relation_id != after.relation_id:
        why = (
            f"the table was dropped and created anew (relation {before.relation_id}"
            f" became {after.relation_id})"
        )
        return loading(why, since) if can_load else parked(why)
    if state.kind == "parked" and not (can_load and (rewritten or not before.key)):
        return state
    why = "values of existing rows changed without change messages" if rewritten else ""
    why = (
        why_incompatible(before, after)
        or why_rebuild(before, after, has_defaults)
        or why_misnamed(misnamed)
        or why
    )
    if not why:
        return state
    if state.kind == "loading":
        # A snapshot from before this place shows the rows as they were.
        return replace(state, reason=why, since=max(state.since, since))
    return loading(why, since) if can_load else parked(why)


REPLACED = "it was replaced or removed since"
"""Of a table that is not the one any more which a request meant."""


def why_no_resync(state: TableState, *, has_key: bool) -> str:
    """Say why no snapshot can rebuild a table's mirror; empty where one can."""
    if state.is_gone:
        return f"it is {describe_gone(state)}"
    return "" if has_key else "it has no key, so it has no mirror"


def why_incompatible(before: TableShape, after: TableShape) -> str:
    """Say which columns cannot become what they are now in place; empty where all can."""
    types = {column.position: column.type for column in before.columns}
    changed = [
        f"column {column.name} changed from {types[column.position]} to {column.type}"
        for column in after.columns
        if column.position in types and not can_hold(types[column.position], column.type)
    ]
    return ", ".join(changed) + ", which Iceberg cannot do in place" if changed else ""


def why_rebuild(before: TableShape, after: TableShape, has_defaults: bool = False) -> str:
    """Say why the rows there are would no longer be PostgreSQL's; empty where they are."""
    if [column.position for column in before.key] != [column.position for column in after.key]:
        return "the table's key changed"
    known = {column.position for column in before.columns}
    filled = [
        column.name
        for column in after.columns
        if column.position not in known and not _is_followed(column, has_defaults)
    ]
    return f"column {', '.join(filled)} was added with a value for every row" if filled else ""


def names_given_up(before: TableShape, after: TableShape, logged: Columns = ()) -> frozenset[str]:
    """Names under which rows may hold texts that are not of the column which has the name now.

    A row's text map knows columns by their names, which a change of schema does not touch: of a
    column that was renamed, or whose name another one takes, also long after it was dropped. The
    columns that the table had are in its change log, which is `logged`.
    """
    now = {column.name: column.position for column in columns_of(after)}
    had = columns_of(before)
    held = {column.name: column.position for column in had}
    dropped = {
        column.name: column.position
        for column in logged
        if column.is_current and column.name not in held and may_be_text(column.type)
    }
    noted = {column.name: column.position for column in had if may_be_text(column.type)}
    places = set(now.values())
    return frozenset(
        name
        for name, position in {**dropped, **noted}.items()
        if now.get(name, position) != position or (position in places and name not in now)
    )


def why_misnamed(names: Collection[str]) -> str:
    """Say which values that only their text states stand under a wrong name; empty if none do."""
    if not names:
        return ""
    listed = ", ".join(sorted(names))
    return f"column {listed} gave up its name, by which values without a type are kept"


def _is_followed(added: Column, has_defaults: bool) -> bool:
    """Whether a mirror can add a column and give existing rows what PostgreSQL gave them."""
    if added.fill is NO_FILL:
        # A bridge that does not say: rows that existed have the default of that time, if any.
        return added.column_default is None and added.is_nullable
    return not has_fill(added) or (has_defaults and default_of(added) is not None)


def why_unusable(taken: TableShape, newest: TableShape) -> str:
    """Say why a snapshot in one shape cannot make a mirror in another; empty where it can."""
    if taken.relation_id != newest.relation_id:
        return "the table was created anew since"
    return why_incompatible(taken, newest) or why_rebuild(taken, newest)


def note_gap(properties: Mapping[str, str], first: int, last: int) -> dict[str, str]:
    """Add missing stream sequences to those that a change log already tells of."""
    gaps = read_gaps(properties)
    if (first, last) not in gaps:
        gaps.append((first, last))
    return {GAPS_PROPERTY: json.dumps(gaps[-GAPS_AT_MOST:])}


def read_gaps(properties: Mapping[str, str]) -> list[tuple[int, int]]:
    return [(first, last) for first, last in json.loads(properties.get(GAPS_PROPERTY, "[]"))]


NO_SNAPSHOT = "the bridge takes no snapshot"
"""How the reason begins of a table that is parked because every request was refused."""

WAITING = "the mirror is"
"""How a note begins that says why a mirror cannot be read."""


def describe_state(properties: Mapping[str, str]) -> str:
    """Say what a change log's properties tell a person; empty where all is well."""
    state, gaps = TableState.from_properties(properties), read_gaps(properties)
    said = [] if state.is_live else [f"{WAITING} {state.kind}: {state.reason}"]
    if state.is_gone:
        said = [describe_gone(state)]
    if gaps:
        said.append(f"the change log lacks stream sequence {describe_gaps(gaps)}")
    return "; ".join(said)

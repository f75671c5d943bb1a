"""Fold a run of changes to one outcome per key.

The lake applies a batch as a set, so every key needs exactly one outcome: the row as the batch
leaves it, or nothing. A change of key ends one key and begins another. A column that PostgreSQL did
not send because it did not change (unchanged TOAST) takes the value an earlier change of the batch
gave it; where none did, it is *kept*: its value is in the mirror, under the key the row had before
the batch (`base`), however often the key changed since.

A key is *held* where the mirror has a row under it before the batch: its first change in the batch
is not its insert, and not a row that moved to it. Only held keys need a delete.

Truncates are not folded here: what comes before a table's last truncate never reaches the fold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

Key = Hashable
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row change, in stream order: `row` is None for a delete; `before` only if it moved."""

    key: Key
    row: Row | None
    before: Key | None = None
    unchanged: frozenset[str] = frozenset()
    inserted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the batch makes of a key; `kept` columns come from the mirror's row under `base`."""

    key: Key
    row: Row | None
    held: bool
    kept: frozenset[str] = frozenset()
    base: Key | None = None


def fold(events: Iterable[Event]) -> dict[Key, Outcome]:
    outcomes: dict[Key, Outcome] = {}
    for event in events:
        source = event.key if event.before is None else event.before
        earlier = outcomes.get(source)
        held = earlier.held if earlier is not None else not event.inserted
        if source != event.key:
            outcomes[source] = Outcome(key=source, row=None, held=held)
            there = outcomes.get(event.key)
            held = there.held if there is not None else False
        outcomes[event.key] = _next(event, source, earlier, held)
    return outcomes


def _next(event: Event, source: Key, earlier: Outcome | None, held: bool) -> Outcome:
    if event.row is None or not event.unchanged:
        return Outcome(key=event.key, row=event.row, held=held)
    if earlier is None or earlier.row is None:
        # The row is as the mirror has it.
        return Outcome(key=event.key, row=event.row, held=held, kept=event.unchanged, base=source)
    known = event.unchanged - earlier.kept
    row = event.row | {name: earlier.row[name] for name in known}
    kept = event.unchanged & earlier.kept
    return Outcome(
        key=event.key, row=row, held=held, kept=kept, base=earlier.base if kept else None
    )

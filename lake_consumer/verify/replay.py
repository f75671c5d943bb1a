"""What a row of a PostgreSQL snapshot has become by a later cut: the logged changes, applied.

Changes hold whole rows but for unchanged TOAST, which the row before has. So the rows that
PostgreSQL showed, and the changes that it did not show yet, give exactly the rows of the cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lake_consumer.verify.canonical import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedChange:
    """One change of the log, in cells; `row` is None for a delete."""

    old_key: Row | None
    key: Row | None
    row: Row | None
    unchanged: frozenset[int] = frozenset()
    """Places in the row that PostgreSQL did not send."""


def touched_keys(changes: Iterable[LoggedChange]) -> set[Row]:
    return {key for change in changes for key in (change.old_key, change.key) if key is not None}


def replay(rows: dict[Row, Row], changes: Iterable[LoggedChange]) -> dict[Row, Row]:
    """Apply changes, in order, to the rows of the keys they touch."""
    left = dict(rows)
    for change in changes:
        origin = change.old_key or change.key
        before = left.pop(origin, None) if origin is not None else None
        if change.row is None or change.key is None:
            continue
        if change.unchanged and before is not None:
            kept = enumerate(zip(change.row, before, strict=True))
            row = tuple(old if at in change.unchanged else new for at, (new, old) in kept)
        else:
            row = change.row
        left[change.key] = row
    return left

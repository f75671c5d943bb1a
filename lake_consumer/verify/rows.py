"""Where two sides of a range differ, row by row: what a person, or `--heal`, needs to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lake_consumer.verify.canonical import Row, shown

Kind = Literal["missing", "extra", "differs", "repeated"]

MEANINGS: Mapping[Kind, str] = {
    "missing": "in PostgreSQL, not in the lake",
    "extra": "in the lake, not in PostgreSQL",
    "differs": "not the same in both",
    "repeated": "more than once in the lake",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key whose rows are not equal."""

    key: Row
    kind: Kind
    expected: Row | None
    found: tuple[Row, ...]

    def columns(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The columns that differ, with both values; none where a whole row is missing."""
        if self.expected is None or not self.found:
            return {}
        return {
            name: {"postgres": shown(ours), "lake": shown(theirs)}
            for name, ours, theirs in zip(names, self.expected, self.found[0], strict=True)
            if repr(ours) != repr(theirs)
        }


def compare(expected: Mapping[Row, Row], found: Iterable[tuple[Row, Row]]) -> list[Difference]:
    """Compare the rows of some ranges, by key."""
    lake: dict[Row, list[Row]] = {}
    for key, row in found:
        lake.setdefault(key, []).append(row)
    differences = []
    for key in sorted(expected.keys() | lake.keys(), key=repr):
        ours, theirs = expected.get(key), tuple(lake.get(key, ()))
        kind = _kind(ours, theirs)
        if kind is not None:
            differences.append(Difference(key=key, kind=kind, expected=ours, found=theirs))
    return differences


def _kind(expected: Row | None, found: tuple[Row, ...]) -> Kind | None:
    if expected is None:
        return "extra"
    if not found:
        return "missing"
    if len(found) > 1:
        return "repeated"
    return None if repr(expected) == repr(found[0]) else "differs"

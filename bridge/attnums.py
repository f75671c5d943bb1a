"""Which column is which: attnums for the columns of a `Relation` message, which has none.

The catalog is read later than the change was written, so it may know other columns by the same
names, or the same columns by others. Three things tell: whether the catalog's row is older than the
change, what the table looked like before, and that columns come in the order of their attnums.
PostgreSQL never gives an attnum twice, so a consumer can follow a column through every rename.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

XIDS = 1 << 32

Positions = list[int | None]


def is_later(xid: int | None, than: int | None) -> bool:
    """Whether a transaction id was given out after another; ids wrap around.

    None is long ago on the left and right now on the right.
    """
    if xid is None or than is None:
        return False
    return 0 < (xid - than) % XIDS < XIDS // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a table's columns by name: in the catalog now, and before the change."""

    now: Mapping[str, int]
    before: Mapping[str, int]
    moved_on: frozenset[str]
    """Names whose row in the catalog was written after the change."""

    highest: int
    """The highest attnum that the table has ever given out."""


def settle(names: Sequence[str], known: Evidence) -> list[int]:
    """Give each column its attnum, rising from left to right."""
    guesses = [
        [_likely(name, known) for name in names],
        [known.before.get(name, known.now.get(name)) for name in names],
        [known.now.get(name, known.before.get(name)) for name in names],
    ]
    rising = (guess for guess in guesses if guess == _only_rising(guess))
    found = next(rising, None) or next(filter(None, map(_permuted, guesses)), None)
    return _fill(found or _only_rising(guesses[0]), known)


def _permuted(guess: Positions) -> Positions | None:
    """Read names that contradict the order as swapped among the same columns, if all are known."""
    known = sorted({position for position in guess if position is not None})
    return [*known] if len(known) == len(guess) else None


def _likely(name: str, known: Evidence) -> int | None:
    if name in known.now and name not in known.moved_on:
        return known.now[name]
    return known.before.get(name, known.now.get(name))


def _only_rising(positions: Positions) -> Positions:
    """Forget what contradicts the order, or leaves no room for the unknown ones between."""
    kept: Positions = []
    last = 0
    for position in positions:
        fits = position is not None and position > last
        last = position if fits and position else last + 1
        kept.append(position if fits else None)
    return kept


def _fill(positions: Positions, known: Evidence) -> list[int]:
    """Find attnums for the columns that nobody knows by name."""
    filled: list[int] = []
    for start, end in _gaps(positions):
        low = filled[-1] if filled else 0
        high = positions[end] if end < len(positions) else None
        filled += _between(low, high, end - start, known)
        if high is not None:
            filled.append(high)
    return filled


def _gaps(positions: Positions) -> Iterator[tuple[int, int]]:
    """Give the stretch, often empty, of unknown positions before each known one and the end."""
    start = 0
    for at, position in enumerate(positions):
        if position is not None:
            yield start, at
            start = at + 1
    yield start, len(positions)


def _between(low: int, high: int | None, count: int, known: Evidence) -> list[int]:
    """Choose the likeliest `count` attnums of an open range."""
    if not count:
        return []
    end = high or max(low, known.highest, *known.before.values()) + count + 1
    before, now = set(known.before.values()), set(known.now.values())
    newest_before = max(before, default=0)

    def unlikeliness(position: int) -> int:
        if position in before:
            # What lives before and after lived in between; what is gone may have been gone.
            return 0 if position in now else 2
        if position > newest_before:
            return 1 if position <= known.highest else 3
        return 4  # it was dropped even before

    return sorted(sorted(range(low + 1, end), key=unlikeliness)[:count])

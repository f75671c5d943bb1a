"""Ranges of keys and a checksum of each: equal sums and counts mean equal rows, in any order.

Edges are keys that PostgreSQL really has, about one for every so many rows. They are ordered here,
by an order of our own, on both sides: no collation has a say in which range a key belongs to. A
range's checksum is the sum of its rows' hashes, so rows may come in any order and a row that is
there twice counts twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from lake_consumer.verify.canonical import Cell, Row

_MODULUS = 1 << 128

Order = tuple[tuple[int, int, str], ...]


def order_of(key: Row) -> Order:
    """A total order of keys: integers by value, everything else by its representation."""
    return tuple(_order(cell) for cell in key)


def _order(cell: Cell) -> tuple[int, int, str]:
    if isinstance(cell, int):
        return 0, int(cell), ""
    return (1, 0, cell) if isinstance(cell, str) else (2, 0, repr(cell))


class KeyRanges:
    """Where one range ends and the next begins."""

    def __init__(self, edges: Iterable[Row]) -> None:
        by_order = {order_of(edge): edge for edge in edges}
        self._orders = sorted(by_order)
        self._edges = [by_order[order] for order in self._orders]

    def __len__(self) -> int:
        return len(self._edges) + 1

    def of(self, key: Row) -> int:
        return bisect_right(self._orders, order_of(key))

    def bounds(self, number: int) -> tuple[Row | None, Row | None]:
        """First key of a range and first key behind it; None where there is no end."""
        low = self._edges[number - 1] if number else None
        return low, self._edges[number] if number < len(self._edges) else None


def digest(row: Row) -> int:
    return int.from_bytes(
        blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    )


@dataclass(slots=True)
class RangeSums:
    """Count and checksum of every range of one side."""

    ranges: KeyRanges
    rows: int = 0
    _sums: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, key: Row, row: Row) -> None:
        number = self.ranges.of(key)
        count, total = self._sums.get(number, (0, 0))
        self._sums[number] = (count + 1, (total + digest(row)) % _MODULUS)
        self.rows += 1

    def differing(self, other: RangeSums) -> list[int]:
        """The ranges that are not equal on both sides."""
        nothing = (0, 0)
        return [
            number
            for number in sorted(self._sums.keys() | other._sums.keys())
            if self._sums.get(number, nothing) != other._sums.get(number, nothing)
        ]

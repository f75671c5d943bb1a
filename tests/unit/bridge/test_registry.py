"""Which entry of a table was the latest at a position of the WAL."""

from __future__ import annotations

from bridge.jetstream.registry import ShapeEntry, latest_at
from schemas.names import TableName
from schemas.shapes import TableShape

SHAPE = TableShape(
    name=TableName("public", "t"), relation_id=9, replica_identity="default", columns=()
)


def entry(revision: int, lsn: int) -> ShapeEntry:
    return ShapeEntry(revision, lsn, "system/1/slot", SHAPE)


def test_what_was_seen_later_in_the_wal_does_not_count() -> None:
    """At start the catalog is registered as it is, far ahead of the changes still to be read."""
    first, second, current = entry(1, 100), entry(3, 200), entry(2, 900)
    entries = [first, current, second]
    assert latest_at(entries, 250) == second
    assert latest_at(entries, 199) == first
    assert latest_at(entries, 1_000) == current


def test_an_entry_written_for_the_very_change_counts() -> None:
    """A change that is read once more gets the shape it got the first time."""
    assert latest_at([entry(1, 100)], 100) == entry(1, 100)


def test_of_two_at_one_position_the_newer_counts() -> None:
    assert latest_at([entry(2, 100), entry(1, 100)], 100) == entry(2, 100)


def test_before_the_first_nothing_is_known() -> None:
    assert latest_at([entry(1, 100)], 99) is None

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from lake_consumer.columns import columns_of
from lake_consumer.evolution import AddColumn, plan_mirror
from lake_consumer.fills import default_of, defaults_of, fills_in
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.iceberg.filling import fill_added
from lake_consumer.shapes import ShapeBook, shape_properties
from schemas.events import Change
from schemas.names import TableName
from schemas.shapes import NO_FILL, TableShape
from tests.support.lake import change, make_shape

AT = "2026-01-01T00:00:00.000000Z"
USERS = make_shape("users", {"id": "int32"})


def added(kind: str, fill: Any, name: str = "c") -> TableShape:
    shape = make_shape("users", {"id": "int32", name: kind})
    *others, last = shape.columns
    return replace(shape, columns=(*others, replace(last, fill=fill)))


@pytest.mark.parametrize(
    ("kind", "fill", "default"),
    [
        ("int32", 5, 5),
        ("int32", 0, 0),
        ("bool", False, False),
        ("text", "", ""),
        ("int32", None, None),
        ("int32", NO_FILL, None),
        ("float64", float("nan"), None),
        ("float32", float("-inf"), None),
        ("float64", 3, 3.0),
        ("decimal(6,2)", "1.50", "1.50"),
        ("decimal(6,2)", "NaN", None),
        ("decimal", "1.50", "1.50"),
        ("date", "2020-02-29", "2020-02-29"),
        ("date", "infinity", None),
        ("timestamp", "2020-02-29T12:00:00", "2020-02-29T12:00:00.000000"),
        ("timestamptz", "2020-02-29T12:00:00.5Z", "2020-02-29T12:00:00.500000+00:00"),
        ("binary", b"\x00\xff", "00FF"),
        ("binary", "\\x00ff", "00FF"),
        ("json", {"a": [1]}, '{"a":[1]}'),
        ("list<int32>", [1], None),
    ],
)
def test_a_constant_is_an_iceberg_literal_or_none(kind: str, fill: Any, default: Any) -> None:
    """What has no literal is loaded from a snapshot; nothing is rounded and nothing is guessed."""
    assert default_of(added(kind, fill).columns[-1]) == default


def test_only_the_mirror_adds_a_column_with_its_default() -> None:
    shape = added("int32", 5)
    held, wanted = columns_of(USERS), columns_of(shape)

    assert plan_mirror("t", held, wanted, defaults_of(shape)) == [AddColumn(wanted[1], 5)]
    assert plan_mirror("t", wanted, wanted, defaults_of(shape)) == []


def test_a_change_from_before_the_column_has_its_fill_in_the_mirror() -> None:
    """Its row existed when the column was added; one that the stream says is null stays null."""
    shape = added("int32", 5)
    decoder = Decoder(columns_of(shape), {1: USERS, 2: shape})
    sent: list[Change] = [
        change("users", "INSERT", {"id": 1}),
        change("users", "DELETE", {"id": 2}),
        change("users", "INSERT", {"id": 3, "c": None}, 2),
        change("users", "UPDATE", {"id": 4, "c": 7}, 2),
    ]
    changes = decoder.decode([1, 2, 3, 4], [{**event.to_map(), "commit_ts": AT} for event in sent])

    filled = fill_added(changes, fills_in({1: USERS, 2: shape}, shape))

    assert filled.schema == changes.schema
    rows = [row and row["c"] for row in filled["new"].to_pylist()]
    assert rows == [5, None, None, 7]
    assert filled["new"][1].as_py() is None
    assert filled["old"] == changes["old"]
    # A slice has an offset, which children of a struct do not share.
    tail = fill_added(changes.slice(1), fills_in({1: USERS, 2: shape}, shape))
    assert tail["new"].to_pylist() == filled["new"].to_pylist()[1:]


def test_nothing_is_filled_where_rows_hold_null_or_the_table_is_another() -> None:
    shape = added("int32", 5)

    assert fills_in({1: USERS, 2: added("int32", None)}, added("int32", None)) == ()
    assert fills_in({2: shape}, shape) == ()
    assert fills_in({1: replace(USERS, relation_id=9), 2: shape}, shape) == ()


def test_a_shape_with_bytes_survives_in_properties() -> None:
    shape = added("binary", b"\x00\xff")

    held = ShapeBook(lambda *_: None).learn_properties(shape_properties(shape, 3))

    assert held is not None
    assert default_of(held.columns[-1]) == default_of(shape.columns[-1]) == "00FF"


def announced(*shapes: TableShape) -> ShapeBook:
    """A book that has read these revisions, from 1 on, in the stream."""
    book = ShapeBook(lambda *_: None)
    for revision, shape in enumerate(shapes, start=1):
        book.learn(shape.to_map(timestamp=AT, lsn=0, source="7/1"), revision)
    return book


def test_a_column_that_is_announced_again_keeps_its_fill() -> None:
    """A bridge may announce it without: rows that existed still hold the value."""
    filled, bare = added("int32", 5), added("int32", NO_FILL)
    renamed = added("int32", NO_FILL, name="d")
    book = announced(USERS, filled, bare, renamed)

    found = book.find_all(USERS.name, [1, 2, 3, 4])

    assert [shape.columns[-1].fill for shape in found.values()] == [NO_FILL, 5, 5, 5]
    assert defaults_of(found[4]) == {2: 5}
    assert [fill.value for fill in fills_in(found, found[4])] == [5]


@pytest.mark.parametrize(
    "later",
    [
        replace(added("int32", NO_FILL), rewritten=True),
        replace(added("int32", NO_FILL), relation_id=9),
        added("int32", None),
        added("text", NO_FILL),
    ],
    ids=["rewritten", "another table", "says NULL", "another type"],
)
def test_a_fill_ends_with_what_it_was_said_of(later: TableShape) -> None:
    """Rows that were written again hold what a snapshot shows."""
    book = announced(USERS, added("int32", 5), later)

    assert book.find(USERS.name, 3).columns[-1].fill is later.columns[-1].fill


def test_a_fill_is_inherited_from_the_shape_that_a_log_has() -> None:
    book = ShapeBook(lambda *_: added("int32", NO_FILL).to_map(timestamp=AT, lsn=0, source=""))
    book.learn_properties(shape_properties(added("int32", 5), 2))

    assert book.find(USERS.name, 7).columns[-1].fill == 5


def test_thousands_of_revisions_are_resolved_once_each() -> None:
    """A table that is altered every hour has them after a few months, and each has a past."""
    bare = added("int32", NO_FILL)
    book = announced(USERS, added("int32", 5), *[bare] * 1_500)

    found = book.find_all(USERS.name, [1, 2, 1_502])

    assert {shape.columns[-1].fill for revision, shape in found.items() if revision > 1} == {5}
    assert book.find(USERS.name, 1_502) is found[1_502]


def test_a_shape_of_one_table_costs_nothing_for_the_others() -> None:
    """With thousands of tables, looking through all of them for each would take minutes."""
    fields = added("int32", 5).to_map(timestamp=AT, lsn=0, source="7/1")
    book = ShapeBook(lambda *_: None)
    names = [TableName("public", f"t{at}") for at in range(20_000)]
    for name in names:
        book.learn(fields, 1, table=name)

    started = time.process_time()
    found = [book.find(name, 1) for name in names]

    assert [shape.name for shape in found] == names
    assert time.process_time() - started < 2


def test_an_earlier_revision_that_is_learned_late_counts() -> None:
    """The one that a log holds may be learned before the ones that its changes have."""
    filled, bare = added("int32", 5), added("int32", NO_FILL)
    book = announced(USERS)
    shapes = {2: filled, 3: replace(bare, rewritten=True), 4: bare}
    fills = []
    for revision in (4, 2, 3):
        book.learn(shapes[revision].to_map(timestamp=AT, lsn=0, source="7/1"), revision)
        fills.append(book.find(USERS.name, 4).columns[-1].fill)

    assert fills == [NO_FILL, 5, NO_FILL]

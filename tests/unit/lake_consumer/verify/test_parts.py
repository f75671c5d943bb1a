"""The parts of `verify` that decide, without any server."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from lake_consumer.verify.canonical import (
    InText,
    Row,
    _any_reader,
    lake_reader,
    noted_reader,
    shown,
    text_reader,
)
from lake_consumer.verify.ranges import KeyRanges, RangeSums, digest, order_of
from lake_consumer.verify.replay import LoggedChange, replay, touched_keys
from lake_consumer.verify.rows import compare
from lake_consumer.verify.visibility import SeenTransactions
from schemas.types import parse_type

KEY = "f47ac10b-58cc-4372-a567-0e02b2c3d479"


def test_a_snapshot_sees_what_had_committed() -> None:
    """Below xmax and not in progress; the log's ids have 32 bits, wherever the epoch stands."""
    seen = SeenTransactions.parse("10:20:10,14")
    wrapped = SeenTransactions.parse(f"{(1 << 32) - 2}:{(1 << 32) + 5}:{(1 << 32) + 1}")

    assert [xid for xid in (9, 10, 11, 14, 19, 20, 21) if seen.sees(xid)] == [9, 11, 19]
    assert SeenTransactions.parse("7:7:").sees(6)
    assert not SeenTransactions.parse("7:7:").sees(7)
    assert [x for x in ((1 << 32) - 3, (1 << 32) - 1, 0, 1, 4, 5) if wrapped.sees(x)] == [
        (1 << 32) - 3, (1 << 32) - 1, 0, 4,
    ]  # fmt: skip


def test_every_unseen_id_is_within_the_bounds() -> None:
    """The bounds leave out files of the log; they must never leave out a change."""
    for xmin in (3, 5_000, (1 << 31) + 5, (1 << 32) - 2, (1 << 33) - 1):
        seen = SeenTransactions(xmin, xmin + 3, frozenset({xmin}))
        low, wrapped = seen.oldest_unseen
        for whole in (xmin, xmin + 3, xmin + 1_000_000):
            xid = whole % (1 << 32)
            assert not seen.sees(xid)
            assert xid >= low or (wrapped is not None and xid <= wrapped)


@pytest.mark.parametrize("xmin", [5_000, (1 << 32) - 2, (1 << 33) - 1, (1 << 31) + 5])
def test_bounds_leave_out_what_the_snapshot_has_seen_for_long(xmin: int) -> None:
    """Else every file of the log would be read."""
    low, wrapped = SeenTransactions(xmin, xmin + 3, frozenset({xmin})).oldest_unseen

    for whole in (xmin - 1, xmin - 2_000, max(3, xmin - (1 << 31) + 2)):
        xid = whole % (1 << 32)
        assert xid < low
        assert wrapped is None or xid > wrapped


def test_an_id_that_has_wrapped_since_is_not_seen() -> None:
    """The log is ahead of the snapshot, which was taken at the end of an epoch."""
    seen = SeenTransactions.parse(f"{(1 << 32) - 5}:{(1 << 32) - 5}:")

    assert seen.sees((1 << 32) - 6)
    assert not seen.sees(3)


@pytest.mark.parametrize(
    ("type", "text", "lake"),
    [
        ("float64", "NaN", float("nan")),
        ("float32", "0.1", 0.10000000149011612),
        ("decimal(10,2)", "1.50", Decimal("1.50")),
        ("json", '{"a": 1, "b": [1.5]}', '{"a":1,"b":[1.5]}'),
        ("json", '{"n": 123456789012345678901}', '{"n":123456789012345678901}'),
        ("json", '{"n": 2.50, "s": ", "}', '{"n": 2.50, "s": ", "}'),
        ("json", '{"n": 2.50, "s": ", "}', '{"n":2.50,"s":", "}'),
        ("list<json>", '{"{\\"n\\": 2.50}",NULL}', ['{"n":2.50}', None]),
        ("list<int32>", "{1,NULL}", [1, None]),
        ("binary", "\\x00ff", b"\x00\xff"),
        ("uuid", KEY, UUID(KEY)),
        ("date", "2025-12-08", date(2025, 12, 8)),
        ("bool", "t", True),
        ("int64", "-7", -7),
        ("float64", "-0", -0.0),
        ("text", "", ""),
    ],
)  # fmt: skip
def test_text_and_native_value_are_one_cell(type: str, text: str, lake: Any) -> None:
    read = text_reader(parse_type(type))

    assert repr(read(text)) == repr(lake_reader(parse_type(type))(lake))
    assert read(None) is None
    assert lake_reader(parse_type(type))(None) is None


def test_a_float_is_its_own_cell_and_nan_is_equal_to_itself() -> None:
    """A cell may be a key of a dictionary, and -0.0 is not 0.0."""
    for kind in ("float32", "float64"):
        read = lake_reader(parse_type(kind))
        assert [repr(read(value)) for value in (1.5, -0.0, 0.0)] == ["1.5", "-0.0", "0.0"]
        assert read(float("nan")) == read(float("nan"))


@pytest.mark.parametrize(
    ("text", "lake"),
    [
        ('{"n": 2.50}', '{"n":2.5}'),
        ('{"n": 1.0}', '{"n":1}'),
        ('{"n": 1e2}', '{"n":100.0}'),
        ('{"a": 1, "a": 2}', '{"a":2}'),
        ('{"b": 1, "a": 2}', '{"a":2,"b":1}'),
        ('{"s": "a b"}', '{"s":"ab"}'),
    ],
)
def test_documents_that_differ_in_a_token_are_two_cells(text: str, lake: str) -> None:
    """A lake that holds 2.5 for PostgreSQL's 2.50 is not equal, and a report must say so."""
    document = parse_type("json")

    assert text_reader(document)(text) != lake_reader(document)(lake)


@pytest.mark.parametrize(
    ("type", "text", "noted"),
    [
        ("date", "infinity", "infinity"),
        ("decimal(10,2)", "NaN", "NaN"),
        ("list<float64>", "{{1e+15},{2}}", "{{1000000000000000},{2}}"),
        ("list<int32>", "[2:3]={1,2}", "[2:3]={1,2}"),
        ("list<json>", '{{"{\\"a\\": 1}"},{2}}', '{{"{\\"a\\":1}"},{2}}'),
    ],
)
def test_a_text_beside_the_column_is_read_as_far_as_it_can_be(
    type: str, text: str, noted: str
) -> None:
    """The lake may have spelled it otherwise than PostgreSQL does."""
    cell = text_reader(parse_type(type))(text)

    assert isinstance(cell, InText)
    assert repr(cell) == repr(noted_reader(parse_type(type))(noted))


@pytest.mark.parametrize(
    ("type", "texts"),
    [
        ("date", ("0001-01-01", "9999-12-31", "infinity", "10000-01-01", "0044-03-15 BC")),
        ("timestamp", ("2025-12-08 13:45:21", "2025-12-08 13:45:21.5", "0001-01-01 00:00:00.000001",
                       "-infinity", "0044-03-15 00:00:00 BC")),
        ("timestamptz", ("2025-12-08 13:45:21+00", "2025-12-08 13:45:21.71+00", "infinity",
                         "10000-01-01 00:00:00+00", "0001-12-31 23:59:59+00 BC")),
        ("decimal(10,2)", ("0.00", "-0.01", "12345678.90", "NaN", "1.5", "123456789.00", "7")),
        ("decimal(38,10)", ("0.0000000001", "1234567890123456789012345678.0000000001")),
        ("decimal(3,3)", ("0.001", "-0.999", "1.001")), ("decimal(5,0)", ("0", "-12345")),
        ("decimal(3,-2)", ("99900", "NaN")), ("decimal(50,2)", ("1.50", "NaN")),
        ("decimal", ("1e-40", "0.000")),
    ],
)  # fmt: skip
def test_quick_readers_give_what_the_lakes_own_rule_gives(
    type: str, texts: tuple[str, ...]
) -> None:
    """They are short cuts, and no rule of their own."""
    quick, exact = text_reader(parse_type(type)), _any_reader(parse_type(type))

    assert [repr(quick(text)) for text in texts] == [repr(exact(text)) for text in texts]


def _sums(ranges: KeyRanges, rows: dict[Row, Row]) -> RangeSums:
    sums = RangeSums(ranges)
    for key, row in rows.items():
        sums.add(key, row)
    return sums


def test_sums_differ_exactly_where_rows_do() -> None:
    """In any order; a row that is there twice counts twice."""
    ranges = KeyRanges([(10,), (20,), (10,)])
    rows: dict[Row, Row] = {(n,): (n, f"v{n}") for n in range(30)}
    ours = _sums(ranges, rows)

    assert ours.differing(_sums(ranges, dict(reversed(rows.items())))) == []
    assert ours.differing(_sums(ranges, {**rows, (15,): (15, "other")})) == [1]
    assert ours.differing(_sums(ranges, {k: v for k, v in rows.items() if k != (29,)})) == [2]
    twice = _sums(ranges, rows)
    twice.add((3,), (3, "v3"))
    twice.add((3,), (3, "v3"))
    assert ours.differing(twice) == [0]
    assert [ranges.bounds(n) for n in range(len(ranges))] == [
        (None, (10,)), ((10,), (20,)), ((20,), None),
    ]  # fmt: skip


def test_ranges_that_only_one_side_has_differ() -> None:
    """Rows that PostgreSQL deleted may fill a range in which it has nothing at all."""
    ranges = KeyRanges([(10,), (20,)])
    rows: dict[Row, Row] = {(5,): (5, "a"), (25,): (25, "b")}
    lake: dict[Row, Row] = {**rows, (15,): (15, "extra")}

    assert _sums(ranges, rows).differing(_sums(ranges, lake)) == [1]
    assert _sums(ranges, lake).differing(_sums(ranges, rows)) == [1]
    assert (_sums(ranges, rows).rows, _sums(ranges, lake).rows) == (2, 3)


def test_keys_of_any_kind_have_one_order() -> None:
    """Texts, numbers, dates without a native form and nulls may be edges of one set of ranges."""
    keys: list[Row] = [("b", 1), ("a", None), (InText("infinity"), 2), (("x", 1), 3), (7, "z")]
    ranges = KeyRanges(keys)

    assert sorted(ranges.of(key) for key in keys) == [1, 2, 3, 4, 5]


def test_logged_changes_bring_rows_to_the_cut() -> None:
    """Unchanged TOAST, a changed key, a delete, and a key that comes again."""
    rows: dict[Row, Row] = {(1,): (1, "a", "big"), (2,): (2, "b", "B"), (3,): (3, "c", "C")}
    changes = [
        LoggedChange(old_key=None, key=(1,), row=(1, "a2", None), unchanged=frozenset({2})),
        LoggedChange(old_key=(2,), key=(5,), row=(5, "b", None), unchanged=frozenset({2})),
        LoggedChange(old_key=(3,), key=None, row=None),
        LoggedChange(old_key=None, key=(3,), row=(3, "new", None)),
        LoggedChange(old_key=None, key=(9,), row=(9, "n", "N")),
        LoggedChange(old_key=None, key=(4,), row=None),
        LoggedChange(old_key=None, key=(8,), row=(8, "unseen", None), unchanged=frozenset({2})),
    ]
    rows[(4,)] = (4, "d", "D")

    assert replay(rows, changes) == {
        (1,): (1, "a2", "big"), (5,): (5, "b", "B"), (3,): (3, "new", None), (9,): (9, "n", "N"),
        (8,): (8, "unseen", None),
    }  # fmt: skip
    assert touched_keys(changes) == {(1,), (2,), (3,), (4,), (5,), (8,), (9,)}


def test_rows_are_told_apart_by_kind_of_difference() -> None:
    ours: dict[Row, Row] = {(1,): (1, "a"), (2,): (2, "b"), (3,): (3, "c"), (4,): (4, "d")}
    lake = [((1,), (1, "a")), ((2,), (2, "x")), ((4,), (4, "d")), ((4,), (4, "d")), ((5,), (5, ""))]

    found = {item.key: item for item in compare(ours, lake)}

    assert {key: item.kind for key, item in found.items()} == {
        (2,): "differs", (3,): "missing", (4,): "repeated", (5,): "extra",
    }  # fmt: skip
    assert found[(2,)].columns(["id", "v"]) == {"v": {"postgres": "b", "lake": "x"}}
    assert [found[key].columns(["id", "v"]) for key in ((3,), (5,))] == [{}, {}]


def test_the_order_of_keys_is_by_value_kind_and_text() -> None:
    """It decides which range a key belongs to, on both sides and on every machine."""
    assert order_of((7, "z", None)) == ((0, 7, ""), (1, 0, "z"), (2, 0, "None"))
    assert order_of((9,)) < order_of((10,)) < order_of(("",)) < order_of((None,))
    assert 0 <= digest((1, "a")) < 1 << 128
    assert digest((1, "a")) != digest((1, "b"))


def test_cells_are_shown_as_plain_json() -> None:
    assert shown((1.5, float("nan"), float("-inf"), b"\x00", InText("infinity"), None)) == [
        1.5, "nan", "-inf", "\\x00", "infinity", None,
    ]  # fmt: skip

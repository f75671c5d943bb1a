from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from lake_consumer.values import from_contract, from_text, to_text
from schemas.types import parse_type
from schemas.values import NO_NATIVE_FORM, read_array, reader_for


@pytest.mark.parametrize(
    ("type", "value", "native"),
    [
        ("int64", 5, 5),
        ("decimal(10,2)", "-12.30", Decimal("-12.30")),
        ("decimal(5,0)", "12", Decimal(12)),
        ("decimal(3,-2)", "12300", Decimal(12300)),
        ("decimal", "1.000000000000000000000000000000000000000000001", None),
        ("date", "2025-12-08", date(2025, 12, 8)),
        ("timestamp", "2025-12-08T13:45:21.7", datetime(2025, 12, 8, 13, 45, 21, 700000)),
        ("timestamptz", "2025-12-08T13:45:21Z", datetime(2025, 12, 8, 13, 45, 21, tzinfo=UTC)),
        ("json", {"b": [1, None], "a": "é"}, '{"b":[1,null],"a":"é"}'),
        ("json", None, None),
        ("list<int32>", [1, None, 3], [1, None, 3]),
        ("list<decimal(4,1)>", ["1.5"], [Decimal("1.5")]),
        ("list<json>", ["x", {"a": 1}, None], ['"x"', '{"a":1}', None]),
    ],
)
def test_a_value_becomes_what_its_column_holds(type: str, value: object, native: object) -> None:
    """Exact, and of the column's own type."""
    expected = value if native is None else native

    assert from_contract(parse_type(type), value) == expected


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("decimal(10,2)", "NaN"),
        ("decimal(10,2)", "1.234"),
        ("decimal(4,2)", "123.45"),
        ("date", "infinity"),
        ("timestamptz", "-infinity"),
        ("timestamp", "0044-03-15 00:00:00 BC"),
        ("list<int32>", [[1, 2], [3, 4]]),
        ("list<json>", [[1], [{"a": 2}]]),
        ("list<decimal(4,2)>", ["1.00", "NaN"]),
    ],
)
def test_a_value_its_column_cannot_hold_is_never_rounded(type: str, value: object) -> None:
    """It goes to the text map instead, and the column is null."""
    assert from_contract(parse_type(type), value) is NO_NATIVE_FORM


@pytest.mark.parametrize(
    ("type", "text", "native"),
    [
        ("binary", "\\x00ff", b"\x00\xff"),
        ("float64", "-Infinity", float("-inf")),
        ("json", '{"n":\t2.50, "s": "a  b\\" : c"}', '{"n":2.50,"s":"a  b\\" : c"}'),
        ("json", '{"n": 9007199254740993, "s": "\\u0041"}', '{"n":9007199254740993,"s":"A"}'),
        ("json", '{"a": 1, "a": 2}', '{"a":1,"a":2}'),
        ("json", "[" * 5_000 + "]" * 5_000, None),
        ("json", "null", None),
        (
            "list<json>",
            '{null,NULL,"[1, 2.50]","{\\"a\\": 1}"}',
            ["null", None, "[1,2.50]", '{"a":1}'],
        ),
        ("decimal", "NaN", None),
    ],
)
def test_text_is_read_where_only_the_wire_could_not_hold_it(
    type: str, text: str, native: object
) -> None:
    """JSON has no bytes and no infinity; the lake has both."""
    assert from_text(parse_type(type), text) == (text if native is None else native)


@pytest.mark.parametrize(
    ("type", "text"),
    [("date", "infinity"), ("timestamp", "294276-12-31 23:59:59"), ("list<int32>", "[0:1]={1,2}"),
     ("list<json>", "[0:1]={1,2}"), ("list<json>", "{{1},{2.50}}")],
)  # fmt: skip
def test_text_that_no_column_holds_stays_text(type: str, text: str) -> None:
    """PostgreSQL's own text is always exact."""
    assert from_text(parse_type(type), text) is NO_NATIVE_FORM


@pytest.mark.parametrize(
    ("type", "text"),
    [
        ("list<int32>", "{{1,2},{3,NULL}}"),
        ("list<text>", '{{a,"b c"},{"NULL","x\\"y\\\\z"},{"",é}}'),
        ("list<float64>", "{{1.5,100000},{NaN,-Infinity}}"),
        ("list<bool>", "{{t,f}}"),
        ("list<binary>", '{{"\\\\x00ff"}}'),
        ("list<timestamptz>", '{{"2025-12-08 13:45:21+00"}}'),
        ("list<json>", '{{1},{"\\"x\\""}}'),
    ],
)
def test_a_deep_array_is_written_as_postgresql_writes_it(type: str, text: str) -> None:
    """So that `::int4[]` gives the very same array back."""
    array = parse_type(type)
    assert array.element is not None

    value = read_array(text, reader_for(array.element, "msgpack"))

    assert to_text(array, value) == text

"""Readers on texts that PostgreSQL writes; `tests/property` asks PostgreSQL itself for more."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.types import ContractType, Kind, parse_type
from schemas.values import (
    MAX_JSON_DEPTH,
    NO_NATIVE_FORM,
    Format,
    compact_json,
    read_array,
    reader_for,
)

FORMATS: tuple[Format, ...] = ("msgpack", "json")


def read(type_text: str, text: str, format: Format = "msgpack") -> Any:
    return reader_for(parse_type(type_text), format)(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bool", "t", True),
        ("bool", "f", False),
        ("int64", "-9223372036854775808", -(2**63)),
        ("uint32", "4294967295", 2**32 - 1),
        ("decimal", "-0.00", "-0.00"),
        ("decimal", "NaN", "NaN"),
        ("text", "", ""),
        ("text", "ab   ", "ab   "),
        ("date", "0001-01-01", "0001-01-01"),
        ("timestamp", "2025-12-08 13:45:21.7", "2025-12-08T13:45:21.7"),
        ("timestamptz", "9999-12-31 23:59:59.999999+00", "9999-12-31T23:59:59.999999Z"),
        ("binary", "\\x", b""),
        ("binary", "\\x00ff", b"\x00\xff"),
        ("json", "0", 0),
        ("json", "false", False),
        ("json", '""', ""),
        ("json", "[]", []),
        ("json", '"\\u0000"', "\0"),
        ("json", '{"a": [1, 2.5, null, "x"]}', {"a": [1, 2.5, None, "x"]}),
        ("json", "9223372036854775807", 2**63 - 1),
        ("json", "2.5", 2.5),
        ("json", "1.0", 1.0),
        ("json", "-0.0", -0.0),
        ("json", "1e+22", 1e22),
        ("json", "0.30000000000000004", 0.1 + 0.2),
        ("json", '"\\u0041\\/ 2.50"', "A/ 2.50"),
    ],
)
def test_a_value_with_a_native_form_gets_it(kind: Kind, text: str, value: object) -> None:
    """Consumers get numbers as numbers and bytes as bytes."""
    got = read(kind, text)

    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("date", "infinity"),
        ("date", "-infinity"),
        ("date", "0044-03-15 BC"),
        ("date", "10000-01-01"),
        ("timestamp", "infinity"),
        ("timestamp", "0044-03-15 00:00:00 BC"),
        ("timestamp", "10000-01-01 00:00:00"),
        ("timestamp", "294276-12-31 23:59:59.999999"),
        ("timestamptz", "-infinity"),
        ("timestamptz", "0044-03-15 00:00:00+00 BC"),
        ("timestamptz", "10000-01-01 00:00:00+00"),
        ("json", "9223372036854775808"),
        ("json", "-9223372036854775809"),
        ("json", "-0"),
        ("json", "9" * 5_000),
        ("json", "1e400"),
        ("json", "1e-99999999999999999999"),
        ("json", "0e99999999999999999999"),
        ("json", "0.1000000000000000000001"),
        ("json", "2.50"),
        ("json", '{"price": {"net": [2.50]}}'),
        ("json", "1e2"),
        ("json", "1E+22"),
        ("json", "0.00001"),
        ("json", "10000000000000000.0"),
        ("json", '{"a": 1, "a": 2}'),
        ("json", '{"a": {"b": 1, "b": 1}}'),
        ("json", '"\\ud800"'),
        ("json", '{"\\udc00": 1}'),
        ("json", "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1)),
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_a_value_without_a_native_form_stays_text(kind: Kind, text: str, format: Format) -> None:
    """Rounding, dropping a key or crashing would each alter what PostgreSQL holds."""
    assert read(kind, text, format) is NO_NATIVE_FORM


@pytest.mark.parametrize("format", FORMATS)
def test_a_json_null_is_told_from_sql_null(format: Format) -> None:
    """`'null'::jsonb` is a value in a NOT NULL column; null on the wire means there is none."""
    assert read("json", "null", format) is NO_NATIVE_FORM
    assert read("list<json>", "{null,NULL}", format) is NO_NATIVE_FORM
    assert read("list<json>", "{NULL}", format) == [None]
    assert read("json", "[null]", format) == [None]


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_integers_that_a_double_may_round_stay_text_in_json(number: int) -> None:
    """Most JSON readers hold numbers as doubles; the ids of many services are larger."""
    is_text = abs(number) > 2**53

    for kind, wrap in (("int64", "{}"), ("json", "[{}]"), ("list<int64>", "{{{}}}")):
        text = wrap.format(number)
        assert (read(kind, text, "json") is NO_NATIVE_FORM) is is_text
        assert read(kind, text) is not NO_NATIVE_FORM


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 1_000, 200_000])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}"), ('{"[{":[', "]}")])
def test_no_depth_is_too_deep(depth: int, before: str, after: str) -> None:
    """PostgreSQL takes what its stack allows; a reader must neither fail nor take long."""
    text = before * depth + "1" + after * depth

    assert read("json", text) is NO_NATIVE_FORM
    assert compact_json(text.replace(":", " : ")) == text


def test_brackets_inside_json_strings_are_not_depth() -> None:
    """A log line full of brackets is a flat document."""
    text = '["' + '[{\\"' * MAX_JSON_DEPTH + '"]'

    assert read("json", text) == ['[{"' * MAX_JSON_DEPTH]


def test_floats_that_json_cannot_write_stay_text_there() -> None:
    """MessagePack holds them; JSON has no word for them."""
    for text in ("NaN", "Infinity", "-Infinity"):
        for kind in ("float32", "float64"):
            assert read(kind, text, "json") is NO_NATIVE_FORM
            assert str(read(kind, text)) == str(float(text))


def test_minus_zero_keeps_its_sign() -> None:
    """PostgreSQL writes `-0`; as an integer it would lose the sign."""
    for kind in ("float32", "float64"):
        assert math.copysign(1, read(kind, "-0")) == -1.0


def test_a_float4_between_two_neighbours_stays_text() -> None:
    """0x15AE43FD prints 7.038531e-26; its double narrows to 0x15AE43FE."""
    assert struct.unpack("f", struct.pack("f", 7.038531e-26))[0] == 7.038531308148791e-26

    assert read("float32", "7.038531e-26", "msgpack") is NO_NATIVE_FORM
    assert read("float32", "7.038531e-26", "json") is NO_NATIVE_FORM


@given(st.floats(width=32))
@example(3.4028234663852886e38)
@example(1.401298464324817e-45)
@example(16_777_216.0)
def test_a_float4_narrows_to_itself(value: float) -> None:
    """`%.9g` names every float4; the reader must not reject what is unambiguous."""
    got = read("float32", f"{value:.9g}")

    narrowed = struct.unpack("f", struct.pack("f", got))[0]
    assert narrowed == value or (math.isnan(narrowed) and math.isnan(value))


def test_bytea_is_text_in_json() -> None:
    """JSON has no bytes, and PostgreSQL's hex is as good as base64 and can be cast back."""
    assert read("binary", "\\x00ff", "json") is NO_NATIVE_FORM
    assert read("list<binary>", '{"\\\\x00ff"}', "json") is NO_NATIVE_FORM
    assert read("list<binary>", '{"\\\\x00ff",NULL}') == [b"\x00\xff", None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", []),
        ("{a}", ["a"]),
        ("{NULL}", [None]),
        ('{"NULL","null",null}', ["NULL", "null", "null"]),
        ('{""}', [""]),
        ('{"a,b","{c}","d\\"e","f\\\\g"," "}', ["a,b", "{c}", 'd"e', "f\\g", " "]),
        ("{{a,b},{c,NULL}}", [["a", "b"], ["c", None]]),
        ("{{{a}}}", [[["a"]]]),
        ('{"\n\t"}', ["\n\t"]),
    ],
)
def test_array_text_reads_into_nested_lists(text: str, value: list[Any]) -> None:
    """Quotes, escapes, NULL and the text 'NULL' as PostgreSQL writes them."""
    assert read_array(text, str) == value


def test_custom_bounds_stay_text() -> None:
    """A list counts from one place only; `[2:3]={1,2}` would lose the 2."""
    assert read("list<int32>", "[2:3]={1,2}") is NO_NATIVE_FORM
    assert read("list<int32>", "[0:0][1:2]={{1,2}}") is NO_NATIVE_FORM


def test_a_json_array_inside_an_array_stays_text() -> None:
    """`{"[1]"}` has one dimension and `{{1}}` has two; as nested lists they would be one value."""
    assert read("list<json>", '{"[1]"}') is NO_NATIVE_FORM
    assert read("list<json>", "{{1}}") == [[1]]
    assert read("list<json>", '{"{\\"a\\": [1]}"}') == [{"a": [1]}]


def test_one_element_without_native_form_makes_the_array_text() -> None:
    """Half native, half text could not be told apart."""
    assert read("list<date>", "{2025-12-08,infinity}") is NO_NATIVE_FORM
    assert read("list<float64>", "{1,NaN}", "json") is NO_NATIVE_FORM


@given(st.text(st.sampled_from('{},"\\a1NUL '), max_size=20))
def test_any_array_text_reads_or_raises_value_error(text: str) -> None:
    """The caller names column and table in one error; a damaged text must reach it as one."""
    try:
        value = read_array("{" + text, str)
    except ValueError:
        return

    assert isinstance(value, list)


def test_a_reader_exists_for_an_element_of_every_depth() -> None:
    """`list` is a type of its own and never a kind without an element."""
    nested = ContractType("list", element=ContractType("uuid"))

    assert reader_for(nested, "json")("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}") == [
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    ]

"""Types to try: inputs that hypothesis draws for each, and inputs known to be hard."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.property.oracle import array_literal

Texts = st.SearchStrategy[str]


@dataclass(frozen=True, slots=True)
class Case:
    """A type, inputs that hypothesis draws for it, and inputs known to be hard."""

    type_name: str
    inputs: Texts
    edges: tuple[str, ...] = ()
    delimiter: str = ","

    @property
    def array(self) -> str:
        return f"{self.type_name}[]"


def _joined(*parts: Any) -> Texts:
    return st.tuples(
        *(part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts)
    ).map(lambda drawn: "".join(map(str, drawn)))


def _whole(low: int, high: int) -> Texts:
    return st.sampled_from([low, high, 0]).map(str) | st.integers(low, high).map(str)


def _padded(low: int, high: int, width: int = 2) -> Texts:
    return st.integers(low, high).map(lambda number: f"{number:0{width}}")


def _days(last_year: int) -> st.SearchStrategy[tuple[str, str]]:
    """Draw a day and its era; day 28 exists in every month."""
    month_and_day = _joined("-", _padded(1, 12), "-", _padded(1, 28))
    after = st.tuples(
        _joined(_padded(1, 9999, 4) | _padded(10_000, last_year), month_and_day), st.just("")
    )
    before = st.tuples(_joined(_padded(1, 4700, 4), month_and_day), st.just(" BC"))
    return after | before


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
HARD_TEXT = (
    *("", " ", "  a  ", "NULL", "null", "\\N", "\\", '"', "'", ",", ";", "{", "}", "{}", "(", "()"),
    *(
        "a,b",
        'a"b',
        "a\\b",
        '\\"',
        "\t",
        "\n",
        "\r\n",
        "\x01\x1f\x7f",
        "\u00a0",
        "\u2028",
        "\ufeff",
    ),
    *(
        "naïve",
        "\U0001f418",
        "\U0010ffff",
        "\ufffd",
        "e\u0301",
        "t",
        "f",
        "0",
        "-0",
        "NaN",
        "[2:3]={a,b}",
    ),
)
CLOCK = _joined(
    _padded(0, 23),
    ":",
    _padded(0, 59),
    ":",
    _padded(0, 59),
    st.sampled_from(["", ".5", ".000001", ".719719", ".100"]),
)
OFFSET = st.sampled_from(["+00", "-12:30", "+14", "+05:45", "-00:01:15"])
BITS = st.text("01", max_size=20)
DIGITS = st.text("0123456789", min_size=1, max_size=40)
NUMBERS = _joined(st.sampled_from(["", "-"]), DIGITS, st.just("") | _joined(".", DIGITS))


def _moments(last_year: int, offset: Texts) -> Texts:
    return st.tuples(_days(last_year), CLOCK, offset).map(
        lambda drawn: f"{drawn[0][0]} {drawn[1]}{drawn[2]}{drawn[0][1]}"
    )


def _networks(drawn: tuple[Any, int]) -> str:
    address, prefix = drawn
    return str(ipaddress.ip_network((address, min(prefix, address.max_prefixlen)), strict=False))


def _interfaces(drawn: tuple[Any, int]) -> str:
    address, prefix = drawn
    return f"{address}/{min(prefix, address.max_prefixlen)}"


def _composite(drawn: tuple[str, str]) -> str:
    quoted = drawn[0].replace("\\", "\\\\").replace('"', '""')
    return f'("{quoted}",{drawn[1]})'


ADDRESSES = st.tuples(st.ip_addresses(), st.integers(0, 128))

# JSON is written by hand, because a library would not write what PostgreSQL accepts: any number of
# digits, the same key twice, escapes that were not needed.
JSON_NUMBERS = (
    _whole(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | _joined(
        st.sampled_from(["", "-"]),
        st.integers(0, 10**20).map(str),
        st.just("") | _joined(".", DIGITS),
        st.sampled_from(["", "e5", "E-5", "e+22", "e23", "e308", "e400", "e-400"]),
    )
    | st.decimals(-1000, 1000, places=2).map(str)
)
JSON_STRINGS = st.tuples(TEXT, st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1])
)
JSON_KEYS = st.sampled_from(['"a"', '"b"', '""', '"\\u0061"']) | JSON_STRINGS
JSON = st.recursive(
    st.sampled_from(["null", "true", "false"]) | JSON_NUMBERS | JSON_STRINGS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(JSON_KEYS, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=6,
)
HARD_JSON = (
    *("2.50", '{"price": 2.50, "n": [1.0, 1]}', "100.0", "1e2", "1E400", "0.00001", "1e-05"),
    *("null", "true", "0", "-0", "-0.0", "1.0", "1.10", '""', '"null"', "[]", "{}", " [ 1 , 2 ] "),
    *('{"a": 1, "a": 2}', '{"a": {"b": null, "b": null}}', "[null]", '{"": {"": []}}'),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *(
        "9007199254740993",
        "9007199254740993.0",
        "0.1",
        "0.10000000000000001",
        "0.30000000000000004",
    ),
    *("1e22", "1e23", "1e400", "1e-400", "1e5000", "5e-324", "2e-324", "1.7976931348623157e308"),
    *(
        "1" * 5_000,
        "0." + "3" * 5_000,
        "[" * 99 + "]" * 99,
        "[" * 101 + "]" * 101,
        '{"a":' * 150 + "1" + "}" * 150,
    ),
    *('"\\ud83d\\udc18"', '"\\u001f\\u007f\\""', '"' + "[{" * 200 + '"', json.dumps('{[\\"' * 60)),
)
HARD_JSON_TEXT = (
    *('"\\u0000"', '{"\\u0000": "\\u0000"}', '"\\ud800"', '["\\udc00\\ud800"]', '{"\\ud800": 1}'),
    *("1e99999999999999999999", "1e-99999999999999999999", "0e99999999999999999999"),
    *('"\\/"', '{"a"\n:\t1\r}', '{"a": "\\ud800", "\\u0061": 1}'),
)

INTERVALS = _joined(
    _whole(-2_000, 2_000),
    " mons ",
    _whole(-40_000, 40_000),
    " days ",
    _whole(-(10**15), 10**15),
    " microseconds",
)
COORDINATES = st.floats(-1e6, 1e6).map(repr)
POINTS = _joined("(", COORDINATES, ",", COORDINATES, ")")

BUILT_IN = (
    Case("bool", st.sampled_from(["t", "f"])),
    Case(
        "bytea",
        st.binary(max_size=20).map(lambda b: "\\x" + b.hex()),
        ("\\x", "\\x00", "\\x5c22", "\\x" + "ab" * 5_000),
    ),
    Case('"char"', st.sampled_from([chr(c) for c in range(1, 128)]), ("", "\\377", "\\200")),
    Case("name", TEXT, HARD_TEXT),
    Case("int8", _whole(-(2**63), 2**63 - 1)),
    Case("int2", _whole(-(2**15), 2**15 - 1)),
    Case("int4", _whole(-(2**31), 2**31 - 1)),
    Case("text", TEXT, HARD_TEXT),
    Case("oid", _whole(0, 2**32 - 1)),
    Case("json", JSON, (*HARD_JSON, *HARD_JSON_TEXT)),
    Case(
        "float4",
        st.floats(width=32).map(repr),
        (
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "0.1",
            "7.038531e-26",
            "3.4028235e38",
            "1e-45",
            "16777217",
            "1e15",
        ),
    ),
    Case(
        "float8",
        st.floats().map(repr),
        (
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "0.1",
            "0.30000000000000004",
            "5e-324",
            "1.7976931348623157e308",
            "1e15",
            "1e16",
        ),
    ),
    Case(
        "money",
        st.integers(-(2**63) // 100 + 1, 2**63 // 100 - 1).map(str),
        ("-92233720368547758.08", "1234567.89", "-0.01"),
    ),
    Case("bpchar", TEXT, HARD_TEXT),
    Case("bpchar(5)", TEXT, HARD_TEXT),
    Case("varchar", TEXT, HARD_TEXT),
    Case("varchar(3)", TEXT, HARD_TEXT),
    Case(
        "date",
        _days(5_874_897).map("".join),
        (
            "infinity",
            "-infinity",
            "0001-01-01",
            "9999-12-31",
            "10000-01-01",
            "0001-12-31 BC",
            "2024-02-29",
        ),
    ),
    Case("time", CLOCK, ("24:00:00", "23:59:60", "00:00:00.000001")),
    Case("time(0)", CLOCK),
    Case(
        "timestamp",
        _moments(294_276, st.just("")),
        ("infinity", "-infinity", "0001-01-01", "9999-12-31 23:59:59.999999", "4714-11-24 BC"),
    ),
    Case("timestamp(3)", _moments(294_275, st.just(""))),
    Case(
        "timestamptz",
        _moments(294_275, OFFSET),
        (
            "infinity",
            "-infinity",
            "0001-01-01 00:00+00",
            "0001-01-01 00:00+01",
            "9999-12-31 23:59-01",
        ),
    ),
    Case(
        "interval",
        INTERVALS,
        ("0", "infinity", "-infinity", "1 year -1 day", "-00:00:00.000001", "178000000 years"),
    ),
    Case("timetz", _joined(CLOCK, OFFSET), ("24:00:00+15:59:59", "00:00-15:59:59")),
    Case("bit(3)", BITS),
    Case("varbit", BITS),
    Case(
        "numeric",
        NUMBERS,
        (
            "NaN",
            "Infinity",
            "-Infinity",
            "0",
            "0.000",
            "-0.00",
            "1e-500",
            "9" * 5_000,
            "1." + "0" * 5_000 + "1",
        ),
    ),
    Case(
        "numeric(10,2)",
        st.integers(-(10**9), 10**9).map(lambda n: str(Decimal(n) / 1000)),
        ("NaN", "0", "99999999.99"),
    ),
    Case("numeric(3,-2)", _whole(-99_900, 99_900), ("NaN",)),
    Case("numeric(3,5)", st.integers(-999, 999).map(lambda n: f"{n / 100_000:.5f}"), ("NaN",)),
    Case("uuid", st.uuids().map(str)),
    Case("jsonb", JSON, HARD_JSON),
    Case("xml", st.sampled_from(["<a/>", "<a>&lt;</a>", "text, and <b/>"]), ("",)),
    Case("inet", ADDRESSES.map(_interfaces), ("::ffff:1.2.3.4", "0.0.0.0", "::/0", "10.0.0.1/32")),
    Case("cidr", ADDRESSES.map(_networks)),
    Case("macaddr", st.binary(min_size=6, max_size=6).map(lambda b: b.hex(":"))),
    Case("macaddr8", st.binary(min_size=8, max_size=8).map(lambda b: b.hex(":"))),
)

OTHERS = (
    Case("mood", st.sampled_from(["sad", 'it\'s, "ok"', "NULL", "{}", ""])),
    Case(
        "price",
        st.integers(-999_999, 999_999).map(lambda n: str(Decimal(n) / 100)),
        ("NaN", "-0.004"),
    ),
    Case("net_price", st.integers(0, 999_999).map(lambda n: str(Decimal(n) / 100)), ("NaN",)),
    Case(
        "points",
        st.lists(st.none() | st.integers(0, 9).map(str), max_size=3).map(array_literal),
        ("[2:3]={1,2}", "{{1},{2}}"),
    ),
    Case("document", JSON, HARD_JSON),
    Case(
        "int4range",
        st.tuples(_whole(-9, 0), _whole(1, 9)).map(lambda d: f"[{d[0]},{d[1]})"),
        ("empty", "(,)", "[1,)", "(,1)"),
    ),
    Case(
        "tsrange",
        st.just("[2025-12-08 13:45,)"),
        ("(-infinity,infinity)", "empty", "[2000-01-01,2000-01-01]"),
    ),
    Case("span", st.floats(0, 1).map(lambda high: f"[-0.0,{high!r}]"), ("(,)", "[NaN,NaN]")),
    Case("nummultirange", st.sampled_from(["{}", "{[1,2),[3,4.50]}", "{(,)}"])),
    Case("pair", st.tuples(TEXT, NUMBERS).map(_composite), ("(,)", '("",)', "(NULL,NaN)")),
    Case("citext", TEXT, HARD_TEXT),
    Case("ltree", st.sampled_from(["", "a", "a.b.c_1"])),
    Case("hstore", st.sampled_from(["", "a=>1", 'a=>NULL,"b c"=>"d\\"e,"', '""=>"NULL"'])),
    Case("cube", st.sampled_from(["(1,2),(3,4)", "(0)", "(1e300)"])),
    Case("point", POINTS, ("(NaN,Infinity)", "(-0,0)")),
    Case("line", st.sampled_from(["{1,-1,0}", "{0.1,2,3}"])),
    Case("box", _joined(POINTS, ",", POINTS), (), ";"),
    Case("polygon", st.just("((0,0),(1,1),(1,0))")),
    Case("tsvector", st.sampled_from(["", "a", "'it''s':1A,2 b:3", "'a,b' '{}'"])),
    Case("pg_lsn", st.just("16/B374D848")),
    Case("int2vector", st.sampled_from(["", "1 2 3"])),
    Case("oidvector", st.sampled_from(["", "1 2 3"])),
    Case("regclass", st.sampled_from(["pg_class", "pg_catalog.pg_type"])),
    Case("xid8", _whole(0, 2**64 - 1)),
    Case("jsonpath", st.sampled_from(["$", '$."a"[*] ? (@ > 1)'])),
)

CASES = {case.type_name: case for case in (*BUILT_IN, *OTHERS)}

"""The column types of the storm: values for them, defaults, and what each can be altered to.

Every value is an SQL expression over a row number, so the database computes it and the same
statement writes the same rows in every run. About one value in five is NULL or odd: infinite dates,
NaN, empty strings, years before Christ, text that looks like COPY's NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How a type's values are written; `{g}` is the row's number and `{s}` a salt."""

    usual: str
    odd: str
    constant: str
    volatile: str = ""
    """A default that PostgreSQL evaluates for each existing row, which rewrites the table."""

    def value(self, number: str, salt: int, *, nullable: bool) -> str:
        usual = self.usual.format(g=f"({number})", s=salt)
        absent = "NULL" if nullable else self.constant
        return (
            f"CASE abs(({number}) + {salt}) % 11 WHEN 0 THEN {absent} WHEN 1 THEN {self.odd}"
            f" ELSE {usual} END"
        )


TYPES: Mapping[str, ColumnType] = {
    "smallint": ColumnType("(({g} * {s}) % 30000)::smallint", "'-32768'::smallint", "7"),
    "integer": ColumnType(
        "(({g} * {s}) % 1000000)::int", "'-2147483648'::int", "5", "nextval('storm_counter')::int"
    ),
    "bigint": ColumnType(
        "{g}::bigint * 1000003 * {s}",
        "9223372036854775807",
        "-5000000000",
        "nextval('storm_counter')",
    ),
    "numeric(12,2)": ColumnType(
        "(({g} * {s}) % 100000)::numeric(12,2) / 8", "'NaN'::numeric", "12.50", "random()::numeric"
    ),
    "numeric": ColumnType("({g} * {s})::numeric / 8", "'NaN'::numeric", "0.10"),
    "double precision": ColumnType(
        "({g} * {s})::float8 / 3", "'-Infinity'::float8", "0.1", "random()"
    ),
    "boolean": ColumnType("({g} + {s}) % 2 = 0", "false", "true"),
    "text": ColumnType(
        "'v' || ({g} * {s}) || 'é日'",
        r"E'\\N\ttab \"quoted\" {}'",
        "'const'",
        "clock_timestamp()::text",
    ),
    "character varying(20)": ColumnType("'c' || (({g} * {s}) % 99991)", "''", "'vc'"),
    "character(5)": ColumnType("left('x' || ({g} * {s}), 5)", "' '", "'ab'"),
    "date": ColumnType(
        "DATE '2020-01-01' + (({g} * {s}) % 3000)::int", "'infinity'::date", "DATE '1999-12-31'"
    ),
    "timestamp without time zone": ColumnType(
        "TIMESTAMP '2001-02-03 04:05:06.789' + (({g} * {s}) % 99999) * INTERVAL '1 second'",
        "TIMESTAMP '0044-03-15 12:00:00 BC'",
        "TIMESTAMP '2000-01-01'",
        "clock_timestamp()::timestamp",
    ),
    "timestamp with time zone": ColumnType(
        "TIMESTAMPTZ '2011-01-01 00:00:00.123456+00' + (({g} * {s}) % 99999) * INTERVAL '1 minute'",
        "TIMESTAMPTZ '-infinity'",
        "TIMESTAMPTZ '2000-01-01 00:00:00.75+00'",
        "clock_timestamp()",
    ),
    "bytea": ColumnType(
        r"decode(md5(({g} * {s})::text), 'hex')", r"'\x'::bytea", r"'\x00ff'::bytea"
    ),
    "uuid": ColumnType(
        "md5(({g} * {s})::text)::uuid",
        "'00000000-0000-0000-0000-000000000000'::uuid",
        "'11111111-1111-1111-1111-111111111111'::uuid",
        "gen_random_uuid()",
    ),
    "jsonb": ColumnType(
        "jsonb_build_object('a', {g}, 'b', jsonb_build_array({s}, NULL, 'é'))",
        "'null'::jsonb",
        "'{\"k\": [1, true]}'::jsonb",
    ),
    "integer[]": ColumnType("ARRAY[({g} % 1000)::int, NULL, {s}]", "'{}'::int[]", "ARRAY[1, 2]"),
    "text[]": ColumnType(
        "ARRAY['a' || {g}, '', NULL]", '\'{"NULL","a,b","\\""}\'::text[]', "ARRAY['x']"
    ),
    "inet": ColumnType(
        "('10.0.' || ({s} % 200) || '.' || ({g} % 250))::inet", "'::1'::inet", "'10.1.2.3'::inet"
    ),
    "interval": ColumnType(
        "(({g} * {s}) % 5000) * INTERVAL '1 minute'",
        "INTERVAL '-1 year 2 days'",
        "INTERVAL '1 hour'",
    ),
}

BIG = "repeat(md5(({g} + {s})::text), 300)"
"""9,600 bytes: beyond the threshold of TOAST, and external where the column's storage says so."""


@dataclass(frozen=True, slots=True)
class TypeChange:
    """`ALTER COLUMN {c} TYPE after USING using`; without `using`, by PostgreSQL's own cast."""

    before: str
    after: str
    using: str = ""


TYPE_CHANGES = (
    TypeChange("smallint", "integer"),
    TypeChange("integer", "bigint"),
    TypeChange("integer", "bigint", "{c}::bigint * 10"),
    TypeChange("integer", "integer", "{c} / 2"),
    TypeChange("integer", "numeric"),
    TypeChange("integer", "text"),
    TypeChange("bigint", "numeric"),
    TypeChange("numeric(12,2)", "numeric"),
    TypeChange("numeric(12,2)", "numeric(14,2)"),
    TypeChange("numeric(12,2)", "numeric(12,2)", "round({c} + 1, 2)"),
    TypeChange("numeric", "text"),
    TypeChange("double precision", "text"),
    TypeChange("boolean", "integer", "{c}::int"),
    TypeChange("text", "text", "upper({c})"),
    TypeChange("text", "character varying(3)", "left({c}, 3)"),
    TypeChange("text", "integer", "length({c})"),
    TypeChange("text", "jsonb", "to_jsonb({c})"),
    TypeChange("character varying(20)", "text"),
    TypeChange("character varying(20)", "character varying(40)"),
    TypeChange("character varying(20)", "character varying(3)", "left({c}, 3)"),
    TypeChange("character(5)", "text"),
    TypeChange("date", "timestamp without time zone"),
    TypeChange("timestamp without time zone", "date"),
    TypeChange("timestamp without time zone", "timestamp with time zone"),
    TypeChange("timestamp with time zone", "timestamp(0) with time zone"),
    TypeChange("timestamp with time zone", "timestamp with time zone", "{c} + INTERVAL '1 hour'"),
    TypeChange("uuid", "text"),
    TypeChange("jsonb", "text"),
    TypeChange("inet", "text"),
    TypeChange("interval", "text"),
    TypeChange("integer[]", "text"),
    TypeChange("integer[]", "bigint[]"),
    TypeChange("bytea", "text", "encode({c}, 'hex')"),
)

ALTERED: Mapping[str, ColumnType] = {
    "numeric(14,2)": TYPES["numeric(12,2)"],
    "character varying(3)": ColumnType("left('y' || ({g} * {s}), 3)", "''", "'vc'"),
    "character varying(40)": TYPES["character varying(20)"],
    "timestamp(0) with time zone": TYPES["timestamp with time zone"],
    "bigint[]": TYPES["integer[]"],
}
"""Types that only an ALTER gives."""


def type_of(name: str) -> ColumnType:
    return TYPES[name] if name in TYPES else ALTERED[name]

"""The type table: a row that lacks its reader, its JSON Schema or its Spark type fails here."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from schemas.types import (
    KINDS,
    TEXT,
    TYPES,
    CatalogType,
    ContractType,
    Kind,
    PgTypeRow,
    is_known,
    parse_type,
    resolve_type,
)
from schemas.values import NO_NATIVE_FORM, Format, reader_for
from tests.unit.schemas.test_shapes import types

each_row = pytest.mark.parametrize("row", TYPES, ids=[row.name for row in TYPES])
each_format = pytest.mark.parametrize("format", get_args(Format))

SPARK = {
    *("boolean", "int", "bigint", "float", "double", "string", "date", "timestamp_ntz"),
    *("timestamp", "binary"),
}

# One text PostgreSQL renders for each kind; a new kind fails until it is here.
TEXTS: dict[Kind, str] = {
    "bool": "t",
    "int16": "-32768",
    "int32": "2147483647",
    "int64": "-9223372036854775808",
    "uint32": "4294967295",
    "float32": "0.1",
    "float64": "-1.5e-300",
    "decimal": "12.50",
    "text": "a",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "date": "2025-12-08",
    "timestamp": "2025-12-08 13:45:21.719719",
    "timestamptz": "2025-12-08 13:45:21+00",
    "time": "24:00:00",
    "binary": "\\x00ff",
    "json": '{"a": [1, null]}',
    "list": "{}",
}


def test_every_kind_has_a_row_and_a_sample() -> None:
    """`Kind`, the table and these samples say the same list."""
    assert set(KINDS) == set(get_args(Kind)) == set(TEXTS)


@each_row
@each_format
def test_every_row_has_reader_json_schema_and_spark_type(row: PgTypeRow, format: Format) -> None:
    """Adding a PostgreSQL type is adding a row, and this says what else it needs."""
    column_type = resolve_type(row.oid, -1, {})
    value = reader_for(column_type, format)(TEXTS[row.kind])

    assert column_type == ContractType(row.kind)
    assert column_type.spark in SPARK
    Draft202012Validator.check_schema(column_type.json_schema)
    if value is not NO_NATIVE_FORM:
        Draft202012Validator(column_type.json_schema).validate(value)


@each_row
@each_format
def test_every_row_has_an_array(row: PgTypeRow, format: Format) -> None:
    """`text[]` is as common as `text`."""
    column_type = resolve_type(row.array_oid, -1, {})
    item = '"' + TEXTS[row.kind].replace("\\", "\\\\").replace('"', '\\"') + '"'
    value = reader_for(column_type, format)(f"{{{item},NULL}}")

    assert column_type == ContractType("list", element=ContractType(row.kind))
    assert column_type.spark == f"array<{ContractType(row.kind).spark}>"
    Draft202012Validator.check_schema(column_type.json_schema)
    if value is not NO_NATIVE_FORM:
        Draft202012Validator(column_type.json_schema).validate(value)


def test_no_oid_and_no_name_stands_twice() -> None:
    """The second row would never be found."""
    oids = [oid for row in TYPES for oid in (row.oid, row.array_oid)]

    assert len(set(oids)) == len(oids)
    assert len({row.name for row in TYPES}) == len(TYPES)
    assert all(is_known(oid) for oid in oids)


@given(types)
def test_a_type_comes_back_from_its_text(column_type: ContractType) -> None:
    """The lake knows a column's type from KV `schemas` alone."""
    assert parse_type(str(column_type)) == column_type


@pytest.mark.parametrize(
    "text",
    ["", "int", "list", "list<", "list<>", "list<list>", "decimal()", "decimal(1)", "bool(1,2)"],
)
def test_a_text_that_names_no_type_is_refused(text: str) -> None:
    """A newer bridge may know types that this reader does not; it must not guess."""
    with pytest.raises(ValueError, match="not a type of this contract"):
        parse_type(text)


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("modifier", "text", "spark"),
    [
        (-1, "decimal", "string"),
        (_numeric(10, 2), "decimal(10,2)", "decimal(10,2)"),
        (_numeric(38, 0), "decimal(38,0)", "decimal(38,0)"),
        (_numeric(39, 0), "decimal(39,0)", "string"),
        (_numeric(3, 5), "decimal(3,5)", "decimal(5,5)"),
        (_numeric(3, -2), "decimal(3,-2)", "decimal(5,0)"),
        (_numeric(38, -1), "decimal(38,-1)", "string"),
        (_numeric(1000, 1000), "decimal(1000,1000)", "string"),
        (_numeric(1000, -1000), "decimal(1000,-1000)", "string"),
    ],
)
def test_numeric_modifiers_give_precision_scale_and_room_in_spark(
    modifier: int, text: str, spark: str
) -> None:
    """Scale is signed and may exceed the precision; what 38 digits cannot hold stays text."""
    column_type = resolve_type(1700, modifier, {})

    assert str(column_type) == text
    assert column_type.spark == spark
    assert str(resolve_type(1231, modifier, {})) == f"list<{text}>"


ENUM, DOMAIN, NESTED, DOMAIN_ARRAY, BOX_ARRAY, PAIR, PAIRS = range(90_000, 90_007)
CATALOG = {
    found.oid: found
    for found in (
        CatalogType(ENUM, "mood"),
        CatalogType(DOMAIN, "price", base_oid=1700, base_modifier=_numeric(6, 2)),
        CatalogType(NESTED, "net_price", base_oid=DOMAIN),
        CatalogType(DOMAIN_ARRAY, "_net_price", element_oid=NESTED),
        CatalogType(BOX_ARRAY, "_box", element_oid=603, delimiter=";"),
        CatalogType(PAIR, "pair", base_oid=1007),
        CatalogType(PAIRS, "_pair", element_oid=PAIR),
    )
}


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (ENUM, "text"),
        (DOMAIN, "decimal(6,2)"),
        (NESTED, "decimal(6,2)"),
        (DOMAIN_ARRAY, "list<decimal(6,2)>"),
        (BOX_ARRAY, "text"),
        (PAIR, "list<int32>"),
        (PAIRS, "text"),
        (99_999, "text"),
    ],
)
def test_types_that_are_not_built_in_resolve_through_the_catalog(oid: int, text: str) -> None:
    """Domains follow their base; what nobody knows is PostgreSQL's text, which is exact."""
    assert str(resolve_type(oid, -1, CATALOG)) == text


def test_the_modifier_of_a_domain_is_the_domains_own() -> None:
    """A column of a domain has the modifier -1, and the precision is in the domain."""
    assert resolve_type(DOMAIN, -1, CATALOG).precision == 6
    assert TEXT.spark == "string"

"""The type table against PostgreSQL's own catalog."""

from __future__ import annotations

import pytest

from schemas.types import TYPES, resolve_type
from tests.conftest import Connection
from tests.contract.golden import ARRAYS, TEXTS, WITHOUT_NATIVE_FORM
from tests.property.oracle import Oracle

# The golden row has types with a length where it shows.
COLUMN_TYPES = {"char": '"char"', "bpchar": "bpchar(5)", "bit": "bit(3)"}


def test_oids_are_the_catalogs(connection: Connection) -> None:
    """A wrong digit would read one type as another, or an array as a scalar."""
    rows = connection.execute(
        "SELECT typname, oid::bigint, typarray::bigint FROM pg_type"
        " WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = ANY(%s)",
        [[row.name for row in TYPES]],
    )

    assert {row.name: (row.oid, row.array_oid) for row in TYPES} == {
        name: (oid, array_oid) for name, oid, array_oid in rows
    }


def test_every_array_of_the_table_is_delimited_by_commas(connection: Connection) -> None:
    """The array reader knows no other delimiter; `box`, which has one, is not in the table."""
    rows = connection.execute(
        "SELECT typname FROM pg_type WHERE oid = ANY(%s::bigint[]::oid[]) AND typdelim <> ','",
        [[row.oid for row in TYPES]],
    )

    assert rows.fetchall() == []


@pytest.mark.parametrize(
    "type_name",
    [
        *("numeric", "numeric(10,2)", "numeric(1,0)", "numeric(3,-2)", "numeric(3,5)"),
        *("numeric(1000,1000)", "numeric(1000,-1000)", "numeric(38,37)"),
    ],
)
def test_precision_and_scale_are_what_postgresql_says(oracle: Oracle, type_name: str) -> None:
    """The modifier packs both, and the scale is signed."""
    assert str(oracle.type_of(type_name)) == type_name.replace("numeric", "decimal")


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("mood", "text"),
        ("mood[]", "list<text>"),
        ("price", "decimal(6,2)"),
        ("price[]", "list<decimal(6,2)>"),
        ("net_price[]", "list<decimal(6,2)>"),
        ("points", "list<int32>"),
        ("points[]", "text"),
        ("document[]", "list<json>"),
        ("pair[]", "list<text>"),
        ("int4range[]", "list<text>"),
        ("line", "text"),
        ("box[]", "text"),
        ("int2vector", "text"),
        ("citext[]", "list<text>"),
        ("bigserial", "int64"),
        ("timestamp(3) with time zone", "timestamptz"),
    ],
)
def test_types_resolve_through_the_catalog(oracle: Oracle, type_name: str, expected: str) -> None:
    """Domains follow their base; `line` looks like an array and is none."""
    assert str(oracle.type_of(type_name)) == expected


def test_an_unknown_oid_is_text() -> None:
    """PostgreSQL's own text is exact for a type that nobody has heard of."""
    assert str(resolve_type(4_000_000_000, -1, {})) == "text"


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_the_golden_texts_are_postgresqls_own(oracle: Oracle, name: str) -> None:
    """A golden row of texts that PostgreSQL never writes would guard nothing."""
    scalars = [TEXTS[name], WITHOUT_NATIVE_FORM.get(name, TEXTS[name])]
    array = ARRAYS.get(name, "{}")

    assert oracle.render(COLUMN_TYPES.get(name, name), scalars) == scalars
    assert oracle.render(f"{COLUMN_TYPES.get(name, name)}[]", [array]) == [array]

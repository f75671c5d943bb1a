"""Table shapes: the map and back, and what the fingerprint covers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.names import TableName
from schemas.shapes import NO_FILL, Column, TableShape
from schemas.types import KINDS, TYPES, ContractType, parse_type
from tests.unit.schemas.samples import MOMENT, SHAPE, SOURCE
from tests.unit.schemas.test_names import names

plain_types = st.sampled_from([kind for kind in KINDS if kind != "list"]).map(ContractType)
decimals = st.builds(
    ContractType, st.just("decimal"), st.integers(1, 1000), st.integers(-1000, 1000)
)
types = st.one_of(
    plain_types,
    decimals,
    (plain_types | decimals).map(lambda element: ContractType("list", element=element)),
)
columns = st.builds(
    Column,
    name=st.text(min_size=1, max_size=20),
    position=st.integers(1, 1600),
    data_type=st.sampled_from([row.name for row in TYPES]),
    type_oid=st.integers(1, 2**32 - 1),
    type_modifier=st.integers(-1, 2**31 - 1),
    type=types,
    is_nullable=st.booleans(),
    column_default=st.none() | st.text(max_size=10),
    key=st.none() | st.integers(0, 31),
    fill=st.just(NO_FILL) | st.none() | st.integers() | st.text() | st.lists(st.integers()),
)
shapes = st.builds(
    TableShape,
    name=names,
    relation_id=st.integers(1, 2**32 - 1),
    replica_identity=st.sampled_from(["default", "full", "index", "nothing"]),
    columns=st.lists(columns, max_size=4).map(tuple),
    rewritten=st.booleans(),
)


@given(shapes)
def test_a_shape_comes_back_from_its_map(shape: TableShape) -> None:
    """The bridge reads after a restart what it wrote before it; dots in names included."""
    assert TableShape.from_map(shape.to_map(timestamp=MOMENT, lsn=1, source=SOURCE)) == shape


@pytest.mark.parametrize(
    "name", [TableName("a.b", "c"), TableName("a", "b.c"), TableName(".", ".")]
)
def test_dots_in_names_come_back_where_they_were(name: TableName) -> None:
    """`schema` carries the qualified name, and a dot may belong to either part."""
    shape = replace(SHAPE, name=name)

    assert TableShape.from_map(shape.to_map(timestamp=MOMENT, lsn=1, source=SOURCE)).name == name


def test_the_map_has_the_contracts_fields() -> None:
    """Consumers in other languages read these names."""
    fields = SHAPE.to_map(timestamp=MOMENT, lsn=7, source=SOURCE)

    assert set(fields) == {
        *("table", "schema", "timestamp", "relation_id", "replica_identity", "fingerprint"),
        *("lsn", "source", "columns"),
    }
    assert (fields["table"], fields["schema"], fields["lsn"]) == ("users", "public.users", 7)
    assert fields["columns"][1] == {
        "name": "balance",
        "position": 2,
        "data_type": "numeric(10,2)",
        "is_nullable": True,
        "column_default": None,
        "type_oid": 1700,
        "type_modifier": 655366,
        "type": "decimal(10,2)",
        "key": None,
    }


def _with_column(**change: Any) -> TableShape:
    return replace(SHAPE, columns=(replace(SHAPE.columns[0], **change), *SHAPE.columns[1:]))


MEANINGFUL: dict[str, Callable[[], TableShape]] = {
    "schema": lambda: replace(SHAPE, name=TableName("sales", "users")),
    "table": lambda: replace(SHAPE, name=TableName("public", "people")),
    "relation_id": lambda: replace(SHAPE, relation_id=1),
    "replica_identity": lambda: replace(SHAPE, replica_identity="full"),
    "column added": lambda: replace(SHAPE, columns=(*SHAPE.columns, SHAPE.columns[0])),
    "column dropped": lambda: replace(SHAPE, columns=SHAPE.columns[:-1]),
    "order of columns": lambda: replace(SHAPE, columns=SHAPE.columns[::-1]),
    "column name": lambda: _with_column(name="key"),
    "column position": lambda: _with_column(position=9),
    "type_oid": lambda: _with_column(type_oid=20),
    "type_modifier": lambda: _with_column(type_modifier=8),
    "type": lambda: _with_column(type=parse_type("int64")),
    "is_nullable": lambda: _with_column(is_nullable=True),
    "key": lambda: _with_column(key=1),
}


@pytest.mark.parametrize("change", MEANINGFUL.values(), ids=list(MEANINGFUL))
def test_each_meaningful_change_changes_the_fingerprint(change: Callable[[], TableShape]) -> None:
    """A change of shape that goes unnoticed leaves rows described by the wrong columns."""
    assert change().fingerprint != SHAPE.fingerprint


def test_moments_positions_and_defaults_leave_the_fingerprint_alone() -> None:
    """Else every restart would announce a new shape that is the old one."""
    one = SHAPE.to_map(timestamp=MOMENT, lsn=1, source=SOURCE)
    other = SHAPE.to_map(timestamp="2026-01-01T00:00:00.000000Z", lsn=2, source=SOURCE)

    assert one["fingerprint"] == other["fingerprint"]
    assert _with_column(column_default=None).fingerprint == SHAPE.fingerprint
    assert _with_column(data_type="int4").fingerprint == SHAPE.fingerprint


def test_what_ddl_did_to_existing_rows_leaves_the_fingerprint_alone() -> None:
    """It says how rows got their values, not what a row means."""
    assert _with_column(fill=5).fingerprint == SHAPE.fingerprint
    assert replace(SHAPE, rewritten=True).fingerprint == SHAPE.fingerprint


def test_fill_and_rewritten_are_absent_keys_unless_they_say_something() -> None:
    """`fill: null` says that existing rows hold NULL; no `fill` says nothing."""
    plain = SHAPE.to_map(timestamp=MOMENT, lsn=1, source=SOURCE)
    told = replace(_with_column(fill=None), rewritten=True)
    fields = told.to_map(timestamp=MOMENT, lsn=1, source=SOURCE)

    assert "rewritten" not in plain
    assert "fill" not in plain["columns"][0]
    assert fields["rewritten"] is True
    assert fields["columns"][0]["fill"] is None
    assert TableShape.from_map(fields).columns[0].fill is None


def test_a_column_can_be_hashed_and_copied_whatever_fills_it() -> None:
    """A fill may be a list or a map; the sentinel stays one object through pickle."""
    filled = replace(SHAPE.columns[0], fill=[1, {"a": 2}])

    assert hash(filled) == hash(SHAPE.columns[0])
    assert pickle.loads(pickle.dumps(SHAPE.columns[0])).fill is NO_FILL


def test_a_fingerprint_is_the_same_in_every_version() -> None:
    """It is stored: a bridge that computes another one announces every table once more."""
    named = replace(SHAPE, name=TableName("größe", "🐘"))

    assert (SHAPE.fingerprint, named.fingerprint) == ("768bd0ec840d8632", "feeaaeba898bebba")


def test_two_tables_with_the_same_qualified_text_differ() -> None:
    """`a."b.c"` and `"a.b".c` print alike."""
    one = replace(SHAPE, name=TableName("a", "b.c"))
    other = replace(SHAPE, name=TableName("a.b", "c"))

    assert one.fingerprint != other.fingerprint


def test_the_key_is_in_key_order() -> None:
    """PRIMARY KEY (b, a) compares b first, whatever the order of the columns."""
    first, second, third = SHAPE.columns
    shape = replace(SHAPE, columns=(replace(first, key=1), second, replace(third, key=0)))

    assert [column.name for column in shape.key] == ["tags", "id"]


def test_a_table_without_a_key_has_an_empty_one() -> None:
    """Only its inserts can be told apart; callers ask, and get no column."""
    assert replace(SHAPE, columns=SHAPE.columns[1:]).key == ()

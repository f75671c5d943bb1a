"""Values are exact: what PostgreSQL holds comes back as the same value after the wire.

PostgreSQL renders values under the pinned settings, the reader takes the text, both codecs carry
it, a consumer writes it back as PostgreSQL's input, and PostgreSQL says whether it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.codecs import CODECS, Codec
from schemas.types import TYPES, ContractType
from schemas.values import NO_NATIVE_FORM, reader_for
from tests.property.cases import CASES, Case
from tests.property.oracle import Oracle, array_literal, assert_same, to_postgres_or_text

BATCH = 40

few = settings(max_examples=15, suppress_health_check=list(HealthCheck))


each_type = pytest.mark.parametrize("type_name", CASES)


def test_every_row_of_the_type_table_is_tried() -> None:
    """A type added to the table is judged by PostgreSQL before anybody relies on it."""
    tried = {name.strip('"').partition("(")[0] for name in CASES}

    assert {row.name for row in TYPES} <= tried


@each_type
def test_hard_values_come_back_as_they_were(oracle: Oracle, type_name: str) -> None:
    """Infinity, BC, NaN, empty, huge, quoted: each broke somebody's parser."""
    _judge(oracle, type_name, CASES[type_name].edges)


@each_type
@few
@given(data=st.data())
def test_any_value_comes_back_as_it_was(
    oracle: Oracle, type_name: str, data: st.DataObject
) -> None:
    """Hypothesis finds what nobody thought of; PostgreSQL says whether it survived."""
    drawn = data.draw(st.lists(CASES[type_name].inputs, min_size=1, max_size=BATCH))

    _judge(oracle, type_name, drawn)


@each_type
def test_arrays_of_hard_values_come_back_as_they_were(oracle: Oracle, type_name: str) -> None:
    """Each alone, all together, nested, with NULL, with bounds of their own, and none at all."""
    case = CASES[type_name]
    edges: list[str | None] = [*case.edges, None]
    literals = [
        *("{}", "{NULL}", _array(case, [[None, None], [None, None]])),
        *(_array(case, [edge]) for edge in edges),
        *(_array(case, [[edge, None], [None, edge]]) for edge in edges),
        _array(case, edges),
        _array(case, [[[edge] for edge in edges]]),
        f"[0:{len(edges) - 1}]={_array(case, edges)}",
        f"[-5:-5][2:{len(edges) + 1}]={_array(case, [edges])}",
    ]

    _judge(oracle, case.array, literals)


@each_type
@few
@given(data=st.data())
def test_any_array_comes_back_as_it_was(
    oracle: Oracle, type_name: str, data: st.DataObject
) -> None:
    """Of any element, of one to three dimensions."""
    case = CASES[type_name]
    items = data.draw(st.lists(st.none() | case.inputs, min_size=4, max_size=BATCH))
    half = len(items) // 2
    literals = [
        _array(case, items),
        _array(case, [items[:half], items[half : 2 * half]]),
        _array(case, [[[item] for item in items]]),
        *(_array(case, [item]) for item in items),
    ]

    _judge(oracle, case.array, literals)


def _array(case: Case, items: Sequence[Any]) -> str:
    return array_literal(items, delimiter=case.delimiter)


def _judge(oracle: Oracle, type_name: str, inputs: Sequence[str]) -> None:
    texts = oracle.render(type_name, inputs)
    column_type = oracle.type_of(type_name)
    for codec in CODECS.values():
        back = [to_postgres_or_text(*got, column_type) for got in _carry(texts, column_type, codec)]
        assert_same(oracle, type_name, back, texts)


def _carry(
    texts: Sequence[str], column_type: ContractType, codec: Codec
) -> Iterator[tuple[Any, bool]]:
    """Read, encode and decode; give each value with whether it travels as text."""
    read = reader_for(column_type, codec.format)
    schema = Draft202012Validator(column_type.json_schema)
    values = [read(text) for text in texts]
    as_text = [value is NO_NATIVE_FORM for value in values]
    sent = [text if odd else value for text, value, odd in zip(texts, values, as_text, strict=True)]
    got = codec.decode(codec.encode({"data": sent}))["data"]
    for value, odd in zip(got, as_text, strict=True):
        assert value is not None, "null on the wire means SQL NULL"
        assert odd or schema.is_valid(value), value
        yield value, odd

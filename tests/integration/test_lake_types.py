"""Every type of the contract, value by value, from PostgreSQL into the lake and back.

PostgreSQL is the judge: what Spark and pyiceberg read is written as text, PostgreSQL reads that as
the column's type, and what it then writes must be what it wrote of the original.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.columns import TEXT_COLUMN, read_doc
from lake_consumer.iceberg.reading import open_catalog
from schemas.types import KINDS, ContractType
from tests.conftest import Connection
from tests.integration.test_snapshot_values import HARD_VALUES, fill, values
from tests.property.oracle import Oracle, array_literal, assert_same
from tests.support.lake import LakeRig
from tests.support.rig import Rig

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

__all__ = ["values"]

NATIVE = {
    "bool": "boolean", "int2": "int", "int4": "int", "int8": "long", "oid": "long",
    "float4": "float", "float8": "double", "numeric(10,2)": "decimal(10, 2)",
    "price": "decimal(6, 2)", "date": "date", "timestamp": "timestamp",
    "timestamptz": "timestamptz", "bytea": "binary", "uuid": "uuid", "int4[]": "list<int>",
    "uuid[]": "list<uuid>", "timestamptz[]": "list<timestamptz>", "text": "string",
    "mood": "string", "numeric": "string", "interval": "string", "jsonb": "string",
    "int4range": "string",
}  # fmt: skip
"""Types that Iceberg has are not text; a few that it has not, are."""


@pytest.fixture
def oracle(postgres: EmbeddedPostgres, connection: Connection) -> Iterator[Oracle]:
    """A session of its own: the oracle pins settings that the writer must not have."""
    with psycopg.connect(postgres.dsn(connection.info.dbname), autocommit=True) as judge:
        yield Oracle(judge)


@pytest.fixture
def bridge(
    postgres: EmbeddedPostgres, nats: EmbeddedNats, values: Connection, tmp_path: Path
) -> Iterator[Rig]:
    with Rig(values, postgres, nats, tmp_path) as pipeline:
        yield pipeline


def test_every_value_of_every_type_reads_back_as_postgresql_wrote_it(
    bridge: Rig, rig: LakeRig, oracle: Oracle
) -> None:
    """Through the bridge, the stream and the lake; by two engines that share no code."""
    bridge.start()
    count = fill(bridge.connection)
    bridge.stream()
    rig.drain()

    table = open_catalog(rig.catalog, rig.warehouse).load_table("public.hard")
    columns = {f.name: read_doc(f.name, f.doc) for f in table.schema().fields}
    types = {column.name: column.type for column in columns.values() if column is not None}
    engines = {
        "pyiceberg": table.scan().to_arrow().to_pylist(),
        "Spark": rig.spark.table("lake.public.hard").toArrow().to_pylist(),
    }
    assert count > 300
    assert {kind.kind for kind in types.values()} == set(KINDS)
    for engine, rows in engines.items():
        assert len(rows) == count, engine
        found = {row["id"]: row for row in rows}
        for n, (type_name, _) in enumerate(HARD_VALUES):
            _assert_column(oracle, found, f"c{n}", type_name, types[f"c{n}"])
    iceberg = {name: str(table.schema().find_field(f"c{n}").field_type)
               for n, (name, _) in enumerate(HARD_VALUES)}  # fmt: skip
    assert {name: iceberg[name] for name in NATIVE} == NATIVE
    gc.collect()


def _assert_column(
    oracle: Oracle,
    found: dict[int, dict[str, Any]],
    name: str,
    type_name: str,
    type: ContractType,
) -> None:
    texts = oracle.written("hard", name)
    ours = [_text(found[number], name, type) for number in texts]
    assert_same(oracle, type_name, ours, list(texts.values()))


def _text(row: dict[str, Any], name: str, type: ContractType) -> str:
    """A value of the lake as PostgreSQL's input."""
    noted = dict(row[TEXT_COLUMN] or ())
    if name in noted:
        assert row[name] is None, f"{name} is in the text map and in its column"
        return str(noted[name])
    assert row[name] is not None, f"{name} is lost"
    return _write(row[name], type)


def _write(value: Any, type: ContractType) -> str:
    if type.element is not None:
        element = type.element
        return array_literal(value, lambda item: _write(item, element))
    match value:
        case bytes() | bytearray():
            return "\\x" + bytes(value).hex()
        case float():
            return repr(value)
    return str(value)

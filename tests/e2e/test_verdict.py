"""The demo's judge: it must be able to say no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from examples.demo.verdict import TEXT_COLUMN, differences, judge
from schemas.names import TableName
from tests.conftest import Connection

TABLE = TableName("public", "t")
ROWS: list[dict[str, Any]] = [
    {"id": 1, "word": "", "amount": "1.10", "moment": "2025-01-01T00:00:00+00:00", "list": [1]},
    {"id": 2, "word": None, "amount": None, "moment": None, "list": None},
    {"id": 3, "word": "ä", "amount": "-0.01", "moment": "1999-12-31T23:59:59.999999Z", "list": []},
]


@pytest.fixture
def table(connection: Connection) -> Connection:
    connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, amount numeric(9, 2), moment timestamptz,"
        " list int[])"
    )
    for row in ROWS:
        connection.execute("INSERT INTO t VALUES (%s, %s, %s, %s, %s)", list(row.values()))
    return connection


def mirror(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema(
        [
            ("id", pa.int32()),
            ("word", pa.string()),
            ("amount", pa.string()),
            ("moment", pa.string()),
            ("list", pa.list_(pa.int32())),
        ]
    ))  # fmt: skip


def with_cell(number: int, name: str, value: object) -> list[dict[str, Any]]:
    return [{**row, name: value} if row["id"] == number else row for row in ROWS]


def test_equal_rows_are_equal(table: Connection) -> None:
    """The order of rows means nothing, and neither does the spelling of a time zone."""
    assert differences(table, TABLE, mirror(ROWS[::-1])) == ([], [])


@pytest.mark.parametrize(
    ("rows", "missing", "surplus"),
    [
        (with_cell(1, "word", None), 1, 1),
        (with_cell(2, "word", ""), 1, 1),
        (with_cell(1, "amount", "1.11"), 1, 1),
        (with_cell(3, "amount", "0.01"), 1, 1),
        (with_cell(1, "moment", "2025-01-01T00:00:00+01:00"), 1, 1),
        (with_cell(3, "moment", "1999-12-31T23:59:59.999998Z"), 1, 1),
        (with_cell(3, "list", None), 1, 1),
        (with_cell(1, "list", [1, None]), 1, 1),
        (with_cell(1, "id", 4), 1, 1),
        (ROWS[1:], 1, 0),
        ([*ROWS, ROWS[0]], 0, 1),
        ([], 3, 0),
    ],
)
def test_a_planted_difference_is_found(
    table: Connection, rows: list[dict[str, Any]], missing: int, surplus: int
) -> None:
    """A judge that cannot say no proves nothing."""
    only_database, only_lake = differences(table, TABLE, mirror(rows))

    assert (len(only_database), len(only_lake)) == (missing, surplus)


def test_a_column_that_the_lake_does_not_have_is_a_difference(table: Connection) -> None:
    """Comparing only what both have would hide a column that was never mirrored."""
    only_database, _ = differences(table, TABLE, mirror(ROWS).drop_columns(["word"]))

    assert len(only_database) == 2


def test_text_of_a_value_without_native_form_is_compared(connection: Connection) -> None:
    """An infinite date is null in its column, and stands in the row's text map."""
    connection.execute("CREATE TABLE t (id int, day date)")
    connection.execute("INSERT INTO t VALUES (1, 'infinity')")
    texts = pa.map_(pa.string(), pa.string())
    schema = pa.schema([("id", pa.int32()), ("day", pa.date32()), (TEXT_COLUMN, texts)])

    def lake(text: str) -> pa.Table:
        row = {"id": 1, "day": None, TEXT_COLUMN: [("day", text)]}
        return pa.Table.from_pylist([row], schema=schema)

    assert differences(connection, TABLE, lake("infinity")) == ([], [])
    assert differences(connection, TABLE, lake("-infinity")) != ([], [])


@pytest.mark.parametrize(
    ("document", "equal"),
    [('{"b": 1.0, "a": []}', True), ('{"b": 1.01, "a": []}', False), ('{"b": "1.0"}', False)],
)
def test_jsonb_is_compared_as_postgresql_compares_it(
    connection: Connection, document: str, equal: bool
) -> None:
    """Its numbers keep trailing zeros that mean nothing, in JSON and to PostgreSQL."""
    connection.execute("CREATE TABLE t (id int, document jsonb)")
    connection.execute("""INSERT INTO t VALUES (1, '{"a": [], "b": 1.00}')""")

    found = differences(connection, TABLE, pa.table({"id": [1], "document": [document]}))

    assert (found == ([], [])) is equal


@pytest.mark.parametrize(
    ("logged", "equal"),
    [
        (["INSERT"] * 3, True),
        (["INSERT"] * 2, False),
        (["INSERT"] * 4, False),
        (["INSERT"] * 2 + ["UPDATE"], False),
    ],
)
def test_the_change_log_is_counted_by_operation(
    table: Connection, tmp_path: Path, logged: list[str], equal: bool
) -> None:
    """A change stored twice leaves the mirror right; only the log shows it."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    fill = _filler(catalog)
    fill("public", mirror(ROWS))
    fill("public__changes", pa.table({"operation": logged}))

    verdict = judge(table, catalog, TABLE, Counter({(TABLE, "INSERT"): 3}))

    assert verdict.equal is equal
    assert bool(list(verdict.explain())) is not equal
    catalog.close()


def _filler(catalog: SqlCatalog) -> Callable[[str, pa.Table], None]:
    def fill(namespace: str, rows: pa.Table) -> None:
        catalog.create_namespace(namespace)
        catalog.create_table((namespace, TABLE.table), schema=rows.schema).append(rows)

    return fill

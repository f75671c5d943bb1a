"""SQL by DuckDB, in memory and shut in: it sees the lake's tables and nothing else.

Only the tables that the SQL names are opened, each as a view on an Arrow dataset. DuckDB may touch
no file and no network, install nothing and change none of its settings; the SQL may only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from lake_consumer.errors import QueryFailed
from lake_consumer.iceberg.names import CATALOG
from schemas.names import DEFAULT_SCHEMA

SETTINGS: Mapping[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
BATCH_ROWS = 10_000
READING = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})

Parts = tuple[str, ...]
"""A table's name as the SQL spells it: `users`, `public.users` or `lake.public.users`."""

Place = tuple[str, str]
"""Namespace and name in the lake."""

_PART = r'"(?:[^"]|"")*"|[^".\s]+'
_NAME = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")


@contextmanager
def answer(
    sql: str, find: Callable[[Parts], Place], open_table: Callable[[Place], ds.Dataset]
) -> Iterator[pa.RecordBatchReader]:
    """Run one statement; its rows come as they are asked for."""
    with duckdb.connect(":memory:", config=dict(SETTINGS)) as connection, _clear_errors():
        _require_reading(connection, sql)
        # The time zone belongs to an extension that is built in, so it is no setting of the start.
        _execute(connection, "SET TimeZone = 'UTC'")
        _execute(connection, f"ATTACH ':memory:' AS {CATALOG}")
        _execute(connection, f"CREATE SCHEMA {CATALOG}.{quote(DEFAULT_SCHEMA)}")
        _execute(connection, f"USE {CATALOG}.{quote(DEFAULT_SCHEMA)}")
        places = sorted({find(name) for name in table_names(connection, sql)})
        for at, (namespace, name) in enumerate(places):
            source, schema = f"_lake_{at}", f"{CATALOG}.{quote(namespace)}"
            connection.register(source, open_table((namespace, name)))
            _execute(connection, f"CREATE SCHEMA IF NOT EXISTS {schema}")
            # Names are quoted, and the source's is ours.
            view = f"{schema}.{quote(name)}"
            _execute(connection, f"CREATE VIEW {view} AS FROM temp.main.{source}")
        _execute(connection, "SET lock_configuration = true")
        yield connection.sql(sql).to_arrow_reader(BATCH_ROWS)


def table_names(connection: duckdb.DuckDBPyConnection, sql: str) -> set[Parts]:
    """The tables a statement reads; its own common table expressions are none of them."""
    found = connection.get_table_names(sql, qualified=True)
    return {read_name(text) for text in found}


def read_name(text: str) -> Parts:
    """Take apart what DuckDB says of a table: its quoted parts, and perhaps an alias behind."""
    name = _NAME.match(text)
    parts = re.findall(_PART, name[0]) if name else [text]
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


def quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _execute(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    connection.execute(statement)


def _require_reading(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryFailed(
            f"the SQL has {len(statements)} statements", advice="Give one SELECT at a time."
        )
    if statements[0].type not in READING:
        raise QueryFailed(
            f"{statements[0].type.name} is not a query",
            advice="The lake can only be read here; give a SELECT.",
        )


@contextmanager
def _clear_errors() -> Iterator[None]:
    """DuckDB's own words are good: they quote the line and point at the place."""
    try:
        yield
    except duckdb.Error as error:
        raise QueryFailed(str(error)) from error

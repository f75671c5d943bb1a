"""SQL by DuckDB, in memory and shut in: it sees the lake's tables and nothing else.

Only the tables that the SQL names are opened, each as a view. DuckDB may read the data files of
these tables, but no other file and no network, install nothing and change none of its settings; the
SQL may only read.

Whatever ends a query, its last row, a closed pipe, Ctrl-C or an error, ends DuckDB's tasks too: the
result and the connection are closed before `answer` returns, so nothing is left that could meet an
interpreter which is shutting down.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from lake_consumer.errors import QueryFailed
from lake_consumer.iceberg.names import CATALOG
from lake_consumer.query.failures import explain, explain_opening
from lake_consumer.query.interrupts import cancel_on_interrupt
from lake_consumer.reading.parquet_scan import literal, quote
from lake_consumer.reading.relations import Relation
from schemas.names import DEFAULT_SCHEMA

SETTINGS: Mapping[str, str | bool | int | float | list[str]] = {
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
    sql: str, find: Callable[[Parts], Place], open_table: Callable[[Place], Relation]
) -> Iterator[pa.RecordBatchReader]:
    """Run one statement; its rows come as they are asked for."""
    allowed: set[str] = set()
    with _connect() as connection, _clear_errors(connection, allowed):
        _require_reading(connection, sql)
        # The time zone belongs to an extension that is built in, so it is no setting of the start.
        _execute(connection, "SET TimeZone = 'UTC'")
        _execute(connection, f"ATTACH ':memory:' AS {CATALOG}")
        _execute(connection, f"CREATE SCHEMA {CATALOG}.{quote(DEFAULT_SCHEMA)}")
        _execute(connection, f"USE {CATALOG}.{quote(DEFAULT_SCHEMA)}")
        places = sorted({find(name) for name in table_names(connection, sql)})
        relations = [open_table(place) for place in places]
        _require_distinct(places)
        for at, (place, relation) in enumerate(zip(places, relations, strict=True)):
            select = relation.select(connection, f"_lake_{at}")
            _create_view(connection, place, relation.columns, select)
        allowed.update(path for relation in relations for path in relation.paths)
        _shut_in(connection, sorted(allowed))
        reader = connection.sql(sql).to_arrow_reader(BATCH_ROWS)
        try:
            yield reader
        finally:
            # A result that was not read to its end is still being made.
            connection.interrupt()
            reader.close()


@contextmanager
def _connect() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:", config=dict(SETTINGS))
    try:
        yield connection
    finally:
        connection.interrupt()
        connection.close()


def _require_distinct(places: list[Place]) -> None:
    """DuckDB takes names that differ in upper and lower case for one."""
    folded = Counter(tuple(map(str.lower, place)) for place in places)
    alike = [".".join(place) for place in places if folded[*map(str.lower, place)] > 1]
    if alike:
        raise QueryFailed(
            f"{' and '.join(alike)} differ in upper and lower case alone",
            advice="DuckDB cannot tell them apart in one query; ask for one at a time.",
        )


def column_names(columns: Sequence[str]) -> list[str]:
    """Names that DuckDB can tell apart: of columns that differ in case alone, it shows the first.

    All of them get their place as a suffix, so that none is shown for another.
    """
    folded = Counter(map(str.lower, columns))
    return [
        name if folded[name.lower()] == 1 else f"{name}__{at}"
        for at, name in enumerate(columns, start=1)
    ]


def _create_view(
    connection: duckdb.DuckDBPyConnection, place: Place, columns: Sequence[str], select: str
) -> None:
    namespace, name = (quote(part) for part in place)
    shown = column_names(columns)
    if shown != list(columns):
        names = ", ".join(new for new, old in zip(shown, columns, strict=True) if new != old)
        sys.stderr.write(f"{'.'.join(place)}: columns that differ in case alone are {names}\n")
    _execute(connection, f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{namespace}")
    listed = ", ".join(map(quote, shown))
    try:
        _execute(connection, f"CREATE VIEW {CATALOG}.{namespace}.{name} ({listed}) AS {select}")
    except duckdb.Error as error:
        raise explain_opening(".".join(place), error) from error


def _shut_in(connection: duckdb.DuckDBPyConnection, paths: list[str]) -> None:
    """Leave DuckDB these files, and nothing else outside of the process."""
    _execute(connection, f"SET allowed_paths = [{', '.join(map(literal, paths))}]")
    _execute(connection, "SET enable_external_access = false")
    _execute(connection, "SET lock_configuration = true")


def table_names(connection: duckdb.DuckDBPyConnection, sql: str) -> set[Parts]:
    """The tables a statement reads; its own common table expressions are none of them."""
    found = connection.get_table_names(sql, qualified=True)
    return {read_name(text) for text in found}


def read_name(text: str) -> Parts:
    """Take apart what DuckDB says of a table: its quoted parts, and perhaps an alias behind."""
    name = _NAME.match(text)
    parts = re.findall(_PART, name[0]) if name else [text]
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


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
def _clear_errors(
    connection: duckdb.DuckDBPyConnection, allowed: Collection[str]
) -> Iterator[None]:
    """DuckDB's own words are good: they quote the line and point at the place."""
    with cancel_on_interrupt(connection.interrupt) as interrupts:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            interrupts.check()
            raise explain(error, allowed) from error

"""What PostgreSQL says: every published table after every commit, and every published change.

A table belongs to one writer, so its rows are a function of how many transactions that writer has
committed. Each transaction raises the writer's number in the table `moment`; the state of its
tables is read right after the commit and filed under that number. A cut of the lake shows
`moment` too, so any cut can be held against what PostgreSQL had then: no WAL position is compared.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from lake_consumer.iceberg.names import LakeName
from tests.storm.pgoutput import Change, Reader
from tests.storm.world import PUBLICATION

Connection = psycopg.Connection[tuple[Any, ...]]
Row = tuple[str | None, ...]

SLOT = "storm_truth"
LONG = 100
"""Longer texts are kept by their hash."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column as the catalog has it."""

    attnum: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A published table with its rows as PostgreSQL writes them, sorted."""

    oid: int
    schema: str
    name: str
    columns: tuple[Attribute, ...]
    has_key: bool
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


LOCK_SECONDS = 90
"""Nobody may keep a table from its owner so long: then the writer fails, and the storm with it."""


def connect(dsn: str) -> Connection:
    """A session that writes values as the bridge's sessions do."""
    connection = psycopg.connect(dsn, autocommit=True)
    settings = (
        "TimeZone = 'UTC'",
        "DateStyle = 'ISO'",
        "IntervalStyle = 'postgres'",
        f"lock_timeout = '{LOCK_SECONDS}s'",
    )
    for setting in settings:
        connection.execute(sql.SQL(f"SET {setting}"))
    return connection


_PUBLISHED = """
    SELECT c.oid::bigint, n.nspname, c.relname, p.rowfilter,
           EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND
                   CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)
      FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = %s AND left(c.relname, 1) = %s
"""
_COLUMNS = """
    SELECT attnum, attname, format_type(atttypid, atttypmod) FROM pg_attribute
     WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


Known = Callable[[int, str], TableVersion | None]
"""Gives a table, by OID and name, that certainly has not changed since it was read last."""


def read_tables(
    connection: Connection, letter: str, known: Known = lambda _oid, _name: None
) -> dict[int, TableVersion]:
    """Every published table of one writer, by OID."""
    rows = connection.execute(_PUBLISHED, [PUBLICATION, letter]).fetchall()
    found = {}
    for oid, schema, name, row_filter, has_key in rows:
        if unchanged := known(oid, name):
            found[oid] = unchanged
            continue
        columns = tuple(Attribute(*row) for row in connection.execute(_COLUMNS, [oid]))
        lines = _rows(connection, (schema, name), columns, row_filter)
        found[oid] = TableVersion(oid, schema, name, columns, has_key, lines)
    return found


def published_names(connection: Connection) -> set[LakeName]:
    """The names of all published tables, as the lake calls their mirrors."""
    query = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
    return {LakeName(schema, name) for schema, name in connection.execute(query, [PUBLICATION])}


def _rows(
    connection: Connection, name: tuple[str, str], columns: Sequence[Attribute], where: str | None
) -> tuple[Row, ...]:
    query = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        sql.Identifier(*name),
        sql.SQL(where or "true"),
    )
    with connection.cursor().copy(query) as copy:
        return sorted_rows(copy.rows())


def sorted_rows(rows: Iterable[Sequence[Any]]) -> tuple[Row, ...]:
    shortened = (tuple(short(value) for value in row) for row in rows)
    return tuple(sorted(shortened, key=lambda row: tuple((v is None, v or "") for v in row)))


def short(value: str | None) -> str | None:
    if value is None or len(value) <= LONG:
        return value
    return f"{value[:20]}...{len(value)} {hashlib.md5(value.encode()).hexdigest()}"


def open_sessions(connection: Connection) -> list[str]:
    """Sessions that wait for a lock or sit in a transaction, and by whom each is blocked."""
    query = (
        "SELECT pid, application_name, state, wait_event_type, pg_blocking_pids(pid),"
        " now() - xact_start, left(query, 200) FROM pg_stat_activity"
        " WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start"
    )
    return [" ".join(map(str, row)) for row in connection.execute(query.encode())]


class History:
    """The states of one writer's tables, by the number of its last transaction."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.versions: dict[int, dict[int, TableVersion]] = {}
        self.attnums: dict[tuple[int, str], set[int]] = defaultdict(set)
        """Every column that a relation ever had under a name."""

    def record(self, number: int, tables: dict[int, TableVersion]) -> None:
        """File what is true after a transaction; equal tables are kept once."""
        before = self.versions.get(number - 1, {})
        self.versions[number] = {
            oid: before[oid] if before.get(oid) == table else table for oid, table in tables.items()
        }

    def note_columns(self, connection: Connection) -> None:
        """Remember which column has which name now; inside a transaction too."""
        rows = connection.execute(
            "SELECT a.attrelid::bigint, a.attname, a.attnum FROM pg_attribute a JOIN pg_class c"
            " ON c.oid = a.attrelid WHERE c.relkind IN ('r', 'p') AND a.attnum > 0"
            " AND left(c.relname, 1) = %s AND NOT a.attisdropped",
            [self.letter],
        )
        for oid, name, attnum in rows:
            self.attnums[oid, name].add(attnum)


class CommittedChanges:
    """The second slot: what PostgreSQL published, in commit order."""

    def __init__(self, connection: Connection) -> None:
        self._reader = Reader()
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])

    def read(self, connection: Connection) -> list[Change]:
        """All changes since the slot was created."""
        query = (
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s)"
        )
        for (message,) in connection.execute(query, [SLOT, PUBLICATION], binary=True):
            self._reader.feed(bytes(message))
        return self._reader.changes


def copied_texts(
    connection: Connection, types: Sequence[str], rows: Sequence[Sequence[object]]
) -> list[Row]:
    """Have PostgreSQL read values as columns of these types, and give its text of each."""
    with connection.transaction(force_rollback=True):
        columns = [f"c{at} {kind}" for at, kind in enumerate(types)]
        made = ", ".join(["place int", *columns])
        connection.execute(sql.SQL(f"CREATE TEMPORARY TABLE from_lake ({made})"))
        with connection.cursor().copy("COPY from_lake FROM STDIN") as copy:
            for place, row in enumerate(rows):
                copy.write_row([place, *map(_written, row)])
        names = ", ".join(f"c{at}" for at in range(len(types))) or "place"
        query = f"COPY (SELECT {names} FROM from_lake ORDER BY place) TO STDOUT"
        with connection.cursor().copy(sql.SQL(query)) as copied:
            return [tuple(short(value) for value in row) for row in copied.rows()]


def _written(value: object) -> object:
    """Write a UUID as PostgreSQL does: psycopg leaves the dashes out, and a column may be text."""
    return str(value) if isinstance(value, UUID) else value

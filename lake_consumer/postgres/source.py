"""PostgreSQL as `verify` sees it: tables as they stand in one snapshot, and a mark behind it.

One transaction, REPEATABLE READ, holds the snapshot. Tables are locked against changes of shape and
truncates first (ACCESS SHARE, as pg_dump does): neither obeys snapshots. A second connection writes
the mark, a logical message, which commits behind everything the snapshot sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lake_consumer.errors import BadOption, PostgresFailed
from lake_consumer.pgoptions import PostgresOptions
from schemas.names import TableName
from schemas.positions import Lsn
from schemas.values import SESSION_SETTINGS

Connection = psycopg.Connection[tuple[Any, ...]]
TextRow = tuple[str | None, ...]

MARK_PREFIX = "lake-verify"
LOCK_TIMEOUT = "30s"

_SET_UP = """
    SELECT set_config('statement_timeout', '0', true), set_config('row_security', 'off', true),
           set_config('idle_in_transaction_session_timeout', '0', true)
"""
_IDENTITY = """
    SELECT system_identifier::text || '/' || oid::text
      FROM pg_control_system(), pg_database WHERE datname = current_database()
"""
_RELATION = """
    SELECT c.oid::bigint, c.relkind::text, greatest(c.reltuples, 0)::bigint
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_COLUMNS = """
    SELECT attnum, attname FROM pg_attribute
     WHERE attrelid = %s::bigint::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_PUBLISHED = """
    SELECT DISTINCT schemaname::text, tablename::text FROM pg_publication_tables
     WHERE pubname = coalesce(%s, pubname)
"""
_ROW_FILTER = """
    SELECT rowfilter FROM pg_publication_tables
     WHERE pubname = %s AND schemaname = %s AND tablename = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table in the snapshot: its columns by attnum, and which of its rows are published."""

    name: TableName
    columns: dict[int, str]
    estimate: int
    is_partitioned: bool
    row_filter: str | None

    @property
    def source(self) -> sql.Composed:
        # Rows of a partition arrive as the root's; rows of a table that merely inherits do not.
        only = sql.SQL("" if self.is_partitioned else "ONLY ")
        return only + sql.Identifier(self.name.schema, self.name.table)


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Integers of one column from `low` to `high`, both inclusive; None where there is no end."""

    column: str
    low: int | None
    high: int | None


class Source:
    """One snapshot of the database."""

    def __init__(self, options: PostgresOptions, connection: Connection, snapshot: str) -> None:
        self._options = options
        self._connection = connection
        self.snapshot = snapshot

    @classmethod
    @contextmanager
    def open(cls, options: PostgresOptions, tables: Sequence[TableName]) -> Iterator[Source]:
        """Lock the tables, take a snapshot, and keep it for as long as the block lasts."""
        with _clear_errors(options), _connect(options) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with connection.transaction():
                # Nothing that needs a snapshot may come before the locks.
                connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
                for table in tables:
                    connection.execute(
                        sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(
                            sql.Identifier(table.schema, table.table)
                        )
                    )
                connection.execute(_SET_UP)
                snapshot = _one(connection, "SELECT pg_current_snapshot()::text")
                yield cls(options, connection, str(snapshot))

    def mark(self) -> Lsn:
        """Write a message behind all that the snapshot sees; gives a position before its commit."""
        with _clear_errors(self._options), _connect(self._options) as connection:
            connection.autocommit = True
            found = _one(
                connection,
                "SELECT pg_logical_emit_message(true, %s, %s)::text",
                [MARK_PREFIX, self.snapshot],
            )
            return Lsn.parse(str(found))

    def identity(self) -> str:
        """Name this database among all others, as the bridge does, but for its slot."""
        return str(_one(self._connection, _IDENTITY))

    def relation(self, table: TableName) -> Relation | None:
        """Describe a table; None where the database has none of that name."""
        found = self._connection.execute(_RELATION, [table.schema, table.table]).fetchone()
        if found is None:
            return None
        oid, kind, estimate = found
        columns = self._connection.execute(_COLUMNS, [oid]).fetchall()
        return Relation(
            name=table,
            columns=dict(columns),
            estimate=estimate,
            is_partitioned=kind == "p",
            row_filter=self._row_filter(table),
        )

    def published(self) -> set[TableName]:
        """The tables of the bridge's publication; of any, where nobody says which one that is."""
        found = self._connection.execute(_PUBLISHED, [self._options.publication]).fetchall()
        return {TableName(schema, table) for schema, table in found}

    def _row_filter(self, table: TableName) -> str | None:
        publication = self._options.publication
        if publication is None or self._connection.info.server_version < 150000:
            return None
        parameters = [publication, table.schema, table.table]
        found = self._connection.execute(_ROW_FILTER, parameters).fetchone()
        return found[0] if found else None

    def sample(self, relation: Relation, names: Sequence[str], every: int) -> list[TextRow]:
        """Give the keys of about one row in `every`."""
        some = sql.SQL(" TABLESAMPLE BERNOULLI ({})").format(min(100.0, 100.0 / every))
        return list(self._copy(relation, names, some, []))

    def rows(
        self, relation: Relation, names: Sequence[str], span: KeySpan | None = None
    ) -> Iterator[TextRow]:
        """Read the rows that are published, as PostgreSQL's text; memory does not grow."""
        conditions: list[sql.Composable] = []
        if relation.row_filter:
            # The server's own deparsed text, as the bridge's snapshots use it.
            conditions.append(sql.SQL(f"({relation.row_filter})"))
        if span is not None and span.low is not None:
            conditions.append(_compare(span.column, ">=", span.low))
        if span is not None and span.high is not None:
            conditions.append(_compare(span.column, "<=", span.high))
        return self._copy(relation, names, sql.SQL(""), conditions)

    def _copy(
        self,
        relation: Relation,
        names: Sequence[str],
        sampling: sql.Composable,
        conditions: Sequence[sql.Composable],
    ) -> Iterator[TextRow]:
        where = (
            sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
        )
        query = sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, names)), relation.source, sampling, where
        )
        with _clear_errors(self._options), self._connection.cursor().copy(query) as copy:
            yield from copy.rows()


def _compare(column: str, operator: str, value: int) -> sql.Composed:
    comparison = {">=": sql.SQL(" >= "), "<=": sql.SQL(" <= ")}[operator]
    return sql.Identifier(column) + comparison + sql.Literal(value)


def _one(connection: Connection, query: str, parameters: Sequence[Any] = ()) -> Any:
    row = connection.execute(sql.SQL(query), parameters).fetchone()
    return row[0] if row else None


def _connect(options: PostgresOptions) -> Connection:
    settings = {**SESSION_SETTINGS}
    encoding = settings.pop("client_encoding")
    pinned = " ".join(f"-c {name}={value.replace(' ', '')}" for name, value in settings.items())
    parts: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "dbname": options.database,
        "user": options.user,
        "password": options.password,
        "sslmode": options.sslmode,
        "sslrootcert": options.sslrootcert,
        "sslcert": options.sslcert,
        "sslkey": options.sslkey,
        "connect_timeout": 10,
        "application_name": "lake-consumer verify",
        **_split_dsn(options.dsn),
    }
    parts["options"] = f"{parts.get('options', '')} {pinned}"
    parts["client_encoding"] = encoding
    return psycopg.connect(make_conninfo("", **{k: v for k, v in parts.items() if v is not None}))


def _split_dsn(dsn: str | None) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(dsn or ""))
    except psycopg.ProgrammingError:
        # libpq quotes what it cannot read, and that may be the password.
        raise BadOption(
            "PG_DSN is not a connection string",
            advice="Write postgresql://user:password@host:port/database, percent-encoded.",
        ) from None


@contextmanager
def _clear_errors(options: PostgresOptions) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        text = " ".join(str(error).split()) or type(error).__name__
        advice = next((a for words, a in _ADVICE if words(error, text)), PostgresFailed.advice)
        raise PostgresFailed(f"PostgreSQL at {options.shown}: {text}", advice=advice) from error


_ADVICE: tuple[tuple[Callable[[psycopg.Error, str], bool], str], ...] = (
    (lambda e, _: e.sqlstate == "55P03",
     "A change of the table's shape waits or runs; try again when it is done."),
    (lambda e, _: e.sqlstate == "42501", "GRANT SELECT on the table to the role; init.sh does."),
    (lambda e, _: e.sqlstate == "42P01",
     "The table is in the lake and no more in the database; name the tables to verify."),
    (lambda _, text: "read-only" in text or "recovery" in text,
     "Verify needs the primary: it writes a mark into the WAL."),
)  # fmt: skip

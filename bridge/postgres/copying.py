"""Reading a table under an exported snapshot: what to COPY, and the lines of it as they come.

Reading stops when nobody asks for more, and PostgreSQL then waits: memory does not grow with the
table. Bounds of a key range are session settings that the query reads back, because COPY takes no
parameters and a value never becomes part of a statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.rows import DictRow

from bridge.config import PostgresConfig
from bridge.errors import SourceLost
from bridge.postgres.connection import connect, translate, translated
from schemas.names import TableName
from schemas.shapes import Column

Connection = psycopg.AsyncConnection[DictRow]

Lines = AsyncGenerator[list[bytes], None]

LINES_PER_READ = 500
"""How many lines are handed on together; between them changes get their turn."""

BYTES_PER_READ = 128 << 10
"""How many bytes of them are enough, before there are so many lines."""

BIG_TABLE_PAGES = 1_024
"""Below this, one reader is as fast as several."""

_RELATION = """
    SELECT c.oid::bigint AS relation_id, c.relkind::text AS kind, c.reltuples::bigint AS estimate,
           pg_relation_size(c.oid) / current_setting('block_size')::int AS pages,
           am.amname AS access_method,
           coalesce((SELECT string_agg(t.relid || '=' || coalesce(pg_relation_filenode(t.relid), 0),
                                       ',' ORDER BY t.relid::oid)
                       FROM pg_partition_tree(c.oid) t),
                    pg_relation_filenode(c.oid)::text) AS files
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_am am ON am.oid = c.relam
     WHERE n.nspname = %s AND c.relname = %s
"""
_ROW_FILTER = """
    SELECT rowfilter FROM pg_publication_tables
     WHERE pubname = %s AND schemaname = %s AND tablename = %s
"""
ROW_FILTERS_SINCE = 150000

# Whatever the role's defaults are: a long copy is not an accident, and rows that row-level security
# would hide must be an error instead.
_SET_UP = """
    SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
           set_config('idle_in_transaction_session_timeout', '0', true),
           set_config('row_security', 'off', true)
"""


@dataclass(frozen=True, slots=True)
class Storage:
    """How PostgreSQL stores a relation; two equal ones saw no rewrite or truncate in between."""

    relation_id: int
    kind: str
    estimate: int
    pages: int
    is_heap: bool
    files: str

    @property
    def is_divisible(self) -> bool:
        """Whether ranges of pages are worth reading side by side."""
        return self.kind == "r" and self.is_heap and self.pages >= BIG_TABLE_PAGES

    def holds_the_same_as(self, other: Storage | None) -> bool:
        return other is not None and (self.relation_id, self.files) == (
            other.relation_id,
            other.files,
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a key range: the first columns of the key, and the setting of each value."""

    columns: tuple[Column, ...]
    values: tuple[str, ...]
    operator: str
    prefix: str

    @property
    def settings(self) -> dict[str, str]:
        return {f"walbridge.{self.prefix}_{n}": value for n, value in enumerate(self.values)}

    @property
    def condition(self) -> str:
        left = ", ".join(quote(column.name) for column in self.columns)
        right = ", ".join(
            f"current_setting('{name}')::{column.data_type}"
            for name, column in zip(self.settings, self.columns, strict=True)
        )
        return f"ROW({left}) {self.operator} ROW({right})"


def key_bounds(
    key: Sequence[Column], from_key: Sequence[str], to_key: Sequence[str]
) -> tuple[Bound, ...]:
    """Say which ends a range has: from inclusive, to exclusive."""
    ends = ((from_key, ">=", "from"), (to_key, "<", "to"))
    return tuple(
        Bound(tuple(key[: len(values)]), tuple(values), operator, prefix)
        for values, operator, prefix in ends
        if values
    )


def copy_query(
    table: TableName,
    columns: Sequence[Column],
    *,
    kind: str = "r",
    row_filter: str | None = None,
    bounds: Sequence[Bound] = (),
    pages: tuple[int, int | None] = (0, None),
) -> str:
    """Write the COPY of a table, or of a part of it."""
    conditions = [f"({row_filter})"] if row_filter else []
    conditions += [bound.condition for bound in bounds]
    first, end = pages
    if first:
        conditions.append(f"ctid >= '({first},0)'::tid")
    if end is not None:
        conditions.append(f"ctid < '({end},0)'::tid")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # Rows of a partition arrive as the root's; rows of a table that merely inherits do not.
    only = "" if kind == "p" else "ONLY "
    names = ", ".join(quote(column.name) for column in columns)
    # Names are quoted, the filter is the catalog's own text, and values are settings.
    return f"COPY (SELECT {names} FROM {only}{qualified(table)}{where}) TO STDOUT"  # noqa: S608


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def qualified(table: TableName) -> str:
    return f"{quote(table.schema)}.{quote(table.table)}"


async def find_storage(clerk: Connection, table: TableName) -> Storage | None:
    row = await (await clerk.execute(_RELATION, [table.schema, table.table])).fetchone()
    if row is None:
        return None
    return Storage(
        relation_id=row["relation_id"],
        kind=row["kind"],
        estimate=max(0, row["estimate"]),
        pages=row["pages"] or 0,
        is_heap=row["access_method"] == "heap",
        files=row["files"] or "",
    )


async def find_row_filter(clerk: Connection, publication: str, table: TableName) -> str | None:
    """Give the publication's WHERE for a table, as the catalog writes it."""
    if clerk.info.server_version < ROW_FILTERS_SINCE:
        return None
    parameters = [publication, table.schema, table.table]
    row = await (await clerk.execute(_ROW_FILTER, parameters)).fetchone()
    return row["rowfilter"] if row else None


async def may_select(clerk: Connection, relation_id: int) -> bool:
    query = "SELECT has_table_privilege(%s::oid, 'SELECT') AS may"
    row = await (await clerk.execute(query, [relation_id])).fetchone()
    return bool(row and row["may"])


async def published_names(clerk: Connection, publication: str) -> list[TableName]:
    query = (
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2"
    )
    rows = await (await clerk.execute(query, [publication])).fetchall()
    return [TableName(row["schemaname"], row["tablename"]) for row in rows]


async def check_bounds(clerk: Connection, bounds: Sequence[Bound]) -> str | None:
    """Let PostgreSQL read every value as its column's type; say what it does not like."""
    for bound in bounds:
        for value, column in zip(bound.values, bound.columns, strict=True):
            query = f"SELECT %s::text::{column.data_type}".encode()
            try:
                await clerk.execute(query, [value])
            except psycopg.DataError as error:
                return " ".join(str(error).split())
    return None


class Reader:
    """A session that sees the exported snapshot and copies from it."""

    def __init__(self, session: Connection, config: PostgresConfig) -> None:
        self._session = session
        self._pg = session.pgconn
        self._config = config
        self._readable = asyncio.Event()

    @classmethod
    async def open(cls, config: PostgresConfig, snapshot: str) -> Reader:
        """Begin a transaction in the exported snapshot."""
        reader = cls(await connect(config), config)
        try:
            await reader._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await reader._execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            await reader._execute(_SET_UP)
        except BaseException:
            await reader.close()
            raise
        return reader

    async def prepare(self, table: TableName, bounds: Sequence[Bound]) -> None:
        """Hold the table as it is until the end, and tell the session the range's bounds."""
        await self._execute(f"LOCK TABLE {qualified(table)} IN ACCESS SHARE MODE")
        for bound in bounds:
            for name, value in bound.settings.items():
                await self._execute("SELECT set_config(%s, %s, true)", name, value)

    async def visible(self) -> str:
        """Name the snapshot's transactions, as PostgreSQL writes them."""
        with translated(self._config):
            cursor = await self._session.execute("SELECT pg_current_snapshot()::text AS visible")
            row = await cursor.fetchone()
        return str(row["visible"]) if row else ""

    async def _execute(self, statement: str, *parameters: str) -> None:
        with translated(self._config):
            await self._session.execute(statement.encode(), parameters or None)

    async def lines(self, query: str) -> Lines:
        """Run a COPY and give its lines in the order they come, many at a time."""
        loop = asyncio.get_running_loop()
        # Not the session's own cursor: that costs a task switch per line.
        socket = self._pg.socket
        loop.add_reader(socket, self._readable.set)
        try:
            self._pg.send_query(query.encode())
            self._pg.flush()
            await self._expect(ExecStatus.COPY_OUT)
            lines: list[bytes] = []
            at_end = False
            while not at_end:
                at_end, is_full = self._take(lines)
                if lines and (at_end or is_full):
                    yield lines
                    lines = []
                    # Even when more is here already: others have work to do too.
                    await asyncio.sleep(0)
                elif not at_end:
                    await self._more()
            await self._expect(ExecStatus.COMMAND_OK)
        except psycopg.Error as error:
            raise translate(error, self._config) from error
        finally:
            loop.remove_reader(socket)

    def _take(self, lines: list[bytes]) -> tuple[bool, bool]:
        """Add what has arrived; say whether that was the last, and whether it is enough."""
        append, get = lines.append, self._pg.get_copy_data
        while len(lines) < LINES_PER_READ and sum(map(len, lines)) < BYTES_PER_READ:
            before = len(lines)
            for _ in range(LINES_PER_READ - before):
                size, data = get(1)
                if size <= 0:
                    break
                append(data.tobytes())
            else:
                break
            if size < 0:
                return True, False
            if len(lines) == before:
                return False, False
            # libpq reads 16 KB, or one row, at a time; an event loop's turn for each is dear.
            self._pg.consume_input()
        return False, True

    async def _expect(self, status: ExecStatus) -> None:
        while self._pg.is_busy():
            await self._more()
        result = self._pg.get_result()
        if result is None or result.status != status:
            raise self._failure(result)

    async def _more(self) -> None:
        await self._readable.wait()
        self._readable.clear()
        self._pg.consume_input()

    def _failure(self, result: Any) -> Exception:
        if result is None:
            return SourceLost(f"PostgreSQL at {self._config.where} ended a copy early")
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        error = psycopg.errors.lookup(state.decode()) if state else psycopg.OperationalError
        return translate(error(result.get_error_message()), self._config)

    async def close(self) -> None:
        """End the session; a copy that is still running ends with it."""
        await self._session.close()

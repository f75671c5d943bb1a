"""A session that sees an exported snapshot, and the lines of a COPY as they come.

Reading stops when nobody asks for more, and PostgreSQL then waits: memory does not grow with the
table. libpq makes the session, with all its options, and hands rows over one by one, which is a
third of what a snapshot costs. Where the connection is not encrypted, the COPY is therefore sent
and read over the session's own socket: between two queries libpq holds nothing back, and behind
the last one the session is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.rows import DictRow

from bridge.config import PostgresConfig
from bridge.errors import BridgeError, SourceLost
from bridge.postgres.connection import SNAPSHOT_GONE, connect, translate, translated
from bridge.postgres.copying import Bound, qualified
from bridge.postgres.wire import Wire, is_encrypted, refusal, refused
from bridge.protocol.copylines import Lines
from bridge.protocol.copyout import BYTES_AT_ONCE, LINES_AT_ONCE, CopyOut
from schemas.names import TableName

Connection = psycopg.AsyncConnection[DictRow]

Batches = AsyncGenerator[Lines, None]

BYTES_PER_READ = 512 << 10
"""How many bytes are asked of the socket at once: each read wakes the server, and a snapshot in
reads of 128 KB takes a tenth longer."""

# Whatever the role's defaults are: a long copy is not an accident, and rows that row-level security
# would hide must be an error instead.
_SET_UP = """
    SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
           set_config('idle_in_transaction_session_timeout', '0', true),
           set_config('row_security', 'off', true)
"""


class Reader:
    """A session that sees the exported snapshot and copies from it."""

    def __init__(self, session: Connection, config: PostgresConfig) -> None:
        self._session = session
        self._pg = session.pgconn
        self._config = config
        self._readable = asyncio.Event()
        self._is_encrypted = True

    @classmethod
    async def open(cls, config: PostgresConfig, snapshot: str) -> Reader:
        """Begin a transaction in the exported snapshot."""
        reader = cls(await connect(config), config)
        try:
            await reader._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await reader._enter(snapshot)
            await reader._execute(_SET_UP)
            reader._is_encrypted = await is_encrypted(reader._session, config)
        except BaseException:
            await reader.close()
            raise
        return reader

    async def _enter(self, snapshot: str) -> None:
        """See what the export sees; whatever the server has against it, another export may do."""
        try:
            await self._session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        except psycopg.Error as error:
            raise SourceLost(str(translate(error, self._config)), advice=SNAPSHOT_GONE) from error

    async def prepare(
        self, table: TableName, bounds: Sequence[Bound], lock_timeout: str = "0"
    ) -> None:
        """Hold the table as it is until the end, and tell the session the range's bounds.

        Raises psycopg's own error if the table is not free in time.
        """
        await self._execute(f"SET LOCAL lock_timeout = '{lock_timeout}'")
        await self._session.execute(f"LOCK TABLE {qualified(table)} IN ACCESS SHARE MODE".encode())
        await self._execute("SET LOCAL lock_timeout = '0'")
        for bound in bounds:
            for name, value in bound.settings.items():
                await self._execute("SELECT set_config(%s, %s, true)", name, value)

    async def visible(self) -> str:
        """Name the snapshot's transactions, as PostgreSQL writes them."""
        return str((await self._ask("SELECT pg_current_snapshot()::text AS visible"))["visible"])

    async def _execute(self, statement: str, *parameters: str) -> None:
        with translated(self._config):
            await self._session.execute(statement.encode(), parameters or None)

    async def _ask(self, query: str) -> DictRow:
        with translated(self._config):
            row = await (await self._session.execute(query.encode())).fetchone()
        return row or {}

    async def lines(self, query: str) -> Batches:
        """Run a COPY and give its lines in the order they come, many at a time."""
        batches = self._from_libpq(query) if self._is_encrypted else self._from_socket(query)
        # Closed with this one: a socket left open would keep the server's end of the copy alive.
        async with aclosing(batches):
            async for lines in batches:
                yield lines
                # Even when more is here already: others have work to do too.
                await asyncio.sleep(0)

    async def _from_socket(self, query: str) -> Batches:
        copy = CopyOut()
        with Wire(self._session, self._config) as wire:
            await wire.command(query)
            while not copy.is_over:
                if not (data := wire.receive(BYTES_PER_READ)):
                    await wire.readable()
                    continue
                arrived = copy.feed(data)
                if copy.failure is not None:
                    raise refusal(copy.failure, self._config)
                for lines in arrived:
                    yield lines

    async def _from_libpq(self, query: str) -> Batches:
        loop = asyncio.get_running_loop()
        # Not the session's own cursor: that costs a task switch per line.
        wire = self._pg.socket
        loop.add_reader(wire, self._readable.set)
        try:
            self._pg.send_query(query.encode())
            self._pg.flush()
            await self._expect(ExecStatus.COPY_OUT)
            lines: list[bytes] = []
            at_end = False
            while not at_end:
                at_end, is_full = self._take(lines)
                if lines and (at_end or is_full):
                    yield Lines.of(lines)
                    lines = []
                elif not at_end:
                    await self._more()
            await self._expect(ExecStatus.COMMAND_OK)
        except psycopg.Error as error:
            raise translate(error, self._config) from error
        finally:
            loop.remove_reader(wire)

    def _take(self, lines: list[bytes]) -> tuple[bool, bool]:
        """Add what has arrived; say whether that was the last, and whether it is enough."""
        append, get = lines.append, self._pg.get_copy_data
        while len(lines) < LINES_AT_ONCE and sum(map(len, lines)) < BYTES_AT_ONCE:
            before = len(lines)
            for _ in range(LINES_AT_ONCE - before):
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

    def _failure(self, result: Any) -> BridgeError:
        if result is None:
            return SourceLost(f"PostgreSQL at {self._config.where} ended a copy early")
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        return refused((state or b"").decode(), result.get_error_message(), self._config)

    async def close(self) -> None:
        """End the session; a copy that is still running ends with it."""
        await self._session.close()

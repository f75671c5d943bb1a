"""The replication connection: CopyData frames in, confirmed positions out.

Reading stops when nobody calls `read`, and PostgreSQL then keeps the WAL: that is the
back-pressure. The stream always starts where the slot is (0/0 asks for that), because a higher
position skips data for good.
"""

from __future__ import annotations

import asyncio
import time

import psycopg
from psycopg.pq import ExecStatus

from bridge.config import PostgresConfig
from bridge.errors import SourceLost
from bridge.postgres.connection import conninfo, translate, translated, where
from bridge.protocol.framing import encode_status
from schemas.events import POSTGRES_EPOCH

FRAMES_PER_READ = 1_000
"""How many frames one wake-up hands on at most, so that other work gets its turn."""

_EPOCH_SECONDS = POSTGRES_EPOCH.timestamp()


class WalStream:
    """One START_REPLICATION, from connect to close."""

    def __init__(self, connection: psycopg.AsyncConnection, config: PostgresConfig) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._config = config
        self._readable = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._watched: int | None = None

    @classmethod
    async def open(cls, config: PostgresConfig, *, slot: str, publication: str) -> WalStream:
        """Connect and start streaming from the slot's confirmed position."""
        with translated(config):
            connection = await psycopg.AsyncConnection.connect(
                conninfo(config, replication="database"), autocommit=True
            )
        stream = cls(connection, config)
        try:
            await stream._start(slot, publication)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def _start(self, slot: str, publication: str) -> None:
        names = _literal(_identifier(publication))
        command = (
            f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL 0/0"
            f" (proto_version '1', publication_names {names}, messages 'true')"
        )
        self._watched = self._pg.socket
        self._loop.add_reader(self._watched, self._readable.set)
        self._pg.send_query(command.encode())
        self._pg.flush()
        while self._pg.is_busy():
            await self._wait_readable()
        result = self._pg.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            message = result.get_error_message() if result else "no answer"
            state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) if result else None
            error = psycopg.errors.lookup(state.decode()) if state else psycopg.OperationalError
            raise translate(error(message), self._config)
        self._pg.nonblocking = 1

    async def read(self) -> list[bytes]:
        """Wait for frames and give all that have arrived, in order; never an empty list."""
        frames: list[bytes] = []
        while True:
            size, data = self._pg.get_copy_data(1)
            if size > 0:
                frames.append(bytes(data))
                if len(frames) < FRAMES_PER_READ:
                    continue
                return frames
            if size < 0:
                raise self._ended()
            if frames:
                return frames
            await self._wait_readable()

    async def _wait_readable(self) -> None:
        await self._readable.wait()
        self._readable.clear()
        try:
            self._pg.consume_input()
        except psycopg.OperationalError as error:
            # libpq has closed the socket, and its number may be given to the next one.
            self._unwatch()
            raise translate(error, self._config) from error

    def _ended(self) -> Exception:
        """Say why the server ended the stream."""
        result = self._pg.get_result()
        text = result.get_error_message() if result else ""
        if not text:
            return SourceLost(f"PostgreSQL at {where(self._config)} ended the stream")
        return translate(psycopg.OperationalError(text), self._config)

    def confirm(self, lsn: int) -> None:
        """Tell PostgreSQL that everything before `lsn` is stored."""
        now = int((time.time() - _EPOCH_SECONDS) * 1_000_000)
        try:
            self._pg.put_copy_data(encode_status(lsn, now))
            self._pg.flush()
        except psycopg.OperationalError as error:
            raise translate(error, self._config) from error

    async def close(self) -> None:
        """Give the slot free at once; nothing is confirmed here."""
        self._unwatch()
        await self._connection.close()

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

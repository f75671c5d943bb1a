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

BYTES_PER_READ = 1 << 18
"""How much one wake-up hands on at most, so that other work gets its turn and memory is bounded."""

_FRAME_OVERHEAD = 64

BACKLOG_FRAMES = 64
"""So many frames at once say that PostgreSQL has more to send than one transaction just written."""

FILL_SECONDS = 0.001

_EPOCH_SECONDS = POSTGRES_EPOCH.timestamp()


class WalStream:
    """One START_REPLICATION, from connect to close."""

    def __init__(self, connection: psycopg.AsyncConnection, config: PostgresConfig) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._is_backlog = False

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
        self._pg.send_query(command.encode())
        self._pg.flush()
        while self._pg.is_busy():
            await self._wait_readable()
            self._consume()
        result = self._pg.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            message = result.get_error_message() if result else "no answer"
            state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) if result else None
            error = psycopg.errors.lookup(state.decode()) if state else psycopg.OperationalError
            raise translate(error(message), self._config)
        self._pg.nonblocking = 1

    async def read(self) -> list[bytes]:
        """Wait for frames and give all that have arrived, in order; never an empty list."""
        while not (frames := self._arrived()):
            if self._is_backlog:
                # Let the socket fill: a frame costs less where many are read at once, and also
                # PostgreSQL, which need not wake us up for each.
                self._is_backlog = False
                await asyncio.sleep(FILL_SECONDS)
            else:
                await self._wait_readable()
        self._is_backlog = len(frames) >= BACKLOG_FRAMES
        return frames

    def _arrived(self) -> list[bytes]:
        """Give what libpq has and what it finds in the socket, up to a bound."""
        frames: list[bytes] = []
        add, get_copy_data = frames.append, self._pg.get_copy_data
        room, is_dry = BYTES_PER_READ, False
        while room > 0:
            size, data = get_copy_data(1)
            if size > 0:
                add(bytes(data))
                room -= size + _FRAME_OVERHEAD
                is_dry = False
            elif size < 0:
                if frames:
                    break
                raise self._ended()
            elif is_dry:
                break
            else:
                self._consume()
                is_dry = True
        return frames

    async def _wait_readable(self) -> None:
        """Wait for the socket; unread it stays readable, so it is watched only while we wait."""
        watched, ready = self._pg.socket, asyncio.Event()
        self._loop.add_reader(watched, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(watched)

    def _consume(self) -> None:
        try:
            self._pg.consume_input()
        except psycopg.OperationalError as error:
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
        await self._connection.close()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""The replication connection: CopyData frames in, confirmed positions out.

Reading stops when nobody calls `read`, and PostgreSQL then keeps the WAL: that is the
back-pressure. The stream always starts where the slot is (0/0 asks for that), because a higher
position skips data for good.

Where the connection is not encrypted, frames are read over its own socket, many at a time; else
libpq hands them over one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Protocol

import psycopg
from psycopg.pq import ExecStatus

from bridge.config import PostgresConfig
from bridge.errors import SourceLost
from bridge.history import History
from bridge.postgres.connection import translate, translated, where
from bridge.postgres.timeline import connect_replication, read_history
from bridge.postgres.wire import Wire, is_encrypted, refusal, refused
from bridge.protocol.answers import copy_data
from bridge.protocol.copyboth import CopyBoth
from bridge.protocol.framing import encode_status
from schemas.events import POSTGRES_EPOCH

BYTES_PER_READ = 1 << 18
"""How much one wake-up hands on at most, so that other work gets its turn and memory is bounded."""

_FRAME_OVERHEAD = 64

BACKLOG_FRAMES = 64
"""So many frames at once say that PostgreSQL has more to send than one transaction just written."""

FILL_SECONDS = 0.001

EXPLAIN_SECONDS = 1.0
"""How long to look for the error with which a server ended the stream."""

_EPOCH_SECONDS = POSTGRES_EPOCH.timestamp()


class Way(Protocol):
    """One way to have frames of a connection that has no other use."""

    async def start(self, command: str) -> None:
        """Send START_REPLICATION and wait until it is granted."""

    def arrived(self) -> list[bytes]:
        """Give frames that are there, up to a bound; raises where there will be no more."""

    async def readable(self) -> None:
        """Wait for more to arrive."""

    def send(self, payload: bytes) -> None: ...

    def close(self) -> None: ...


class WalStream:
    """One START_REPLICATION, from connect to close."""

    def __init__(
        self, connection: psycopg.AsyncConnection, way: Way, history: History, pid: int
    ) -> None:
        self.pid = pid
        """Of the server's process; it has the slot for as long as we do."""

        self.history = history
        """Of the server that streams: with several hosts, another one may have answered before."""

        self._connection = connection
        self._way = way
        self._is_backlog = False

    @classmethod
    async def open(cls, config: PostgresConfig, *, slot: str, publication: str) -> WalStream:
        """Connect and start streaming from the slot's confirmed position."""
        connection = await connect_replication(config)
        try:
            history = await read_history(connection, config)
            pid = await _backend_pid(connection, config)
            encrypted = await is_encrypted(connection, config)
            way = (Libpq if encrypted else Socket)(connection, config)
        except BaseException:
            await connection.close()
            raise
        stream = cls(connection, way, history, pid)
        try:
            await way.start(_start_replication(slot, publication))
        except BaseException:
            await stream.close()
            raise
        return stream

    async def read(self) -> list[bytes]:
        """Wait for frames and give all that have arrived, in order; never an empty list."""
        while not (frames := self._way.arrived()):
            if self._is_backlog:
                # Let the socket fill: a frame costs less where many are read at once, and also
                # PostgreSQL, which need not wake us up for each.
                self._is_backlog = False
                await asyncio.sleep(FILL_SECONDS)
            else:
                await self._way.readable()
        self._is_backlog = len(frames) >= BACKLOG_FRAMES
        return frames

    async def explain_end(self) -> None:
        """Raise what the server said when it ended the stream; frames before that are dropped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXPLAIN_SECONDS):
                while True:
                    await self.read()

    def confirm(self, lsn: int, *, ask: bool = False) -> None:
        """Tell PostgreSQL that everything before `lsn` is stored; `ask` requests a keepalive."""
        now = int((time.time() - _EPOCH_SECONDS) * 1_000_000)
        self._way.send(encode_status(lsn, now, reply_requested=ask))

    async def close(self) -> None:
        """Give the slot free at once; nothing is confirmed here."""
        self._way.close()
        await self._connection.close()


class Socket:
    """Frames over the connection's own socket."""

    def __init__(self, connection: psycopg.AsyncConnection, config: PostgresConfig) -> None:
        self._wire = Wire(connection, config)
        self._copy = CopyBoth()
        self._config = config
        self._first: list[bytes] = []
        self.readable = self._wire.readable

    async def start(self, command: str) -> None:
        await self._wire.command(command)
        while not self._copy.has_begun:
            await self.readable()
            self._first += self.arrived()

    def arrived(self) -> list[bytes]:
        if self._first:
            first, self._first = self._first, []
            return first
        data = self._wire.receive(BYTES_PER_READ) if not self._is_over else b""
        frames = self._copy.feed(data) if data else []
        # The server may stay connected and say no more: the end must be seen when it comes.
        if not frames and self._is_over:
            raise self._ended()
        return frames

    @property
    def _is_over(self) -> bool:
        return self._copy.failure is not None or self._copy.is_over

    def _ended(self) -> Exception:
        """Say why the server ended the stream; frames in front of that were given before."""
        if self._copy.failure is not None:
            return refusal(self._copy.failure, self._config)
        return SourceLost(f"PostgreSQL at {where(self._config)} ended the stream")

    def send(self, payload: bytes) -> None:
        self._wire.send(copy_data(payload))

    def close(self) -> None:
        self._wire.close()


class Libpq:
    """Frames as libpq has them, decrypted."""

    def __init__(self, connection: psycopg.AsyncConnection, config: PostgresConfig) -> None:
        self._pg = connection.pgconn
        self._config = config
        self._loop = asyncio.get_running_loop()

    async def start(self, command: str) -> None:
        self._pg.send_query(command.encode())
        self._pg.flush()
        while self._pg.is_busy():
            await self.readable()
            self._consume()
        result = self._pg.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            message = result.get_error_message() if result else "no answer"
            state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) if result else None
            raise refused((state or b"").decode(), message, self._config)
        self._pg.nonblocking = 1

    def arrived(self) -> list[bytes]:
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

    async def readable(self) -> None:
        """Wait for the socket; unread it stays readable, so it is watched only while we wait."""
        watched, ready = self._pg.socket, asyncio.Event()
        self._loop.add_reader(watched, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(watched)

    def _consume(self) -> None:
        with translated(self._config):
            self._pg.consume_input()

    def _ended(self) -> Exception:
        """Say why the server ended the stream."""
        result = self._pg.get_result()
        text = result.get_error_message() if result else ""
        if not text:
            return SourceLost(f"PostgreSQL at {where(self._config)} ended the stream")
        return translate(psycopg.OperationalError(text), self._config)

    def send(self, payload: bytes) -> None:
        with translated(self._config):
            self._pg.put_copy_data(payload)
            self._pg.flush()

    def close(self) -> None:
        """Leave it to the connection, which libpq holds alone."""


async def _backend_pid(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], config: PostgresConfig
) -> int:
    # Not what the connection says of itself: a pooler in between makes numbers of its own.
    with translated(config):
        row = await (await connection.execute(b"SELECT pg_backend_pid()")).fetchone()
    return int(row[0]) if row else 0


def _start_replication(slot: str, publication: str) -> str:
    names = _literal(_identifier(publication))
    return (
        f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL 0/0"
        f" (proto_version '1', publication_names {names}, messages 'true')"
    )


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""A session's own socket, for what is read and written past libpq.

Only where nothing is encrypted: what libpq reads then is what is on the wire. It has to be told
nothing, as long as whoever takes the socket sends the command, reads the answer to its end, or
closes the session.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import psycopg

from bridge.config import PostgresConfig
from bridge.errors import BridgeError, SourceLost
from bridge.postgres.connection import translate, translated, where
from bridge.protocol.answers import query_message

_USES_GSS = b"""
    SELECT coalesce(bool_or(encrypted), false)
      FROM pg_stat_gssapi WHERE pid = pg_backend_pid()
"""


async def is_encrypted(session: psycopg.AsyncConnection[Any], config: PostgresConfig) -> bool:
    if session.pgconn.ssl_in_use:
        return True
    with translated(config):
        found = await (await session.execute(_USES_GSS)).fetchone()
    return found is None or bool(*(found.values() if isinstance(found, dict) else found))


class Wire:
    """The connection under a number of its own, which libpq does not close."""

    def __init__(self, session: psycopg.AsyncConnection[Any], config: PostgresConfig) -> None:
        self._where = where(config)
        self._socket = socket.socket(fileno=os.dup(session.pgconn.socket))
        self._socket.setblocking(False)
        self._unsent = b""
        self._loop = asyncio.get_running_loop()
        self._is_readable = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    async def command(self, query: str) -> None:
        """Send a query, however long it is."""
        try:
            await self._loop.sock_sendall(self._socket, query_message(query))
        except OSError as error:
            raise self._hung_up(error) from error

    def send(self, data: bytes) -> None:
        """Send a short message; what the socket does not take now goes with the next one.

        A connection that is gone is for the reader to find: the server may have said why.
        """
        self._unsent += data
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""

    def receive(self, most: int) -> bytes:
        """Give what has arrived, none if nothing has; raises at the connection's end."""
        try:
            data = self._socket.recv(most)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self._hung_up(error) from error
        if not data:
            raise SourceLost(f"PostgreSQL at {self._where} closed the connection")
        return data

    async def readable(self) -> None:
        """Wait for more; unread the socket stays readable, so it is watched only while we wait."""
        self._is_readable.clear()
        self._loop.add_reader(self._socket, self._is_readable.set)
        try:
            await self._is_readable.wait()
        finally:
            self._loop.remove_reader(self._socket)

    def close(self) -> None:
        """Let go of the socket; left open it would keep the server's end of a copy alive."""
        self._socket.close()

    def _hung_up(self, error: OSError) -> SourceLost:
        return SourceLost(f"PostgreSQL at {self._where} hung up: {error}")


def refusal(fields: Mapping[str, str], config: PostgresConfig) -> BridgeError:
    """Say what libpq would have said of an error, in our words."""
    parts = (("", "M"), ("DETAIL:  ", "D"), ("HINT:  ", "H"), ("CONTEXT:  ", "W"))
    text = "\n".join(f"{name}{fields[key]}" for name, key in parts if key in fields)
    return refused(fields.get("C", ""), f"{fields.get('S', 'ERROR')}:  {text}", config)


def refused(sqlstate: str, text: str, config: PostgresConfig) -> BridgeError:
    try:
        kind = psycopg.errors.lookup(sqlstate)
    except KeyError:  # none, or one that a function made up
        kind = psycopg.OperationalError
    return translate(kind(text), config)

"""Which timeline a server is on, and which it came through, over a replication connection."""

from __future__ import annotations

from typing import Any

import psycopg

from bridge.config import PostgresConfig
from bridge.errors import SourceLost
from bridge.history import History, parse_switches
from bridge.postgres.connection import conninfo, translated, where

Replication = psycopg.AsyncConnection[tuple[Any, ...]]

_FIRST_TIMELINE = 1
"""It has no history file."""


async def connect_replication(config: PostgresConfig) -> Replication:
    """Open a connection that understands the commands of streaming replication."""
    with translated(config):
        return await psycopg.AsyncConnection.connect(
            conninfo(config, replication="database"), autocommit=True
        )


async def read_history(connection: Replication, config: PostgresConfig) -> History:
    """Ask a server for its timeline and for the history of that timeline."""
    with translated(config):
        row = await (await connection.execute(b"IDENTIFY_SYSTEM")).fetchone()
        if row is None:
            raise SourceLost(f"PostgreSQL at {where(config)} did not identify itself")
        timeline = int(row[1])
        if timeline == _FIRST_TIMELINE:
            return History(timeline)
        command = f"TIMELINE_HISTORY {timeline}".encode()
        found = await (await connection.execute(command)).fetchone()
        if found is None:
            raise SourceLost(f"PostgreSQL at {where(config)} has no history of its timeline")
        content = found[1] if isinstance(found[1], bytes) else str(found[1]).encode()
        return History(timeline, parse_switches(content.decode(errors="replace")))


async def server_history(config: PostgresConfig) -> History:
    """Ask over a connection of its own."""
    connection = await connect_replication(config)
    try:
        return await read_history(connection, config)
    finally:
        await connection.close()

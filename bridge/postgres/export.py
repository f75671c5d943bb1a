"""An exported snapshot: what the table held at one exact LSN, for as many readers as it takes.

A temporary slot exports the snapshot and says at which position of the WAL it stands; making the
slot waits for transactions that are open. As soon as every reader has set the snapshot the slot is
dropped by closing its connection, so it keeps no WAL while rows are copied, and it cannot outlive
the bridge.
"""

from __future__ import annotations

import asyncio
import secrets

import psycopg
from psycopg.rows import DictRow

from bridge.config import PostgresConfig
from bridge.errors import SourceLost
from bridge.postgres import connection
from bridge.postgres.slot import PLUGIN
from bridge.postgres.timeline import Replication, connect_replication
from schemas.positions import Lsn

Connection = psycopg.AsyncConnection[DictRow]

SETTLE_SECONDS = 5.0

_RETAINED = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS bytes
      FROM pg_replication_slots WHERE slot_name = %s
"""
_UNSETTLED = """
    SELECT count(*) AS number FROM pg_snapshot_xip(pg_current_snapshot()) AS running
     WHERE pg_visible_in_snapshot(running, %s::pg_snapshot)
"""


class Export:
    """The temporary slot; leave it as soon as all readers are in."""

    def __init__(self, config: PostgresConfig) -> None:
        self.slot = f"walbridge_snapshot_{secrets.token_hex(6)}"
        self.lsn = Lsn(0)
        self.name = ""
        self._config = config
        self._connection: Replication | None = None

    async def __aenter__(self) -> Export:
        self._connection = await connect_replication(self._config)
        with connection.translated(self._config):
            try:
                await self._create(self._connection)
            except BaseException:
                await self._connection.close()
                raise
        return self

    async def _create(self, made: Replication) -> None:
        command = (
            f'CREATE_REPLICATION_SLOT "{self.slot}" TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT'
        )
        row = await (await made.execute(command.encode())).fetchone()
        if row is None:
            raise SourceLost(f"PostgreSQL at {self._config.where} made no slot for a snapshot")
        _, consistent_point, self.name, _ = row
        self.lsn = Lsn.parse(consistent_point)

    async def __aexit__(self, *_: object) -> None:
        if self._connection:
            await self._connection.close()


async def retained_bytes(clerk: Connection, slot: str) -> int:
    """Say how much WAL PostgreSQL keeps for the temporary slot; none once it is gone."""
    row = await (await clerk.execute(_RETAINED, [slot])).fetchone()
    return int(row["bytes"] or 0) if row else 0


async def settle(clerk: Connection, snapshot: str) -> None:
    """Wait until every transaction the snapshot holds as committed is so for all of PostgreSQL.

    The slot reads commits from the WAL, where they stand a moment before the commit log says so. A
    reader that looks in between would take such a row for rolled back. A commit that waits for its
    synchronous standby is in the commit log already, so there is no point in waiting long.
    """
    held = normal_snapshot(snapshot)
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        row = await (await clerk.execute(_UNSETTLED, [held])).fetchone()
        if row is None or not row["number"]:
            return
        await asyncio.sleep(0.005)


def normal_snapshot(text: str) -> str:
    """Write a snapshot so that PostgreSQL reads it back.

    One built from the WAL may have its xmin behind its xmax, which the type does not take; what is
    below xmin is over in any case, so that is where it ends.
    """
    xmin, xmax, running = text.split(":")
    return f"{xmin}:{max(int(xmin), int(xmax))}:{running}"

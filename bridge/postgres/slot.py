"""The replication slot: found, made where it is missing, refused where it is not ours."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from bridge.errors import SlotBusy, SlotLost, SourceNotReady
from schemas.positions import Lsn

PLUGIN = "pgoutput"
FAILOVER_SINCE = 170000

_FIND = """
    SELECT plugin, slot_type, database, active_pid, wal_status,
           confirmed_flush_lsn::text AS confirmed, restart_lsn::text AS restart,
           database IS NOT DISTINCT FROM current_database() AS here,
           pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS retained_bytes,
           pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint AS lag_bytes,
           safe_wal_size, pg_current_wal_lsn()::text AS wal_end,
           extract(epoch FROM clock_timestamp())::float8 AS looked_at
      FROM pg_replication_slots WHERE slot_name = %s
"""

_CREATE = "SELECT lsn::text AS lsn FROM pg_create_logical_replication_slot(%s, %s)"
_CREATE_WITH_FAILOVER = (
    "SELECT lsn::text AS lsn FROM pg_create_logical_replication_slot(%s, %s, failover => true)"
)


# The reader may take a moment to go once it was told to.
_TRIES = 50
_TRY_EVERY_SECONDS = 0.1


_NOWHERE = Lsn(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot as PostgreSQL shows it."""

    name: str
    plugin: str | None
    database: str | None
    in_this_database: bool
    active_pid: int | None
    wal_status: str | None
    confirmed_lsn: Lsn | None
    retained_bytes: int | None
    lag_bytes: int | None
    safe_wal_size: int | None
    wal_end: Lsn = _NOWHERE
    looked_at: float = 0.0
    """PostgreSQL's clock, in seconds since 1970."""

    @property
    def wal_lost(self) -> bool:
        return self.wal_status == "lost"


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """The slot is missing, or lost for good: make it, where `lost` is dropped."""

    lost: Slot | None = None


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """The slot is ours: go on where PostgreSQL has it, never above."""

    confirmed_lsn: Lsn


def plan_slot(
    name: str, found: Slot | None, *, recreate: bool = False, lost_at: Lsn | None = None
) -> CreateSlot | ResumeFrom:
    """Decide what to do about the slot, or say why it cannot be used.

    `lost_at` is where a slot stood when PostgreSQL could not send its WAL any more. It shows such a
    slot as sound if the WAL is missing for another reason than its own limits. One that stands
    further on is another slot: somebody has created it since.
    """
    if found is None:
        return CreateSlot()
    if found.plugin != PLUGIN or not found.in_this_database:
        raise SourceNotReady(
            f"slot {name} belongs to plugin {found.plugin} in database {found.database}",
            advice="Choose another --slot, or drop it with"
            f" SELECT pg_drop_replication_slot('{name}').",
        )
    if recreate and (found.wal_lost or _stands_within(found.confirmed_lsn, lost_at)):
        return CreateSlot(lost=found)
    if found.wal_lost:
        raise SlotLost(f"slot {name} is {found.wal_status}: PostgreSQL removed WAL it still needed")
    if found.confirmed_lsn is None:
        # Who makes one waits for the transactions that are open; it goes if they do not finish.
        raise SlotBusy(f"slot {name} is being made by process {found.active_pid}")
    return ResumeFrom(found.confirmed_lsn)


def _stands_within(confirmed_lsn: Lsn | None, lost_at: Lsn | None) -> bool:
    return lost_at is not None and confirmed_lsn is not None and confirmed_lsn <= lost_at


async def find_slot(connection: psycopg.AsyncConnection[DictRow], name: str) -> Slot | None:
    row = await (await connection.execute(_FIND, [name])).fetchone()
    if row is None:
        return None
    return Slot(
        name=name,
        plugin=row["plugin"],
        database=row["database"],
        in_this_database=row["here"],
        active_pid=row["active_pid"],
        wal_status=row["wal_status"],
        confirmed_lsn=Lsn.parse(row["confirmed"]) if row["confirmed"] else None,
        retained_bytes=row["retained_bytes"],
        lag_bytes=row["lag_bytes"],
        safe_wal_size=row["safe_wal_size"],
        wal_end=Lsn.parse(row["wal_end"]),
        looked_at=row["looked_at"],
    )


async def create_slot(connection: psycopg.AsyncConnection[DictRow], name: str) -> Lsn:
    """Make the slot, to survive a failover where the server can do that."""
    survives = connection.info.server_version >= FAILOVER_SINCE
    query = _CREATE_WITH_FAILOVER if survives else _CREATE
    row = await (await connection.execute(query, [name, PLUGIN])).fetchone()
    if row is None:
        raise SourceNotReady(f"PostgreSQL made no slot {name}")
    return Lsn.parse(row["lsn"])


def plan_drop(name: str, found: Slot | None, *, force: bool) -> Slot:
    """Decide that a slot may be dropped, or say why not."""
    if found is None:
        raise SourceNotReady(
            f"there is no slot {name}",
            advice="SELECT slot_name FROM pg_replication_slots lists those there are.",
        )
    if found.plugin != PLUGIN or not found.in_this_database:
        raise SourceNotReady(
            f"slot {name} belongs to plugin {found.plugin} in database {found.database}",
            advice="It is not a bridge's; drop it where it was made.",
        )
    if found.active_pid and not force:
        raise SlotBusy(
            f"slot {name} is being read by process {found.active_pid}",
            advice="Stop the bridge that reads it, or end its session with --force.",
        )
    return found


async def drop_slot(connection: psycopg.AsyncConnection[DictRow], slot: Slot) -> None:
    """Drop a slot, ending the session that reads it where there is one."""
    for _ in range(_TRIES):
        await connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL",
            [slot.name],
        )
        try:
            await connection.execute("SELECT pg_drop_replication_slot(%s)", [slot.name])
            return
        except psycopg.errors.ObjectInUse:
            await asyncio.sleep(_TRY_EVERY_SECONDS)
    raise SlotBusy(f"slot {slot.name} is taken again and again", advice="Stop the bridge first.")

"""Asks PostgreSQL what the doctor wants to know. Reads only; needs no right beyond logging in."""

from __future__ import annotations

import time

import psycopg
from psycopg.rows import DictRow

from bridge.facts import (
    ClockReading,
    PublicationFinding,
    SlotFinding,
    SourceFacts,
    TableFinding,
)

Connection = psycopg.AsyncConnection[DictRow]

_SETTINGS = """
    SELECT current_setting('server_version') AS version,
           current_setting('server_version_num')::int AS version_number,
           pg_is_in_recovery() AS is_standby,
           current_setting('wal_level') AS wal_level,
           current_setting('max_replication_slots')::int AS slots_max,
           current_setting('max_wal_senders')::int AS senders_max,
           (SELECT setting::int FROM pg_settings
             WHERE name = 'max_slot_wal_keep_size') AS keep_size_mib,
           (SELECT setting::int FROM pg_settings
             WHERE name = 'idle_replication_slot_timeout') AS idle_slot_timeout_seconds,
           array(SELECT slot_name::text FROM pg_replication_slots
                  WHERE slot_type = 'physical' ORDER BY 1) AS standby_slots,
           current_setting('synchronized_standby_slots', true) AS synchronized_standby_slots,
           (SELECT count(*)::int FROM pg_replication_slots) AS slots_used,
           (SELECT count(*)::int FROM pg_stat_replication) AS senders_used,
           rolname AS role, rolreplication OR rolsuper AS may_replicate
      FROM pg_roles WHERE rolname = current_user
"""

_PUBLICATION = """
    SELECT pubinsert AS insert, pubupdate AS update, pubdelete AS delete, pubtruncate AS truncate
      FROM pg_publication WHERE pubname = %s
"""

_TABLES = """
    SELECT format('%%I.%%I', n.nspname, c.relname) AS name,
           c.relreplident::text AS replica_identity,
           EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
                                              ELSE i.indisprimary END) AS has_key,
           has_schema_privilege(n.oid, 'USAGE') AS may_enter,
           has_table_privilege(c.oid, 'SELECT') AS may_read,
           format('GRANT USAGE ON SCHEMA %%I TO %%I; ', n.nspname, current_user) AS enter,
           format('GRANT SELECT ON %%I.%%I TO %%I;', n.nspname, c.relname, current_user) AS grant
      FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = %s
     ORDER BY p.schemaname, p.tablename
"""

_SLOT = """
    SELECT plugin, database, active_pid, wal_status,
           database IS NOT DISTINCT FROM current_database() AS in_this_database,
           coalesce(pg_wal_lsn_diff(
               CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                    ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint AS retained_bytes,
           coalesce((to_jsonb(s) ->> 'failover')::bool, false) AS is_failover
      FROM pg_replication_slots s WHERE slot_name = %s
"""


async def survey_source(connection: Connection, *, slot: str, publication: str) -> SourceFacts:
    """Find out everything about this database that the bridge depends on."""
    settings = await _one(connection, _SETTINGS)
    tables = await (await connection.execute(_TABLES, [publication])).fetchall()
    found = await _maybe(connection, _SLOT, slot)
    return SourceFacts(
        **{
            **settings,
            "idle_slot_timeout_seconds": settings["idle_slot_timeout_seconds"] or 0,
            "standby_slots": tuple(settings["standby_slots"]),
        },
        encrypted=connection.pgconn.ssl_in_use,
        publication=_publication(await _maybe(connection, _PUBLICATION, publication)),
        tables=tuple(_table(row) for row in tables),
        slot=SlotFinding(**found) if found else None,
        clock=await _read_clock(connection),
    )


def _publication(row: DictRow | None) -> PublicationFinding | None:
    if row is None:
        return None
    missing = tuple(operation.upper() for operation, published in row.items() if not published)
    return PublicationFinding(missing_operations=missing)


def _table(row: DictRow) -> TableFinding:
    grants = ("" if row["may_enter"] else row["enter"]) + ("" if row["may_read"] else row["grant"])
    return TableFinding(
        name=row["name"],
        replica_identity=row["replica_identity"],
        has_key=row["has_key"],
        may_read=row["may_enter"] and row["may_read"],
        grant=grants.strip(),
    )


async def _read_clock(connection: Connection) -> ClockReading:
    before = time.time()
    row = await _one(connection, "SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    after = time.time()
    return ClockReading(float(row["now"]) - (before + after) / 2, (after - before) / 2)


async def _one(connection: Connection, query: str) -> DictRow:
    row = await (await connection.execute(query)).fetchone()
    if row is None:
        raise psycopg.DataError(f"no answer to {query!r}")
    return row


async def _maybe(connection: Connection, query: str, name: str) -> DictRow | None:
    return await (await connection.execute(query, [name])).fetchone()

"""Checks of PostgreSQL: its version and settings, the role, the publication's tables, the slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bridge.doctor.findings import Answer, Check, Said, counted, mebibytes, quoted
from bridge.facts import Facts, SourceFacts, TableFinding, Unreachable, Verdict

OLDEST_POSTGRES = 150_000
"""The first whose publications name their columns."""
SMALL_KEEP_MIB = 1_024
PLUGIN = "pgoutput"


def _of_source(judge: Callable[[Facts, SourceFacts], Answer]) -> Callable[[Facts], Answer]:
    """Leave a check out where PostgreSQL could not be asked."""
    return lambda facts: judge(facts, facts.source) if isinstance(facts.source, SourceFacts) else ()


def _source_reachable(facts: Facts) -> Said:
    if isinstance(facts.source, Unreachable):
        return Said("fail", f"{facts.source.why}; nothing else could be checked there",
                    facts.source.advice)  # fmt: skip
    how = "over TLS" if facts.source.encrypted else "without TLS"
    return Said("ok", f"connected as {facts.source.role}, {how}")


def _source_version(_: Facts, source: SourceFacts) -> Said:
    if source.version_number < OLDEST_POSTGRES:
        return Said("fail", f"PostgreSQL {source.version} is too old",
                    f"Use PostgreSQL {OLDEST_POSTGRES // 10_000} or newer.")  # fmt: skip
    return Said("ok", f"PostgreSQL {source.version}")


def _primary(_: Facts, source: SourceFacts) -> Said:
    if source.is_standby:
        return Said("fail", "this server is a standby", "Point PG_HOST at the primary.")
    return Said("ok", "this server takes writes")


def _wal_level(_: Facts, source: SourceFacts) -> Said:
    if source.wal_level != "logical":
        return Said("fail", f"wal_level is {source.wal_level}, and logical decoding needs logical",
                    "ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL.")  # fmt: skip
    return Said("ok", "logical")


def _slots(_: Facts, source: SourceFacts) -> Said:
    needed = 0 if source.slot else 1
    return _headroom("max_replication_slots", source.slots_used, source.slots_max, needed)


def _senders(_: Facts, source: SourceFacts) -> Said:
    needed = 0 if source.slot and source.slot.active_pid else 1
    return _headroom("max_wal_senders", source.senders_used, source.senders_max, needed)


def _headroom(setting: str, used: int, most: int, needed: int) -> Said:
    """Room for the bridge is a must; a snapshot needs one more for as long as it begins."""
    free = most - used
    raise_it = f"ALTER SYSTEM SET {setting} = {used + needed + 4}, then restart PostgreSQL."
    if free < needed:
        return Said("fail", f"all {most} are taken", raise_it)
    if free == needed:
        return Said("warn", f"{used} of {most} used: none is left for snapshots", raise_it)
    return Said("ok", f"{used} of {most} used")


def _role(_: Facts, source: SourceFacts) -> Said:
    if not source.may_replicate:
        return Said("fail", f"role {source.role} may not replicate",
                    f"ALTER ROLE {quoted(source.role)} REPLICATION, or run init.sh.")  # fmt: skip
    return Said("ok", f"role {source.role} may replicate")


def _publication(facts: Facts, source: SourceFacts) -> Said:
    name = facts.publication
    if source.publication is None:
        return Said("fail", f"publication {name} does not exist in this database",
                    f"CREATE PUBLICATION {quoted(name)} FOR TABLE ..., or run init.sh."
                    )  # fmt: skip
    if source.publication.missing_operations:
        missing = " and ".join(source.publication.missing_operations)
        return Said("warn", f"{name} leaves out {missing}: consumers never hear of it",
                    f"ALTER PUBLICATION {quoted(name)} SET"
                    " (publish = 'insert, update, delete, truncate');")  # fmt: skip
    if not source.tables:
        return Said("warn", f"{name} has no tables: there is nothing to publish",
                    f"ALTER PUBLICATION {quoted(name)} ADD TABLE ...;")  # fmt: skip
    return Said("ok", f"{name} has {counted(len(source.tables), 'table')}")


def _keys(_: Facts, source: SourceFacts) -> Iterator[Said]:
    for table in source.tables:
        verdict, what, remedy = judge_identity(table)
        yield Said(verdict, what, remedy, table.name)


def judge_identity(table: TableFinding) -> tuple[Verdict, str, str]:
    """Say what a table's replica identity and key mean for whoever writes to it or reads it."""
    add_key = f"ALTER TABLE {table.name} ADD PRIMARY KEY (...);"
    match table.replica_identity, table.has_key:
        case "f", True:
            return "ok", "primary key; REPLICA IDENTITY FULL sends every old row whole", ""
        case "f", False:
            return (
                "warn",
                "no key: old rows come whole, and equal rows cannot be told apart",
                add_key,
            )
        case "i", True:
            return "ok", "the replica identity's index is the key", ""
        case "d", True:
            return "ok", "primary key", ""
        case _:
            return (
                "warn",
                "no replica identity: PostgreSQL refuses UPDATE and DELETE on it while it is"
                " published; INSERT works",
                f"{add_key} or ALTER TABLE {table.name} REPLICA IDENTITY FULL;",
            )


def _grants(_: Facts, source: SourceFacts) -> Iterator[Said]:
    closed = [table for table in source.tables if not table.may_read]
    for table in closed:
        yield Said("fail", f"role {source.role} may not read it: no snapshot can be taken",
                   table.grant, table.name)  # fmt: skip
    if source.tables and not closed:
        yield Said("ok", f"role {source.role} may read every published table")


def _slot(facts: Facts, source: SourceFacts) -> Said:
    name, slot = facts.slot, source.slot
    if slot is None:
        return Said("ok", f"{name} does not exist; the bridge makes it at start")
    if slot.plugin != PLUGIN or not slot.in_this_database:
        return Said("fail", f"{name} belongs to plugin {slot.plugin} in database {slot.database}",
                    "Choose another --slot.")  # fmt: skip
    if slot.wal_status == "lost":
        return Said("fail", f"{name} is lost: PostgreSQL removed WAL it still needed",
                    f"bridge drop-slot --slot {name}, start again, and let consumers take a new"
                    " snapshot.")  # fmt: skip
    kept = f"PostgreSQL keeps {mebibytes(slot.retained_bytes)} for it"
    if slot.wal_status == "unreserved":
        return Said("warn", f"{name} is about to be lost; {kept}",
                    "Start the bridge now, or raise max_slot_wal_keep_size.")  # fmt: skip
    reader = f"read by process {slot.active_pid}" if slot.active_pid else "nobody reads it"
    return Said("ok", f"{name}: {reader}; {kept}")


def _keep_size(_: Facts, source: SourceFacts) -> Said:
    if source.keep_size_mib < 0:
        return Said("warn", "no limit: while the bridge is down, WAL may fill PostgreSQL's disk",
                    "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; (what the disk can spare),"
                    " then SELECT pg_reload_conf();")  # fmt: skip
    size = mebibytes(source.keep_size_mib << 20)
    if source.keep_size_mib < SMALL_KEEP_MIB:
        return Said("warn", f"{size}: a short outage is enough to lose the slot",
                    "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; (what the disk can spare),"
                    " then SELECT pg_reload_conf();")  # fmt: skip
    return Said("ok", f"{size} of WAL are kept for a bridge that is down; beyond, the slot is lost")


def _idle_timeout(_: Facts, source: SourceFacts) -> Answer:
    if not source.idle_slot_timeout_seconds:
        return ()
    return Said("warn", f"a bridge that is down for {source.idle_slot_timeout_seconds} s loses its"
                " slot", "ALTER SYSTEM SET idle_replication_slot_timeout = 0;"
                " then SELECT pg_reload_conf();")  # fmt: skip


def _failover(facts: Facts, source: SourceFacts) -> Answer:
    """Say what a promotion of a standby would cost."""
    if not source.standby_slots:
        return ()
    if source.synchronized_standby_slots is None:
        return Said("warn", "a promoted standby has no slot: changes would be missing, and marked"
                    " as a gap or fork", "Failover slots need PostgreSQL 17 or newer.")  # fmt: skip
    if source.slot and not source.slot.is_failover:
        return Said("warn", f"{facts.slot} is no failover slot: a promoted standby would not have"
                    " it", "Over a replication connection (psql 'replication=database ...'):"
                    f" ALTER_REPLICATION_SLOT {facts.slot} (FAILOVER true)")  # fmt: skip
    if not source.synchronized_standby_slots:
        return Said("warn", "a standby may be promoted without changes that consumers have already,"
                    " which would be a fork", "ALTER SYSTEM SET synchronized_standby_slots ="
                    f" '{','.join(source.standby_slots)}'; SELECT pg_reload_conf(); and on each"
                    " standby sync_replication_slots = on, hot_standby_feedback = on and a dbname"
                    " in primary_conninfo.")  # fmt: skip
    return Said("ok", "changes are published once the standbys"
                f" {source.synchronized_standby_slots} have them")  # fmt: skip


SOURCE_CHECKS = (
    Check("postgres", _source_reachable),
    Check("postgres version", _of_source(_source_version)),
    Check("primary", _of_source(_primary)),
    Check("wal_level", _of_source(_wal_level)),
    Check("max_replication_slots", _of_source(_slots)),
    Check("max_wal_senders", _of_source(_senders)),
    Check("role", _of_source(_role)),
    Check("publication", _of_source(_publication)),
    Check("key", _of_source(_keys)),
    Check("grants", _of_source(_grants)),
    Check("slot", _of_source(_slot)),
    Check("max_slot_wal_keep_size", _of_source(_keep_size)),
    Check("idle_replication_slot_timeout", _of_source(_idle_timeout)),
    Check("failover", _of_source(_failover)),
)

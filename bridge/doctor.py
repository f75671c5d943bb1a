"""The doctor: judges what was found on both servers. Pure; it neither asks nor changes anything.

Facts come from `postgres/survey.py` and `jetstream/survey.py`. Each row of `CHECKS` reads them and
gives findings: `ok`, `warn` (the bridge works, a promise is weaker than it could be) or `fail` (it
cannot start, or one of its tasks cannot be done), the latter two with what to do. A server that
could not be asked is one failure, and the rows about it are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.facts import (
    ClockReading,
    Facts,
    SinkFacts,
    SourceFacts,
    StoreFinding,
    TableFinding,
    Unreachable,
    Verdict,
)

OLDEST_POSTGRES = 150_000
"""The first whose publications name their columns."""
OLDEST_NATS = (2, 14)
"""The first with fast-ingest batches."""
CLOCK_TOLERANCE_SECONDS = 2.0
SMALL_KEEP_MIB = 1_024
PLUGIN = "pgoutput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says about one thing."""

    verdict: Verdict
    check: str
    what: str
    remedy: str = ""

    def to_map(self) -> dict[str, str]:
        return {
            "verdict": self.verdict,
            "check": self.check,
            "what": self.what,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Said:
    """A judgement before it is given its check's name."""

    verdict: Verdict
    what: str
    remedy: str = ""
    about: str = ""


Answer = Said | Iterable[Said]


@dataclass(frozen=True, slots=True)
class Check:
    """One row: its name, and the function that judges."""

    name: str
    judge: Callable[[Facts], Answer]


def _of_source(judge: Callable[[Facts, SourceFacts], Answer]) -> Callable[[Facts], Answer]:
    """Leave a check out where PostgreSQL could not be asked."""
    return lambda facts: judge(facts, facts.source) if isinstance(facts.source, SourceFacts) else ()


def _of_sink(judge: Callable[[Facts, SinkFacts], Answer]) -> Callable[[Facts], Answer]:
    """Leave a check out where NATS could not be asked."""
    return lambda facts: judge(facts, facts.sink) if isinstance(facts.sink, SinkFacts) else ()


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
    return Said("ok", f"{name} has {_count(len(source.tables), 'table')}")


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


def _sink_reachable(facts: Facts) -> Said:
    if isinstance(facts.sink, Unreachable):
        return Said("fail", f"{facts.sink.why}; nothing else could be checked there",
                    facts.sink.advice)  # fmt: skip
    return Said("ok", f"connected {'over' if facts.sink.encrypted else 'without'} TLS")


def _sink_version(_: Facts, sink: SinkFacts) -> Said:
    parts = sink.version.split(".")
    numbers = tuple(int(part) for part in parts[:2] if part.isdigit())
    if numbers < OLDEST_NATS:
        return Said("fail", f"nats-server {sink.version} cannot keep a batch in order when one of"
                    " its messages is refused",
                    f"Use nats-server {'.'.join(map(str, OLDEST_NATS))} or newer.")  # fmt: skip
    return Said("ok", f"nats-server {sink.version}")


def _jetstream(_: Facts, sink: SinkFacts) -> Said:
    if sink.jetstream:
        return Said("fail", sink.jetstream.why, sink.jetstream.advice)
    return Said("ok", "enabled for this account")


def _streams(_: Facts, sink: SinkFacts) -> Iterator[Said]:
    return _stores(sink.streams)


def _buckets(_: Facts, sink: SinkFacts) -> Iterator[Said]:
    return _stores(sink.buckets)


def _stores(stores: Iterable[StoreFinding]) -> Iterator[Said]:
    for store in stores:
        if not store.exists:
            yield Said("ok", "does not exist; the bridge makes it at start", about=store.name)
        elif not store.problems:
            yield Said("ok", "its settings keep every promise", about=store.name)
        for verdict, what, remedy in store.problems:
            yield Said(verdict, what, remedy, store.name)


def _room(_: Facts, sink: SinkFacts) -> Answer:
    missing = sum(store.reserves_bytes for store in sink.streams if not store.exists)
    if sink.jetstream or not missing or sink.storage_free is None:
        return ()
    if missing > sink.storage_free:
        return Said("fail", f"streams to be made reserve {mebibytes(missing)}, and the account has"
                    f" {mebibytes(sink.storage_free)} left",
                    "Raise the account's disk storage, or choose less with"
                    " --stream-max-bytes.")  # fmt: skip
    return Said("ok", f"{mebibytes(sink.storage_free)} left for {mebibytes(missing)} of streams")


def _clocks(facts: Facts) -> Iterator[Said]:
    if isinstance(facts.source, SourceFacts):
        yield judge_clock("PostgreSQL", facts.source.clock)
    if isinstance(facts.sink, SinkFacts) and facts.sink.clock:
        yield judge_clock("NATS", facts.sink.clock)


def judge_clock(server: str, clock: ClockReading) -> Said:
    """Positions and order do not depend on clocks; ages, lags and expiry do."""
    off = abs(clock.ahead_seconds)
    if off - clock.uncertainty_seconds > CLOCK_TOLERANCE_SECONDS:
        way = "ahead of" if clock.ahead_seconds > 0 else "behind"
        return Said("warn", f"{server} is {off:.1f} s {way} this machine: ages and lags are wrong"
                    " by as much", "Let both follow an NTP server.", server)  # fmt: skip
    within = max(off, clock.uncertainty_seconds)
    return Said("ok", f"{server} and this machine agree within {within:.1g} s", about=server)


CHECKS = (
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
    Check("nats", _sink_reachable),
    Check("nats version", _of_sink(_sink_version)),
    Check("jetstream", _of_sink(_jetstream)),
    Check("stream", _of_sink(_streams)),
    Check("bucket", _of_sink(_buckets)),
    Check("room", _of_sink(_room)),
    Check("clock", _clocks),
)


def examine(facts: Facts) -> list[Finding]:
    """Let every row judge, in the table's order."""
    findings = []
    for check in CHECKS:
        answer = check.judge(facts)
        for said in [answer] if isinstance(answer, Said) else answer:
            name = f"{check.name} {said.about}".strip()
            findings.append(
                Finding(verdict=said.verdict, check=name, what=said.what, remedy=said.remedy)
            )
    return findings


def passes(findings: Iterable[Finding]) -> bool:
    """Warnings do not keep the bridge from its work; a failure does."""
    return all(finding.verdict != "fail" for finding in findings)


def render(findings: Sequence[Finding]) -> str:
    """Write one line per finding, its remedy at the end, and a last line that counts."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = [
        f"{finding.verdict:<5} {finding.check:<{width}}  {finding.what}"
        + (f" -> {finding.remedy}" if finding.remedy else "")
        for finding in findings
    ]
    return "\n".join([*lines, summary(findings)])


def summary(findings: Sequence[Finding]) -> str:
    counts = dict.fromkeys(("ok", "warn", "fail"), 0)
    for finding in findings:
        counts[finding.verdict] += 1
    return f"{counts['ok']} ok, {_count(counts['warn'], 'warning')}, {counts['fail']} failed"


def to_map(findings: Sequence[Finding]) -> dict[str, Any]:
    """Give the same for machines."""
    return {"passes": passes(findings), "findings": [finding.to_map() for finding in findings]}


def quoted(name: str) -> str:
    """Quote an SQL name."""
    return '"' + name.replace('"', '""') + '"'


def mebibytes(size: int) -> str:
    """Write a size for people."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return f"{size} B"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""The doctor's judgement: every row of its table, from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.doctor import CHECKS, Finding, examine, passes, render, to_map
from bridge.facts import (
    ClockReading,
    Facts,
    PublicationFinding,
    SinkFacts,
    SlotFinding,
    SourceFacts,
    StoreFinding,
    TableFinding,
    Unreachable,
    Verdict,
)

TABLE = TableFinding(name="users", replica_identity="d", has_key=True, may_read=True, grant="")
SLOT = SlotFinding(
    plugin="pgoutput", database="shop", in_this_database=True, active_pid=7,
    wal_status="reserved", retained_bytes=1 << 20,
)  # fmt: skip
FAILOVER_SLOT = replace(SLOT, is_failover=True)
SOURCE = SourceFacts(
    version="18.1", version_number=180_001, is_standby=False, encrypted=True, wal_level="logical",
    slots_used=1, slots_max=10, senders_used=1, senders_max=10, role="bridge", may_replicate=True,
    keep_size_mib=51_200, idle_slot_timeout_seconds=0, publication=PublicationFinding(),
    tables=(TABLE,), slot=SLOT, clock=ClockReading(0.01, 0.001),
)  # fmt: skip
SINK = SinkFacts(
    version="2.15.1", encrypted=True, jetstream=None,
    streams=(StoreFinding(name="CDC", exists=True),),
    buckets=(StoreFinding(name="schemas", exists=True),),
    storage_free=1 << 40, clock=ClockReading(0.0, 0.001),
)  # fmt: skip
HEALTHY = Facts(slot="s", publication="pub", source=SOURCE, sink=SINK)
RISK: tuple[Verdict, str, str] = ("warn", "is risky", "mend")
DOWN = Unreachable("it is down", "Start it.")


def found(facts: Facts, check: str) -> Finding:
    """Give the one finding of a check."""
    (finding,) = (finding for finding in examine(facts) if finding.check == check)
    return finding


def source(**changed: object) -> Facts:
    return replace(HEALTHY, source=replace(SOURCE, **changed))  # type: ignore[arg-type]


def sink(**changed: object) -> Facts:
    return replace(HEALTHY, sink=replace(SINK, **changed))  # type: ignore[arg-type]


def test_two_healthy_servers_pass() -> None:
    findings = examine(HEALTHY)
    assert {finding.verdict for finding in findings} == {"ok"}
    assert passes(findings)


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("facts", "check", "verdict", "word"),
    [
        (source(version_number=140_005), "postgres version", "fail", "15"),
        (source(is_standby=True), "primary", "fail", "PG_HOST"),
        (source(wal_level="replica"), "wal_level", "fail", "ALTER SYSTEM SET wal_level"),
        (source(slot=None, slots_used=10), "max_replication_slots", "fail", "= 15"),
        (source(slots_used=10), "max_replication_slots", "warn", "= 14"),
        (source(slot=None, senders_used=10), "max_wal_senders", "fail", "max_wal_senders"),
        (source(may_replicate=False), "role", "fail", 'ALTER ROLE "bridge" REPLICATION'),
        (source(publication=None), "publication", "fail", 'CREATE PUBLICATION "pub"'),
        (
            source(publication=PublicationFinding(missing_operations=("DELETE",))),
            "publication", "warn", "publish = ",
        ),
        (source(tables=()), "publication", "warn", "ADD TABLE"),
        (
            source(tables=(replace(TABLE, may_read=False, grant="GRANT SELECT"),)),
            "grants users", "fail", "GRANT SELECT",
        ),
        (source(slot=replace(SLOT, wal_status="lost")), "slot", "fail", "drop-slot --slot s"),
        (source(slot=replace(SLOT, wal_status="unreserved")), "slot", "warn", "Start the bridge"),
        (source(slot=replace(SLOT, plugin="test_decoding")), "slot", "fail", "another --slot"),
        (source(slot=replace(SLOT, in_this_database=False)), "slot", "fail", "another --slot"),
        (source(keep_size_mib=-1), "max_slot_wal_keep_size", "warn", "ALTER SYSTEM"),
        (source(keep_size_mib=64), "max_slot_wal_keep_size", "warn", "ALTER SYSTEM"),
        (
            source(idle_slot_timeout_seconds=60),
            "idle_replication_slot_timeout", "warn", "ALTER SYSTEM",
        ),
        (source(standby_slots=("a",)), "failover", "warn", "PostgreSQL 17"),
        (
            source(standby_slots=("a",), synchronized_standby_slots="a"),
            "failover", "warn", "ALTER_REPLICATION_SLOT s (FAILOVER true)",
        ),
        (
            source(standby_slots=("a", "b"), synchronized_standby_slots="", slot=FAILOVER_SLOT),
            "failover", "warn", "synchronized_standby_slots = 'a,b'",
        ),
        (
            source(standby_slots=("a",), synchronized_standby_slots="a", slot=FAILOVER_SLOT),
            "failover", "ok", "",
        ),
        (source(clock=ClockReading(-9.0, 0.1)), "clock PostgreSQL", "warn", "NTP"),
        (sink(version="2.12.3"), "nats version", "fail", "2.14"),
        (sink(version=""), "nats version", "fail", "2.14"),
        (sink(version="2.14.6"), "nats version", "warn", "sync_interval: always"),
        (sink(version="2.14.7-RC.1"), "nats version", "ok", ""),
        (sink(jetstream=DOWN), "jetstream", "fail", "Start it."),
        (
            sink(streams=(StoreFinding(name="CDC", exists=True, problems=(RISK,)),)),
            "stream CDC", "warn", "mend",
        ),
        (
            sink(streams=(StoreFinding(name="CDC", exists=False, reserves_bytes=1 << 41),)),
            "room", "fail", "--stream-max-bytes",
        ),
        (sink(clock=ClockReading(9.0, 0.1)), "clock NATS", "warn", "NTP"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_remedy(
    facts: Facts, check: str, verdict: str, word: str
) -> None:
    finding = found(facts, check)
    assert finding.verdict == verdict
    assert word in finding.remedy


@pytest.mark.parametrize(
    ("identity", "has_key", "verdict", "consequence"),
    [
        ("d", True, "ok", "primary key"),
        ("i", True, "ok", "index"),
        ("f", True, "ok", "every old row whole"),
        ("f", False, "warn", "cannot be told apart"),
        ("d", False, "warn", "refuses UPDATE and DELETE"),
        ("n", True, "warn", "refuses UPDATE and DELETE"),
    ],
)
def test_the_consequence_of_a_tables_identity_is_named(
    identity: str, has_key: bool, verdict: str, consequence: str
) -> None:
    table = replace(TABLE, replica_identity=identity, has_key=has_key)
    finding = found(source(tables=(table,)), "key users")
    assert finding.verdict == verdict
    assert consequence in finding.what


def test_a_clock_that_cannot_be_read_exactly_is_not_blamed() -> None:
    assert found(source(clock=ClockReading(3.0, 2.0)), "clock PostgreSQL").verdict == "ok"


@pytest.mark.parametrize("down", [{"source": DOWN}, {"sink": DOWN}, {"source": DOWN, "sink": DOWN}])
def test_one_server_that_is_down_does_not_hide_the_other(down: dict[str, Unreachable]) -> None:
    findings = examine(replace(HEALTHY, **down))  # type: ignore[arg-type]
    failed = [finding.check for finding in findings if finding.verdict == "fail"]
    assert failed == [{"source": "postgres", "sink": "nats"}[server] for server in down]
    assert len(findings) > len(failed) or len(down) == 2
    assert not passes(findings)


def test_one_line_per_finding_and_one_that_counts() -> None:
    findings = examine(source(keep_size_mib=-1, may_replicate=False))
    lines = render(findings).splitlines()
    assert len(lines) == len(findings) + 1
    assert lines[-1] == f"{len(findings) - 2} ok, 1 warning, 1 failed"


def test_machines_get_the_same() -> None:
    answer = to_map(examine(source(may_replicate=False)))
    assert answer["passes"] is False
    assert {"verdict", "check", "what", "remedy"} == answer["findings"][0].keys()

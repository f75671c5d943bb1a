"""What operators alert on, beside a real slot that runs out of WAL while NATS is down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.bridge import BridgeProcess, wait_for

SEGMENT = 16 << 20
LAG = "bridge_lag_seconds"
SAFE = "bridge_slot_safe_wal_bytes"
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def writer(own_postgres: EmbeddedPostgres) -> Iterator[Connection]:
    """A database whose slots may keep 16 segments, of which 2 fit into max_wal_size."""
    own_postgres.settings |= {"max_wal_size": "32MB", "max_slot_wal_keep_size": "256MB"}
    own_postgres.restart()
    with psycopg.connect(own_postgres.dsn(own_postgres.create_database("slots"))) as connection:
        connection.autocommit = True
        connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE users")
        yield connection


def write_segments(connection: Connection, count: int) -> None:
    for _ in range(count):
        connection.execute("INSERT INTO users SELECT coalesce(max(id), 0) + 1 FROM users")
        connection.execute("SELECT pg_switch_wal()")


def metrics(bridge: BridgeProcess) -> dict[str, float]:
    lines = bridge.get("/metrics")[1].decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


Metrics = dict[str, float]


def wait_for_metrics(bridge: BridgeProcess, is_so: Callable[[Metrics], bool], what: str) -> Metrics:
    def look() -> Metrics | None:
        found = metrics(bridge)
        return found if "bridge_slot_safe_wal_bytes" in found and is_so(found) else None

    return wait_for(look, what)


def is_healthy(found: Metrics) -> bool:
    return found['bridge_slot_wal_status{status="reserved"}'] == 1 and not found[LAG]


def is_short_of_wal(found: Metrics) -> bool:
    return found['bridge_slot_wal_status{status="extended"}'] == 1 and found[LAG] > 0


def test_wal_left_wal_status_and_lag_move_while_nats_is_down(
    own_postgres: EmbeddedPostgres, nats: EmbeddedNats, writer: Connection, tmp_path: Path
) -> None:
    """The slot is looked at while no session streams: exactly then the WAL runs out."""
    environ = {**own_postgres.env("slots"), **nats.env(), "BRIDGE_SLOT": "slot_metrics"}
    flags = ("--pub", "pub", "--durability", "acked", "--ack-timeout", "2")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        write_segments(writer, 1)
        before = wait_for_metrics(bridge, is_healthy, "a slot that has all it needs")
        assert "bridge_last_error_age_seconds" not in before

        nats.stop()
        write_segments(writer, 5)
        behind = wait_for_metrics(bridge, is_short_of_wal, "more WAL than max_wal_size")
        assert before[SAFE] - behind[SAFE] >= 3 * SEGMENT
        assert behind["bridge_slot_retained_bytes"] >= 3 * SEGMENT
        assert behind["bridge_slot_seconds_left"] > 0
        assert behind["bridge_connected"] == 0
        wait_for_metrics(bridge, lambda found: found[LAG] > behind[LAG], "the lag to grow")
        assert bridge.status()["slot_state"]["wal_status"] == "extended"

        nats.start()
        bridge.wait_streaming()
        after = wait_for_metrics(
            bridge,
            lambda found: release(writer) and is_healthy(found) and found[SAFE] > behind[SAFE],
            "the slot to be as before",
        )
        assert after["bridge_last_error_age_seconds"] >= 0


def release(connection: Connection) -> bool:
    """Let PostgreSQL move the slot's restart position, which it does at such a record."""
    connection.execute("SELECT pg_log_standby_snapshot()")
    return True

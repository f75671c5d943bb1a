"""Key changes in batches above every threshold: several ranges, blocks, buckets, and read-ahead.

PostgreSQL judges. A small batch has one bucket and one block per range, in which stream order comes
for free; here each table's changes meet from several buckets and ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.app import AHEAD_MESSAGES
from lake_consumer.iceberg.ahead import RANGE_MESSAGES, ReadAhead, Reading
from lake_consumer.iceberg.table import BUCKET_ROWS
from tests.conftest import Connection
from tests.support.bridge import wait_for
from tests.support.lake import LakeRig
from tests.support.rig import Rig

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

FILLER = 110_000
MOVED = 30_000


@pytest.fixture
def bridge(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Rig]:
    with Rig(connection, postgres, nats, tmp_path) as rig:
        yield rig


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Reading | None]:
    """What each batch found read ahead."""
    taken: list[Reading | None] = []
    take = ReadAhead.take

    def counted(reads: ReadAhead) -> Reading | None:
        taken.append(take(reads))
        return taken[-1]

    monkeypatch.setattr(ReadAhead, "take", counted)
    return taken


def test_key_changes_in_large_batches_leave_postgresqls_own_table(
    bridge: Rig, rig: LakeRig, connection: Connection, readings: list[Reading | None]
) -> None:
    """Every catch-up after a stop is such a batch, and a wrong order is silent."""
    assert FILLER > 2 * RANGE_MESSAGES
    assert max(BUCKET_ROWS, AHEAD_MESSAGES) < MOVED
    bridge.execute(
        "CREATE TABLE filler (id int PRIMARY KEY, v text)",
        "CREATE TABLE k (id int PRIMARY KEY, v text)",
        "INSERT INTO k SELECT g, 'old' FROM generate_series(1, 20) g",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    bridge.start()
    settle(bridge)
    rig.catch_up()

    # The first batch of a process: every table gets as many buckets as all messages would need.
    bridge.execute(
        f"INSERT INTO filler SELECT g, 'x' FROM generate_series(1, {FILLER}) g",
        "UPDATE k SET id = id + 100",
        "INSERT INTO k SELECT g, 'new' FROM generate_series(1, 20) g",
    )
    settle(bridge)
    rig.catch_up(max_messages=1_000_000)
    assert_equal(rig, connection, "k")
    assert_equal(rig, connection, "filler")

    # Several batches, read ahead, with a table whose own changes need several buckets.
    readings.clear()
    for _ in range(2):
        bridge.execute(
            "DELETE FROM k WHERE id > 100",
            f"UPDATE filler SET id = id + 1000000 WHERE id <= {MOVED}",
            "UPDATE k SET id = id + 100",
            "INSERT INTO k SELECT g, 'newer' FROM generate_series(1, 20) g",
            f"INSERT INTO filler SELECT g, 'again' FROM generate_series(1, {MOVED}) g",
            "DELETE FROM filler WHERE id > 1000000",
        )
    settle(bridge)
    rig.catch_up(max_messages=4 * MOVED)

    assert_equal(rig, connection, "k")
    assert_equal(rig, connection, "filler")
    assert any(reading is not None for reading in readings), "no batch was read ahead"
    logged = [row["stream_seq"] for row in rig.log("filler")]
    assert len(logged) == len(set(logged)) == FILLER + 2 * 3 * MOVED


def settle(bridge: Rig) -> None:
    """Wait until all that was committed is stored."""
    connection = bridge.connection
    end = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert end is not None
    query = (
        "SELECT slot_name FROM pg_replication_slots"
        " WHERE slot_name = %s AND confirmed_flush_lsn >= %s"
    )
    wait_for(lambda: connection.execute(query, [bridge.slot, end[0]]).fetchone(), "the stream")


def assert_equal(rig: LakeRig, connection: Connection, table: str) -> None:
    expected = {
        row[0]: row[1] for row in connection.execute(f"SELECT id, v FROM {table}").fetchall()
    }
    shown = [(row["id"], row["v"]) for row in rig.mirror(table)]
    assert len(shown) == len(expected), table
    assert dict(shown) == expected, table

"""Three NATS servers that fail the way Jepsen makes them fail: acknowledged, rolled back, cut off.

`CHAOS_ROUNDS` repeats the sequence, and tries `acked` too; `make chaos` sets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.positions import Lsn
from schemas.streams import BUCKETS, CDC_STREAM, INIT_STREAM
from schemas.subjects import GAP_PREFIX
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.natscluster import (
    SERVERS,
    Disk,
    led_by_another,
    replicas_agree,
    running_cluster,
)
from tests.support.stream import StoredMessage, read_stream

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
ROWS = 500
"""Rows of one step, each in a transaction of its own."""

REPLICATED = (CDC_STREAM.name, INIT_STREAM.name, *(f"KV_{bucket.name}" for bucket in BUCKETS))


@pytest.fixture
def cluster() -> Iterator[list[EmbeddedNats]]:
    with running_cluster() as servers:
        yield servers


class Users:
    """A published table; counts what was written to it."""

    def __init__(self, connection: Connection, slot: str, environ: dict[str, str]) -> None:
        self._connection = connection
        self.environ = environ
        self.slot = slot
        self.written = 0
        connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE users")

    def insert(self) -> Lsn:
        """Write a step's rows, and say where the WAL is then."""
        for number in range(self.written + 1, self.written + ROWS + 1):
            self._connection.execute("INSERT INTO users VALUES (%s)", [number])
        self.written += ROWS
        return self._lsn("SELECT pg_current_wal_lsn()::text")

    def confirmed(self) -> Lsn:
        return self._lsn(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            self.slot,
        )

    def _lsn(self, query: str, *values: str) -> Lsn:
        row = self._connection.execute(query, values).fetchone()
        assert row is not None
        return Lsn.parse(str(row[0]))


def wait_acked(bridge: BridgeProcess, lsn: Lsn) -> None:
    wait_for(lambda: Lsn.parse(bridge.status()["acked_lsn"]) >= lsn, f"everything up to {lsn}")


def lose_what_two_acknowledged(
    servers: list[EmbeddedNats], users: Users, bridge: BridgeProcess, disk: Disk
) -> list[StoredMessage]:
    """Take a follower away, roll another back, then cut the leader off; give what is stored then.

    They are killed: one that is only frozen would find what it missed in its socket.
    """
    wait_acked(bridge, users.insert())
    wait_for(lambda: replicas_agree(servers[0].url), "equal replicas")
    disk.keep()
    leader = wait_for(lambda: led_by_another(servers, disk.server), "another leader")
    wait_for(lambda: replicas_agree(leader.url), "equal replicas again")
    (follower,) = (each for each in servers if each not in (leader, disk.server))
    follower.kill()
    end = users.insert()
    wait_acked(bridge, end)
    if "acked" in bridge.flags:
        wait_for(lambda: users.confirmed() >= end, "the slot to move")
    disk.lose()
    leader.kill()
    follower.start()
    disk.server.start()
    wait_acked(bridge, users.insert())
    found = read_stream(disk.server.url)
    leader.start()
    return found


@pytest.fixture
def users(postgres: EmbeddedPostgres, database: str, connection: Connection) -> Users:
    return Users(connection, f"slot_{database}", postgres.env(database))


@pytest.mark.parametrize(
    "durability", ["auto", "acked"] if "CHAOS_ROUNDS" in os.environ else ["auto"]
)
def test_what_two_of_three_servers_acknowledged_and_lost_is_not_lost(
    cluster: list[EmbeddedNats], users: Users, tmp_path: Path, durability: str
) -> None:
    """By default everything is stored again; with `acked` it cannot be, and the gap is marked.

    Two servers acknowledge. One of them comes back with an older disk, and the two that are left
    agree on a stream without those changes.
    """
    first, second, _ = cluster
    environ = {**users.environ, **second.env()}
    flags = ["--slot", users.slot, "--pub", "pub", "--durability", durability]
    flags += ["--stream-replicas", str(SERVERS), "--ack-timeout", "5"]
    disk = Disk(second, tmp_path / "copy")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        # A disk is copied later: a replica that is not there yet would be missing from the copy,
        # and two servers that both lack it elect no leader for it.
        for stream in REPLICATED:
            wait_for(partial(replicas_agree, first.url, stream), f"replicas of {stream}")
        for number in range(ROUNDS if durability == "auto" else 1):
            found = lose_what_two_acknowledged(cluster, users, bridge, disk)
            told = bridge.status()["lost_tails"]
            stored = [m.fields["data"]["id"] for m in found if m.subject == "cdc.users.insert"]
            gaps = [m for m in found if m.subject.endswith(GAP_PREFIX)]
            print(f"{durability}, round {number + 1}: {users.written} changes, {told}")

            lost = range(ROWS + 1, 2 * ROWS + 1) if durability == "acked" else ()
            assert stored == [row for row in range(1, users.written + 1) if row not in lost]
            assert (told["count"], told["gaps_marked"]) == (number + 1, len(gaps))
            assert len(gaps) == (durability == "acked")

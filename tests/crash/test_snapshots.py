"""Kill it in the middle of a snapshot: what has a meta is whole, and a stored request is served.

`CHAOS_ROUNDS` lengthens the run; the seed is printed and `CHAOS_SEED` repeats it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.proxy import Proxy
from tests.support.snapshots import read_snapshots, store_request

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000))))
ROWS = 60_000


@dataclass
class Stage:
    """Everything a scenario may disturb."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    bridge: BridgeProcess
    to_postgres: Proxy
    to_nats: Proxy
    random: random.Random


@pytest.fixture
def stage(server_folder: Path, tmp_path: Path) -> Iterator[Stage]:
    """Servers, proxies and a streaming bridge, all of the test's own."""
    print(f"CHAOS_SEED={SEED}")
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(server_folder / "pg", durable=False))
        server = stack.enter_context(EmbeddedNats(server_folder / "nats"))
        to_postgres = stack.enter_context(Proxy(postgres.port))
        to_nats = stack.enter_context(Proxy(server.port))
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE big (id int PRIMARY KEY, filler text)")
            connection.execute(
                "INSERT INTO big SELECT g, repeat('x', 300) FROM generate_series(1, %s) g", [ROWS]
            )
            connection.execute("CREATE PUBLICATION pub FOR TABLE big")
        environ = {**postgres.env(), "PG_PORT": str(to_postgres.port)}
        environ |= {**server.env(), "NATS_PORT": str(to_nats.port)}
        flags = ["--slot", "s", "--pub", "pub", "--durability", "acked", "--ack-timeout", "5"]
        with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
            bridge.wait_serving()
            yield Stage(postgres, server, bridge, to_postgres, to_nats, random.Random(SEED))


def kill_bridge(stage: Stage) -> None:
    stage.bridge.kill()
    stage.bridge.start()


def kill_nats(stage: Stage) -> None:
    stage.nats.kill()
    stage.nats.start()


def restart_postgres(stage: Stage) -> None:
    stage.postgres.stop(stage.random.choice(("fast", "immediate")))
    stage.postgres.start()


def cut_postgres(stage: Stage) -> None:
    stage.to_postgres.cut()


def cut_nats(stage: Stage) -> None:
    stage.to_nats.cut()


def lose_acks(stage: Stage) -> None:
    """JetStream stores chunks, and we never hear of it."""
    stage.to_nats.swallow_answers.set()
    time.sleep(stage.random.uniform(0.1, 0.4))
    stage.to_nats.cut()
    stage.to_nats.swallow_answers.clear()


SCENARIOS = (kill_bridge, kill_nats, restart_postgres, cut_postgres, cut_nats, lose_acks)


@pytest.mark.parametrize("disturb", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_stored_request_ends_in_a_whole_snapshot_whatever_dies(
    stage: Stage, disturb: Callable[[Stage], None]
) -> None:
    """A part is never taken for the whole, and nobody has to ask twice."""
    store_request(stage.nats.url, "big")
    for _ in range(ROUNDS):
        time.sleep(stage.random.uniform(0, 0.6))
        disturb(stage)
    asked = set(read_snapshots(stage.nats.url))
    store_request(stage.nats.url, "big", b'{"from": [1]}')

    def served() -> bool:
        found = read_snapshots(stage.nats.url)
        return sum(found[i].meta is not None for i in found) >= 2 and all(
            found[i].meta or found[i].error for i in asked
        )

    wait_for(served, "both requests to be served, and every end to be told")

    for snapshot in read_snapshots(stage.nats.url).values():
        if snapshot.meta:
            snapshot.assert_whole()
            assert sorted(row["id"] for row in snapshot.rows) == list(range(1, ROWS + 1))

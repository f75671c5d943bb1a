"""Kill it: whatever dies, and whenever, the stream ends equal to what PostgreSQL committed.

Every scenario runs with a duplicate window far too short to help, so exactly-once comes from the
bridge asking the stream what it holds. `CHAOS_ROUNDS` lengthens the runs; the seed is printed and
`CHAOS_SEED` repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.jetstream.provision import stream_config
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.streams import CDC_STREAM
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.proxy import Proxy
from tests.support.stream import administer, count_messages, edit_stream, publish, read_changes
from tests.support.truth import PUBLICATION, Truth, assert_tells_the_truth, writing

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000))))
SLOT = "chaos"


@dataclass
class Stage:
    """Everything a scenario may disturb."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    bridge: BridgeProcess
    to_postgres: Proxy
    to_nats: Proxy
    truth: Truth
    random: random.Random

    def settle(self) -> None:
        """Wait until PostgreSQL knows that all of its history is stored, by a bridge that lives."""
        assert self.bridge.process.poll() is None, self.bridge.said()[-3000:]
        end = self.truth.wal_end()
        try:
            wait_for(lambda: self.truth.confirmed(SLOT) >= end, f"the slot to reach {end}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.bridge.said()[-6000:]}") from None


@pytest.fixture
def stage(server_folder: Path, tmp_path: Path) -> Iterator[Stage]:
    """Servers, proxies and a streaming bridge, all of the test's own."""
    print(f"CHAOS_SEED={SEED}")
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(server_folder / "pg", durable=False))
        server = stack.enter_context(EmbeddedNats(server_folder / "nats"))
        to_postgres = stack.enter_context(Proxy(postgres.port))
        to_nats = stack.enter_context(Proxy(server.port))
        asyncio.run(_make_stream(server.url))
        truth = Truth(postgres.dsn(), "truth")
        environ = {**postgres.env(), "PG_PORT": str(to_postgres.port)}
        environ |= {**server.env(), "NATS_PORT": str(to_nats.port)}
        flags = ["--slot", SLOT, "--pub", PUBLICATION, "--durability", "acked"]
        flags += ["--ack-timeout", "1"]
        with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
            bridge.wait_streaming()
            yield Stage(postgres, server, bridge, to_postgres, to_nats, truth, random.Random(SEED))


async def _make_stream(url: str) -> None:
    async with administer(url) as js:
        config = stream_config(CDC_STREAM)
        config.duplicate_window = 0.1
        await js.add_stream(config)


def kill_bridge(stage: Stage) -> None:
    stage.bridge.kill()
    time.sleep(stage.random.uniform(0, 0.4))
    stage.bridge.start()


def kill_bridge_at_birth(stage: Stage) -> None:
    """Die while starting: slot, streams and look-up are half done."""
    stage.bridge.kill()
    for _ in range(2):
        stage.bridge.start()
        time.sleep(stage.random.uniform(0.2, 0.7))
        stage.bridge.kill()
    stage.bridge.start()


def kill_nats(stage: Stage) -> None:
    stage.nats.kill()
    time.sleep(stage.random.uniform(0, 0.5))
    stage.nats.start()


def restart_postgres(stage: Stage) -> None:
    stage.postgres.stop(stage.random.choice(("fast", "immediate")))
    stage.postgres.start()


def cut_connections(stage: Stage) -> None:
    stage.random.choice((stage.to_postgres, stage.to_nats)).cut()


def lose_acks(stage: Stage) -> None:
    """JetStream stores, and we never hear of it."""
    stage.to_nats.swallow_answers.set()
    time.sleep(stage.random.uniform(0.1, 0.5))
    stage.to_nats.cut()
    stage.to_nats.swallow_answers.clear()


def fill_stream(stage: Stage) -> None:
    """JetStream refuses in the middle of a window, and takes more later."""
    most = count_messages(stage.nats.url) + stage.random.randint(1, 30)
    edit_stream(stage.nats.url, max_msgs=most)
    time.sleep(stage.random.uniform(0.2, 0.8))
    edit_stream(stage.nats.url, max_msgs=-1)


def somebody_else_writes(stage: Stage) -> None:
    """What is stored between two of our messages breaks their chain."""
    publish(stage.nats.url, "cdc.others.insert", stage.random.randint(1, 5))


SCENARIOS: tuple[Callable[[Stage], None], ...] = (
    kill_bridge,
    kill_bridge_at_birth,
    kill_nats,
    restart_postgres,
    cut_connections,
    lose_acks,
    fill_stream,
    somebody_else_writes,
)


@pytest.mark.parametrize("disturb", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_stream_tells_the_truth_whatever_dies(
    stage: Stage, disturb: Callable[[Stage], None]
) -> None:
    """Nothing lost, nothing twice, nothing altered, in commit order, without gaps."""
    with writing(stage.truth, SEED):
        for _ in range(ROUNDS):
            time.sleep(stage.random.uniform(0.2, 1.0))
            disturb(stage)
        time.sleep(0.5)

    stage.settle()

    assert_tells_the_truth(read_changes(stage.nats.url), stage.truth)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_everything_at_once(stage: Stage, shared: bool) -> None:
    """Faults do not wait for one another; a stream that others write to is written in batches."""
    with writing(stage.truth, SEED):
        for _ in range(2 * ROUNDS):
            if shared:
                somebody_else_writes(stage)
            time.sleep(stage.random.uniform(0.1, 0.5))
            stage.random.choice(SCENARIOS)(stage)

    stage.settle()

    assert_tells_the_truth(read_changes(stage.nats.url), stage.truth)

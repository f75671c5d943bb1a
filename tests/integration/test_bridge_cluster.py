"""The bridge on a cluster of NATS servers, whose streams move and grow under it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from nats.js.errors import Error

from examples.embedded import EmbeddedNats, EmbeddedPostgres, free_port, temporary_folder
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import count_messages, edit_stream, read_stream

SERVERS = 3


@pytest.fixture
def cluster() -> Iterator[list[EmbeddedNats]]:
    """Three servers that have agreed on a leader."""
    routes = [free_port() for _ in range(SERVERS)]
    listed = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    with ExitStack() as stack:
        servers = []
        for port in routes:
            config = f"cluster {{ name: three, listen: 127.0.0.1:{port}, routes: [{listed}] }}"
            folder = stack.enter_context(temporary_folder())
            servers.append(stack.enter_context(EmbeddedNats(folder, config=config)))
        wait_for(lambda: asyncio.run(has_leader(servers[0].url)), "a leader")
        yield servers


async def has_leader(url: str) -> bool:
    """Whether all servers count, so that a stream can be anywhere."""
    async with await nats.connect(url) as client:
        js = client.jetstream(timeout=2)
        try:
            await js.add_stream(name="PROBE", subjects=["probe"], num_replicas=SERVERS)
            await js.delete_stream("PROBE")
        except (Error, TimeoutError):
            return False
    return True


def replicate(url: str) -> bool:
    edit_stream(url, num_replicas=SERVERS)
    return True


def test_a_stream_that_gets_replicas_under_load_loses_nothing(
    cluster: list[EmbeddedNats],
    postgres: EmbeddedPostgres,
    database: str,
    connection: Connection,
    tmp_path: Path,
) -> None:
    """Replicas compare a chained message's predecessor by themselves, and stop at a difference."""
    connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    environ = {**postgres.env(database), **cluster[0].env()}
    flags = ("--slot", f"slot_{database}", "--pub", "pub", "--durability", "acked")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        for number in range(20):
            connection.execute(
                "INSERT INTO users SELECT generate_series(%s::int, %s)",
                [number * 100, number * 100 + 99],
            )
            if number == 10:
                wait_for(lambda: replicate(cluster[0].url), "more replicas")

        wait_for(lambda: count_messages(cluster[0].url) >= 2_001, "all changes")

        stored = read_stream(cluster[0].url)
        found = [m.fields["data"]["id"] for m in stored if m.is_change]
        assert found == list(range(2_000)), bridge.said()[-3_000:]
        names = {name for message in stored for name in message.headers}
        assert not any(name.startswith("Nats-Expected") for name in names)

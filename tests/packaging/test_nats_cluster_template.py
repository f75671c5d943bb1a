"""deploy/nats-cluster.conf.template: three servers start from it, and the bridge works there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nats as nats_py
import pytest
from nats.js.api import StreamConfig

from examples.embedded import EmbeddedNats, EmbeddedPostgres, free_port, temporary_folder
from schemas.streams import CDC_STREAM
from tests.conftest import Connection
from tests.packaging import ROOT, compose
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.natscluster import SERVERS

TEMPLATE = ROOT / "deploy" / "nats-cluster.conf.template"
SINGLE = ROOT / "nats-server.conf.template"
VARIABLE = re.compile(r"\$\{(NATS_\w+)\}")
USER = {"user": "bridge", "password": "change-me-nats-bridge"}


def fill(values: dict[str, str]) -> str:
    """Do what envsubst does; a variable without a value is an error."""
    return VARIABLE.sub(lambda found: values[found[1]], TEMPLATE.read_text())


@pytest.fixture
def servers() -> Iterator[list[EmbeddedNats]]:
    ports = [free_port() for _ in range(SERVERS)]
    shared = {
        **compose.example_env(),
        **{f"NATS_ROUTE_{at}": f"127.0.0.1:{port}" for at, port in enumerate(ports, 1)},
        "NATS_LISTEN_HOST": "127.0.0.1",
        "NATS_CLUSTER_USER": "route",
        "NATS_CLUSTER_PASSWORD": "secret",
    }
    with ExitStack() as stack:
        started = []
        for port in ports:
            folder = stack.enter_context(temporary_folder())
            own = {
                "NATS_CLUSTER_PORT": str(port),
                "NATS_MONITOR_PORT": str(free_port()),
                "NATS_STORE_DIR": str(folder / "store"),
            }
            server = EmbeddedNats(folder, config=fill({**shared, **own}))
            started.append(stack.enter_context(server))
        yield started


def replicate(url: str) -> bool:
    """Give the stream a replica on every server; raises until the bridge has created it."""

    async def edit() -> bool:
        async with await nats_py.connect(url, **USER) as client:
            js = client.jetstream(timeout=10)
            found = (await js.stream_info(CDC_STREAM.name)).config
            await js.update_stream(StreamConfig(**{**vars(found), "num_replicas": SERVERS}))
            info = await js.stream_info(CDC_STREAM.name)
            return info.cluster is not None and len(info.cluster.replicas or []) == SERVERS - 1

    return asyncio.run(edit())


def stored(url: str) -> int:
    async def ask() -> int:
        async with await nats_py.connect(url, **USER) as client:
            return (await client.jetstream(timeout=10).stream_info(CDC_STREAM.name)).state.messages

    return asyncio.run(ask())


def test_the_bridge_works_in_a_cluster_made_from_the_template(
    servers: list[EmbeddedNats], postgres: EmbeddedPostgres, connection: Connection, tmp_path: Path
) -> None:
    """Its three servers find each other, hold replicas, and let the bridge do its work."""
    database = connection.info.dbname
    connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    first, second, third = servers
    identity = {"NATS_BRIDGE_USER": USER["user"], "NATS_BRIDGE_PASSWORD": USER["password"]}
    environ = {**postgres.env(database), **first.env(), **identity}
    flags = ("--slot", f"slot_{database}", "--pub", "pub", "--start-timeout", "200")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        wait_for(lambda: replicate(second.url), "replicas")
        connection.execute("INSERT INTO users SELECT generate_series(1, 100)")
        wait_for(lambda: stored(third.url) == 101, "the rows on every server")


def test_users_and_permissions_are_those_of_the_single_server() -> None:
    """One contract: what a consumer may do must not depend on how many servers there are."""
    mark = "# Reading the bridge"
    assert TEMPLATE.read_text().partition(mark)[2] == SINGLE.read_text().partition(mark)[2]

"""The bridge on a cluster of NATS servers, whose streams move and grow under it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from nats.js.errors import Error

from bridge.config import StreamOverrides
from bridge.errors import BridgeError
from bridge.jetstream.fence import BATCH_SECONDS
from bridge.jetstream.provision import provision, stream_config
from examples.embedded import EmbeddedNats, EmbeddedPostgres, free_port
from lake_consumer.config import read_config
from lake_consumer.errors import NatsUnreachable
from lake_consumer.jetstream.stream import CdcStream
from schemas.streams import CDC_STREAM
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.natscluster import SERVERS, running_cluster
from tests.support.proxy import Proxy
from tests.support.sharing import Session, stored, until_stored
from tests.support.stream import (
    administer,
    count_messages,
    edit_stream,
    forget_ids,
    publish,
    read_stream,
)


@pytest.fixture
def cluster() -> Iterator[list[EmbeddedNats]]:
    with running_cluster() as servers:
        yield servers


async def is_whole(url: str) -> bool:
    """Whether every stream has all its replicas up and current, so that any server may stop."""
    async with administer(url) as js:
        try:
            groups = [info.cluster for info in await js.streams_info()]
        except (Error, TimeoutError):
            return False
    replicas = [peer for group in groups if group for peer in group.replicas or ()]
    return len(replicas) == len(groups) * (SERVERS - 1) and all(
        peer.current and not peer.offline for peer in replicas
    )


def listed(servers: list[EmbeddedNats]) -> str:
    """Name servers as NATS_URL does, after one that nobody answers at."""
    return ",".join([f"nats://127.0.0.1:{free_port()}", *(server.url for server in servers)])


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
    flags = (
        "--slot",
        f"slot_{database}",
        "--pub",
        "pub",
        "--durability",
        "acked",
        "--ack-timeout",
        "10",
    )
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
        assert "Nats-Expected-Last-Msg-Id" not in names


class Users:
    """A published table, and what a stream holds of it."""

    def __init__(self, postgres: EmbeddedPostgres, database: str, connection: Connection) -> None:
        self.connection = connection
        self.slot = f"slot_{database}"
        self.flags = ("--slot", self.slot, "--pub", "pub", "--durability", "acked")
        self.environ = postgres.env(database)
        connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE users")

    def bridge(self, server: EmbeddedNats, log: Path, **environ: str) -> BridgeProcess:
        return BridgeProcess({**self.environ, **server.env(), **environ}, *self.flags, log=log)

    def insert(self, first: int, last: int) -> None:
        self.connection.execute(
            "INSERT INTO users SELECT generate_series(%s::int, %s)", [first, last]
        )

    def end_reader(self) -> None:
        """Take the slot from whoever reads it."""
        self.connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s", [self.slot],
        )  # fmt: skip

    def stored(self, server: EmbeddedNats) -> list[int]:
        found = read_stream(server.url)
        return [m.fields["data"]["id"] for m in found if m.subject == "cdc.users.insert"]

    def wait_stored(self, server: EmbeddedNats, rows: int) -> None:
        wait_for(lambda: len(self.stored(server)) >= rows, f"{rows} rows")


@pytest.fixture
def users(postgres: EmbeddedPostgres, database: str, connection: Connection) -> Users:
    return Users(postgres, database, connection)


async def make_stream(server: EmbeddedNats, replicas: int) -> None:
    """Make a stream that forgets ids at once, so that they protect nothing."""
    async with administer(server.url) as js:
        config = stream_config(CDC_STREAM)
        config.num_replicas, config.duplicate_window = replicas, 0.1
        await js.add_stream(config)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another writer"])
@pytest.mark.parametrize("replicas", [1, SERVERS])
def test_a_bridge_that_was_frozen_stores_nothing_behind_its_successor(
    cluster: list[EmbeddedNats], users: Users, tmp_path: Path, replicas: int, others: int
) -> None:
    """What was in its buffers reaches the server late, when ids are long forgotten."""
    server, elsewhere = cluster[0], cluster[1]
    asyncio.run(make_stream(server, replicas))
    with (
        Proxy(server.port) as proxy,
        users.bridge(server, tmp_path / "old.log", NATS_PORT=str(proxy.port)) as old,
    ):
        old.wait_streaming()
        users.insert(1, 10)
        users.wait_stored(elsewhere, 10)
        publish(server.url, "cdc.others.insert", others)
        users.insert(11, 20)
        users.wait_stored(elsewhere, 20)

        proxy.hold()
        users.insert(21, 30)
        wait_for(lambda: b"HPUB cdc.users.insert" in proxy.held, "changes on their way")
        old.process.send_signal(signal.SIGSTOP)
        with users.bridge(elsewhere, tmp_path / "new.log") as new:
            users.end_reader()
            new.wait_streaming()
            users.insert(31, 40)
            users.wait_stored(elsewhere, 40)
            forget_ids(elsewhere.url)
            proxy.release()
            old.process.send_signal(signal.SIGCONT)
            wait_for(lambda: "is active for PID" in old.said(), "a standby")
            users.insert(41, 50)
            users.wait_stored(elsewhere, 50)

            said = old.said()[-2_000:] + new.said()[-2_000:]
            assert users.stored(elsewhere) == list(range(1, 51)), said


async def test_a_batch_that_another_leader_keeps_open_is_waited_for(
    cluster: list[EmbeddedNats],
) -> None:
    """A new leader gives every open batch its whole time again."""
    server = cluster[0]
    async with administer(server.url) as js:
        await provision(js, StreamOverrides(replicas=SERVERS))
        old = await Session(server, js).open()
        await old.send(1, 10, close=False)
        await until_stored(js, 10)

        began = time.monotonic()
        opening = asyncio.create_task(Session(server, js).open())
        await asyncio.sleep(8)
        await js._nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{CDC_STREAM.name}", timeout=10)
        new = await opening
        waited = time.monotonic() - began
        with pytest.raises(BridgeError):
            await old.send(11, 20)
        await new.send(11, 15)

        assert waited >= 8 + BATCH_SECONDS
        assert await stored(js) == list(range(1, 16))
        for session in (old, new):
            await session.close()


def test_a_bridge_takes_another_server_of_its_list(
    cluster: list[EmbeddedNats], users: Users, tmp_path: Path
) -> None:
    """The first is down when the bridge starts, and later the one that it is connected to."""
    connected, left = cluster[1], cluster[2]
    # Buckets too: one that is on the stopped server alone would keep the bridge waiting.
    environ = {"NATS_URL": listed([connected, left]), "BRIDGE_STREAM_REPLICAS": str(SERVERS)}
    with users.bridge(connected, tmp_path / "bridge.log", **environ) as bridge:
        bridge.wait_streaming()
        users.insert(1, 10)
        users.wait_stored(connected, 10)
        wait_for(lambda: asyncio.run(is_whole(left.url)), "replicas on all servers")

        connected.stop()
        users.insert(11, 20)
        users.wait_stored(left, 20)

        assert users.stored(left) == list(range(1, 21)), bridge.said()[-3_000:]


def test_a_lake_reads_from_another_server_of_its_list(cluster: list[EmbeddedNats]) -> None:
    connected, left = cluster[1], cluster[2]
    asyncio.run(make_stream(connected, SERVERS))
    environ = {"NATS_URL": listed([connected, left])}
    with closing(CdcStream(read_config({}, environ, {}).nats)) as stream:
        assert stream.state().last == 0
        wait_for(lambda: asyncio.run(is_whole(left.url)), "replicas on all servers")
        connected.stop()

        def sees() -> bool:
            try:
                return stream.state().last == 0
            except NatsUnreachable:
                return False

        wait_for(sees, "the stream")

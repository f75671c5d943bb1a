"""nats-server.conf.template, filled in by Compose's own command and loaded by a real server."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import nats as nats_py
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.errors import NotFoundError

from examples.embedded import EmbeddedNats, free_port
from schemas.streams import BUCKETS, LAKE_CONSUMER, OVERSIZE_STORE, STREAMS
from tests.packaging import ROOT, compose

AWKWARD = r'a "quoted" \ back ${NATS_PORT} $JS 12'
PASSWORDS = {"bridge": f"bridge {AWKWARD}", "lake": f"lake {AWKWARD}", "consumer": "12345678"}


def render(folder: Path, env: dict[str, str], **override: str) -> subprocess.CompletedProcess[str]:
    """Run what the nats service runs, up to the server itself."""
    service = compose.load(env)["services"]["nats"]
    for user, password in PASSWORDS.items():
        (folder / f"nats_{user}_password").write_text(password)
    script = (
        service["command"][0]
        .replace("/run/secrets", str(folder))
        .replace("/etc/nats", str(ROOT))
        .replace("/tmp/nats-server.conf", str(folder / "nats-server.conf"))
        .replace("exec nats-server", "exec true")
    )
    return subprocess.run(
        [*service["entrypoint"], script],
        env={"PATH": "/usr/bin:/bin", **service["environment"], **override},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def monitor_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, monitor_port: int) -> Iterator[EmbeddedNats]:
    folder = tmp_path_factory.mktemp("template")
    env = {
        **compose.example_env(),
        "NATS_MONITOR_PORT": str(monitor_port),
        "NATS_STORE_DIR": str(folder / "store"),
    }
    done = render(folder, env)
    assert done.returncode == 0, done.stderr
    config = (folder / "nats-server.conf").read_text()
    with EmbeddedNats(folder / "server", config=config) as started:
        yield started


class Refusals:
    """What the server did not allow; it says so on the connection, not to the publisher."""

    def __init__(self) -> None:
        self._texts: asyncio.Queue[str] = asyncio.Queue()

    async def hear(self, error: Exception) -> None:
        self._texts.put_nowait(str(error))

    async def next(self) -> str:
        return await asyncio.wait_for(self._texts.get(), timeout=60)


Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def connect(server: EmbeddedNats) -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def connect_as(user: str, refusals: Refusals | None = None) -> Client:
        options = {"error_cb": refusals.hear} if refusals else {}
        client = await nats_py.connect(server.url, user=user, password=PASSWORDS[user], **options)
        clients.append(client)
        return client

    yield connect_as
    for client in clients:
        await client.close()


@pytest.fixture
async def bridge(connect: Connect) -> Client:
    """The bridge's connection, with the streams and buckets it makes."""
    client = await connect("bridge")
    js = client.jetstream()
    for stream in STREAMS:
        await js.add_stream(
            name=stream.name,
            subjects=list(stream.subjects),
            max_bytes=stream.max_bytes,
            allow_direct=True,
        )
    for bucket in BUCKETS:
        await js.create_key_value(bucket=bucket.name, history=bucket.history)
    await js.create_object_store(OVERSIZE_STORE.name)
    return client


@pytest.fixture(params=["lake", "consumer"])
async def reader(request: pytest.FixtureRequest, connect: Connect) -> Client:
    return await connect(request.param)


async def test_the_bridge_can_do_its_work(bridge: Client) -> None:
    """Streams of the contract's real size fit, and every kind of write is allowed."""
    js = bridge.jetstream()

    assert (await js.publish("cdc.users.insert", b"1")).stream == "CDC"
    assert (await js.publish("init.start.users", b"1")).stream == "INIT"
    schemas = await js.key_value("schemas")
    assert await schemas.put("users", b"{}")
    oversize = await js.object_store(OVERSIZE_STORE.name)
    assert await oversize.put("row", b"x" * 300_000)


async def test_readers_read_everything_the_bridge_writes(bridge: Client, reader: Client) -> None:
    """Changes, schemas and oversize rows: a consumer needs all three."""
    js = bridge.jetstream()
    await js.publish("cdc.users.insert", b"hello")
    await (await js.key_value("schemas")).put("users", b"shape")
    await (await js.object_store(OVERSIZE_STORE.name)).put("row", b"x" * 300_000)

    reading = reader.jetstream()
    pull = await reading.pull_subscribe("cdc.>", stream="CDC")
    messages = await pull.fetch(1, timeout=60)
    await messages[0].ack_sync()
    last = await reading.get_last_msg("CDC", "cdc.users.insert", direct=True)
    shape = await (await reading.key_value("schemas")).get("users")
    row = await (await reading.object_store(OVERSIZE_STORE.name)).get("row")

    assert last.data == b"hello"
    assert shape.value == b"shape"
    assert row.data is not None
    assert len(row.data) == 300_000
    await pull.unsubscribe()


async def ask(client: Client, subject: str) -> Msg:
    """Ask until somebody listens: another connection's subscription is known a moment later."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await client.request(subject, b"", timeout=60)
            except NoRespondersError:
                await asyncio.sleep(0.1)


async def test_a_snapshot_request_is_answered(bridge: Client, reader: Client) -> None:
    """Asking is the one thing a reader sends; the answer goes to an inbox of the reader's."""

    async def accept(request: Msg) -> None:
        await request.respond(b"accepted")

    served = await bridge.subscribe("snapshot.request.>", cb=accept)
    await bridge.flush()

    answer = await ask(reader, "snapshot.request.users")

    assert answer.data == b"accepted"
    await served.unsubscribe()


async def test_the_lake_moves_its_durable_consumer(connect: Connect, bridge: Client) -> None:
    """Its position is what operators see, and it is set without reading bodies."""
    for number in range(3):
        await bridge.jetstream().publish("cdc.users.insert", str(number).encode())
    lake = await connect("lake")
    js = lake.jetstream()
    await js.pull_subscribe("cdc.>", durable=LAKE_CONSUMER, stream="CDC")

    await js.reset_consumer("CDC", LAKE_CONSUMER, 2)

    assert (await js.consumer_info("CDC", LAKE_CONSUMER)).ack_floor.stream_seq == 1
    await js.delete_consumer("CDC", LAKE_CONSUMER)


FORBIDDEN = {
    "publish a change": "cdc.users.insert",
    "publish a snapshot": "init.meta.users",
    "write a schema": "$KV.schemas.users",
    "write an oversize row": "$O.oversize.M.row",
    "delete a stream": "$JS.API.STREAM.DELETE.CDC",
    "purge a stream": "$JS.API.STREAM.PURGE.CDC",
    "change a stream": "$JS.API.STREAM.UPDATE.CDC",
    "make a stream": "$JS.API.STREAM.CREATE.MINE",
    "delete a message": "$JS.API.STREAM.MSG.DELETE.CDC",
}


@pytest.mark.parametrize("user", ["lake", "consumer"])
@pytest.mark.parametrize("subject", FORBIDDEN.values(), ids=FORBIDDEN.keys())
async def test_readers_cannot(connect: Connect, bridge: Client, user: str, subject: str) -> None:
    """What only the bridge writes, every consumer can trust."""
    before = await bridge.jetstream().stream_info("CDC")
    refusals = Refusals()
    reader = await connect(user, refusals)

    await reader.publish(subject, b"{}")
    await reader.flush()

    assert subject.lower() in (await refusals.next()).lower()
    after = await bridge.jetstream().stream_info("CDC")
    assert after.state.last_seq == before.state.last_seq


async def test_a_consumer_cannot_move_the_lakes_position(connect: Connect, bridge: Client) -> None:
    """Another reader with the same durable name would take messages from the lake."""
    assert bridge.is_connected
    refusals = Refusals()
    consumer = await connect("consumer", refusals)

    for verb in ("MSG.NEXT", "DELETE", "RESET", "CREATE", "DURABLE.CREATE"):
        await consumer.publish(f"$JS.API.CONSUMER.{verb}.CDC.{LAKE_CONSUMER}", b"{}")

        assert verb.lower() in (await refusals.next()).lower()


async def test_the_bridge_cannot_delete_a_stream(connect: Connect, bridge: Client) -> None:
    """Unread changes go with a stream; that is an administrator's decision."""
    refusals = Refusals()
    culprit = await connect("bridge", refusals)

    await culprit.publish("$JS.API.STREAM.DELETE.CDC", b"")
    await culprit.flush()

    assert "stream.delete" in (await refusals.next()).lower()
    assert (await bridge.jetstream().stream_info("CDC")).config.name == "CDC"
    with pytest.raises(NotFoundError):
        await bridge.jetstream().stream_info("NONE")


def test_the_health_page_answers(server: EmbeddedNats, monitor_port: int) -> None:
    """Compose's health check asks for it."""
    assert server.running
    with urlopen(f"http://127.0.0.1:{monitor_port}/healthz", timeout=60) as answer:
        assert answer.status == 200


def test_a_missing_value_is_named(tmp_path: Path) -> None:
    """An empty port or user must not become a running server."""
    done = render(tmp_path, compose.example_env(), NATS_BRIDGE_USER="")

    assert done.returncode != 0
    assert "NATS_BRIDGE_USER is not set" in done.stderr


@pytest.mark.skipif(not shutil.which("envsubst"), reason="envsubst is not installed")
def test_envsubst_as_the_template_says_fills_it_in(tmp_path: Path, server_folder: Path) -> None:
    """The commands in its first lines are what people paste."""
    lines = (ROOT / "nats-server.conf.template").read_text().splitlines()
    command = next(line for line in lines if "envsubst " in line and line.startswith("#   "))
    conf = tmp_path / "nats-server.conf"
    script = f". ./.env.example; {command[1:]}".replace("> nats-server.conf", f"> {conf}")

    done = subprocess.run(
        ["sh", "-euac", script], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    config = conf.read_text().replace(":8222", f":{free_port()}")
    config = config.replace("/data/jetstream", str(tmp_path))
    with EmbeddedNats(server_folder, config=config) as server:
        assert server.running

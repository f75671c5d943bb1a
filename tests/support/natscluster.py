"""Three nats-servers in one cluster, and what a test does to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats
from nats.js.errors import Error

from examples.embedded import EmbeddedNats, free_port, temporary_folder
from schemas.streams import CDC_STREAM
from tests.support.bridge import wait_for
from tests.support.stream import administer

SERVERS = 3


@contextmanager
def running_cluster() -> Iterator[list[EmbeddedNats]]:
    """Start three servers, and wait until they have agreed on a leader."""
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


async def has_leader(url: str, **credentials: str) -> bool:
    """Whether all servers count, so that a stream can be anywhere."""
    async with await nats.connect(url, **credentials) as client:
        js = client.jetstream(timeout=2)
        try:
            await js.add_stream(name="PROBE", subjects=["probe"], num_replicas=SERVERS)
            await js.delete_stream("PROBE")
        except (Error, TimeoutError):
            return False
    return True


def replicas_agree(url: str, stream: str = CDC_STREAM.name) -> bool:
    """Whether every replica has what the leader has."""

    async def ask() -> bool:
        async with administer(url) as js:
            info = (await js.stream_info(stream)).cluster
            others = (info.replicas or []) if info else []
            return len(others) == SERVERS - 1 and all(r.current and not r.lag for r in others)

    return asyncio.run(ask())


def leader_of(servers: list[EmbeddedNats], stream: str = CDC_STREAM.name) -> EmbeddedNats | None:
    """Find the server that leads a stream; None while there is none."""

    async def ask() -> str | None:
        async with administer(servers[0].url) as js:
            info = (await js.stream_info(stream)).cluster
            return info.leader if info else None

    name = asyncio.run(ask())
    return next((server for server in servers if server._id == name), None)


def led_by_another(servers: list[EmbeddedNats], than: EmbeddedNats) -> EmbeddedNats | None:
    """Find the leader of CDC, unless it is this server, which is then asked to step down."""

    async def step_down() -> None:
        async with administer(than.url) as js:
            subject = f"$JS.API.STREAM.LEADER.STEPDOWN.{CDC_STREAM.name}"
            await js._nc.request(subject, b"", timeout=5)

    leader = leader_of(servers)
    if leader is not than:
        return leader
    asyncio.run(step_down())
    return None


class Disk:
    """A server's store that can be taken back to what it was."""

    def __init__(self, server: EmbeddedNats, copy: Path) -> None:
        self.server = server
        self._copy = copy

    def keep(self) -> None:
        """Remember what the server has on disk now."""
        self.server.kill()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.server.store, self._copy)
        self.server.start()

    def lose(self) -> None:
        """Kill the server and do to its disk what a power loss does to all that was not synced."""
        self.server.kill()
        shutil.rmtree(self.server.store)
        shutil.copytree(self._copy, self.server.store)

    def roll_back(self) -> None:
        self.lose()
        self.server.start()

"""Where a chain of messages may begin, with somebody else at work while the bridge connects.

The bridge runs in this process, so that a test can step in exactly behind the look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from bridge.app import Bridge
from bridge.config import read_config
from bridge.errors import SinkLost
from bridge.jetstream.registry import Registry
from bridge.status import Status
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.names import TableName
from schemas.positions import Position
from tests.conftest import Connection
from tests.support.stream import administer, read_stream


@pytest.fixture
def bridge(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, connection: Connection
) -> Bridge:
    connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    flags = {"slot": f"slot_{database}", "publication": "pub", "durability": "acked"}
    flags |= {"start_timeout": "60"}
    config = read_config(flags, {**postgres.env(database), **nats.env()}, None)
    return Bridge(config, Status(config.slot, config.publication), asyncio.Event())


@asynccontextmanager
async def running(bridge: Bridge) -> AsyncIterator[None]:
    """Give the bridge once it streams; whatever ends it before is raised."""
    async with asyncio.TaskGroup() as group:
        group.create_task(bridge.run())
        await until(lambda: bridge.status.state == "streaming")
        yield
        bridge._stop.set()


async def until(reached: Callable[[], bool]) -> None:
    while not reached():
        await asyncio.sleep(0.02)


def stepping_in(url: str, steps: Iterable[str]) -> Callable[..., Awaitable[Position]]:
    """Give a look-up behind which somebody else writes, or the connection is lost."""
    look_up, left = Registry.stored_position, iter(steps)

    async def stored_position(registry: Registry, tables: Iterable[TableName]) -> Position:
        found = await look_up(registry, tables)
        match next(left, "nothing happens"):
            case "somebody writes":
                async with administer(url) as js:
                    await js.publish("cdc.others.insert", b"")
            case "the connection is lost":
                raise SinkLost("for the test")
        return found

    return stored_position


@pytest.mark.parametrize(
    "steps",
    [["somebody writes"], ["somebody writes", "the connection is lost"]],
    ids=["once", "and the next session never streams"],
)
async def test_what_is_stored_behind_the_look_up_breaks_the_first_link(
    bridge: Bridge,
    nats: EmbeddedNats,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[str],
) -> None:
    """It may be a change of ours that a predecessor had sent; then what follows goes in batches."""
    monkeypatch.setattr(Registry, "stored_position", stepping_in(nats.url, steps))

    async with running(bridge):
        connection.execute("INSERT INTO users VALUES (1)")
        await until(lambda: bridge.status.events_published >= 2)

    stored = await asyncio.to_thread(read_stream, nats.url)
    assert [message.subject for message in stored] == [
        "cdc.others.insert", "cdc.users.schema", "cdc.users.insert",
    ]  # fmt: skip
    assert not [name for message in stored for name in message.headers if "Expected" in name]
    assert bridge.status.sink_reconnects == len(steps)

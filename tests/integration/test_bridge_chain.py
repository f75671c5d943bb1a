"""Where a chain of messages may begin, with somebody else at work while the bridge connects.

The bridge runs in this process, so that a test can step in exactly behind the look-up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from typing import Any

import pytest

from bridge.app import Bridge
from bridge.config import read_config
from bridge.errors import SinkLost
from bridge.history import StoredEnd
from bridge.jetstream.provision import stream_config
from bridge.jetstream.registry import Registry
from bridge.status import Status
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.events import Place
from schemas.names import TableName
from schemas.positions import Lsn
from schemas.streams import CDC_STREAM
from schemas.subjects import FORK_PREFIX, is_session_subject, message_subject
from tests.conftest import Connection
from tests.support.stream import administer, read_stream

FENCE = "Nats-Expected-Last-Subject-Sequence"


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


def stepping_in(url: str, steps: Iterable[str]) -> Callable[..., Awaitable[StoredEnd]]:
    """Give a look-up behind which somebody else writes, or the connection is lost."""
    look_up, left = Registry.stored_end, iter(steps)

    async def stored_end(
        registry: Registry, tables: Iterable[TableName], meanwhile: Callable[[], None]
    ) -> StoredEnd:
        found = await look_up(registry, tables, meanwhile)
        if not tables:
            # Before the slot is created; nothing depends on that look staying true.
            return found
        match next(left, "nothing happens"):
            case "somebody writes":
                async with administer(url) as js:
                    await js.publish("cdc.others.insert", b"")
            case "the connection is lost":
                raise SinkLost("for the test")
        return found

    return stored_end


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
    monkeypatch.setattr(Registry, "stored_end", stepping_in(nats.url, steps))

    async with running(bridge):
        connection.execute("INSERT INTO users VALUES (1)")
        await until(lambda: bridge.status.events_published >= 2)

    stored = await asyncio.to_thread(read_stream, nats.url)
    subjects = [message.subject for message in stored]
    changes = [subject for subject in subjects if not is_session_subject(subject)]
    assert changes == ["cdc.others.insert", "cdc.users.schema", "cdc.users.insert"]
    assert len(subjects) - len(changes) == len(steps), "each session in batches opens with one"
    names = {name for message in stored for name in message.headers if "Expected-Last" in name}
    assert names == {FENCE, f"{FENCE}-Subject"}
    assert bridge.status.sink_reconnects == len(steps)


async def test_a_fork_is_marked_beside_a_writer_that_never_rests(
    bridge: Bridge, nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tied to the stream's end the mark failed in every session, and the slot grew."""
    async with running(bridge):
        pass
    monkeypatch.setattr(Registry, "stored_end", stepping_in(nats.url, repeat("somebody writes")))
    async with administer(nats.url) as js:
        never = Place(lsn=1 << 60, commit_lsn=1 << 60, commit_ts="", xid=7, seq=0, last=True)
        body = json.dumps({**never.to_map(), "last": True}).encode()
        headers = {"Content-Type": "application/json"}
        await js.publish("cdc.users.insert", body, headers=headers)

    config = replace(bridge._config, on_fork="mark", start_timeout=timedelta(seconds=10))
    marking = Bridge(config, Status(config.slot, config.publication), asyncio.Event())
    async with asyncio.TaskGroup() as group:
        marker = group.create_task(marking.run())
        await until(lambda: marking.status.forks == 1)
        marker.cancel()

    stored = await asyncio.to_thread(read_stream, nats.url)
    assert sum(message.subject == message_subject(FORK_PREFIX) for message in stored) == 1


@pytest.mark.parametrize("shared", [True, False])
async def test_a_session_that_loses_its_slot_before_it_opens_leaves_no_trace(
    bridge: Bridge,
    nats: EmbeddedNats,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
) -> None:
    """Frozen there, it would supersede the message of the session that has the slot."""
    confirmed, losses = Bridge._confirmed, iter([True])

    async def lose_slot(self: Bridge, source: Any) -> Lsn:
        found = await confirmed(self, source)
        if next(losses, False):
            slot = "FROM pg_replication_slots WHERE slot_name = %s AND active"
            name = [bridge._config.slot]
            connection.execute(f"SELECT pg_terminate_backend(active_pid) {slot}", name)
            while connection.execute(f"SELECT 1 {slot}", name).fetchone():
                await asyncio.sleep(0.02)
        return found

    monkeypatch.setattr(Bridge, "_confirmed", lose_slot)
    bridge._may_chain = not shared

    async with running(bridge):
        connection.execute("INSERT INTO users VALUES (1)")
        await until(lambda: bridge.status.events_published >= 2)

    subjects = [message.subject for message in await asyncio.to_thread(read_stream, nats.url)]
    assert subjects[-2:] == ["cdc.users.schema", "cdc.users.insert"]
    assert len(subjects) - 2 == shared
    assert bridge.status.source_reconnects == 1
    assert bridge.status.sessions == 1


async def test_a_stream_that_was_removed_and_created_again_is_gone_on_with(
    bridge: Bridge, nats: EmbeddedNats, connection: Connection
) -> None:
    """It is empty, and the message that opens a session has to stand somewhere."""
    async with running(bridge):
        connection.execute("INSERT INTO users VALUES (1)")
        await until(lambda: bridge.status.events_published >= 2)
        async with administer(nats.url) as js:
            await js.delete_stream(CDC_STREAM.name)
            await js.add_stream(stream_config(CDC_STREAM))
        connection.execute("INSERT INTO users VALUES (2)")
        await until(lambda: bridge.status.events_published >= 4)

    stored = await asyncio.to_thread(read_stream, nats.url)
    assert [m.fields["data"]["id"] for m in stored if m.subject == "cdc.users.insert"][-1:] == [2]


async def test_a_bridge_that_waits_for_older_batches_stops_when_it_is_told_to(
    bridge: Bridge, nats: EmbeddedNats, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait is as long as a process manager's patience."""
    bridge._may_chain = False
    async with running(bridge):
        pass
    bridge._may_chain = True
    bridge._stop.clear()
    with caplog.at_level("INFO", "bridge.jetstream"):
        again = asyncio.create_task(bridge.run())
        await until(lambda: "waiting at least 12 s" in caplog.text)
        bridge._stop.set()
        async with asyncio.timeout(5):
            await again

    last = (await asyncio.to_thread(read_stream, nats.url))[-1]
    assert is_session_subject(last.subject)
    assert json.loads(last.fields["content"])["shared"], "the next session has to wait"

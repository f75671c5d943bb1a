"""Sessions that share a stream with other writers, against a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.errors import BadRequestError

from bridge.config import StreamOverrides
from bridge.errors import BridgeError, ChainBroken
from bridge.jetstream import fence
from bridge.jetstream.provision import provision
from bridge.jetstream.stored_times import read_stored_since
from examples.embedded import EmbeddedNats
from schemas.events import LogicalMessage
from schemas.names import TableName
from schemas.positions import Position
from schemas.streams import CDC_STREAM
from schemas.subjects import is_session_subject, session_subject
from tests.support.sharing import FIRST, SOURCE, TABLE, Session, messages, stored, until_stored
from tests.support.stream import administer, are_ids_forgotten


@pytest.fixture
def server(nats: EmbeddedNats) -> EmbeddedNats:
    return nats


@pytest.fixture
async def js(server: EmbeddedNats) -> AsyncIterator[JetStreamContext]:
    async with administer(server.url) as js:
        await provision(js, StreamOverrides())
        yield js


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait where no batch is open."""
    monkeypatch.setattr(fence, "BATCH_SECONDS", 0.1)


@pytest.fixture
async def make(server: EmbeddedNats, js: JetStreamContext) -> AsyncIterator[Callable[..., Session]]:
    made: list[Session] = []

    def session(**means: Any) -> Session:
        made.append(Session(server, js, **means))
        return made[-1]

    yield session
    for each in made:
        await each.close()


async def test_a_batch_that_was_open_at_the_take_over_is_forgotten_when_the_wait_is_over(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """Nothing but time ends it: its next message would be stored without any condition."""
    old = await make().open()
    await old.send(1, 10, close=False)
    await until_stored(js, 10)

    began = time.monotonic()
    new = await make().open()
    waited = time.monotonic() - began
    with pytest.raises(BridgeError):
        await old.send(11, 20)
    await new.send(11, 15)

    assert waited >= fence.BATCH_SECONDS
    assert await stored(js) == list(range(1, 16))


async def test_a_batch_that_goes_on_while_the_next_session_waits_is_waited_for_again(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """Each message gives a batch another ten seconds."""
    old = await make().open()
    await old.send(1, 10, close=False)
    await until_stored(js, 10)

    began = time.monotonic()
    opening = asyncio.create_task(make().open())
    await asyncio.sleep(5)
    await old.send(11, 11, close=False)
    new = await opening
    assert time.monotonic() - began >= fence.BATCH_SECONDS + 4
    with pytest.raises(BridgeError):
        await old.send(12, 20)
    await new.send(12, 15)

    assert await stored(js) == list(range(1, 16))


@pytest.mark.usefixtures("quick")
async def test_a_batch_that_begins_with_a_duplicate_does_not_get_past_the_fence(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """The server looks at ids first, and skips what it knows."""
    old = await make().open()
    await old.send(1, 10)
    new = await make().open()
    await new.send(11, 15)

    with pytest.raises(ChainBroken) as refused:
        await old.send(15, 20)

    assert "has taken over" in refused.value.advice
    assert await stored(js) == list(range(1, 16))


@pytest.mark.usefixtures("quick")
async def test_a_session_that_was_frozen_before_it_opened_does_not_supersede_its_successor(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """It saw another last message than there is now."""
    await make().open()
    successor = make()

    async def freeze() -> None:
        await successor.open()

    with pytest.raises(BadRequestError, match="wrong last sequence"):
        await make(demand_slot=freeze).open()
    await successor.send(1, 5)

    assert await stored(js) == list(range(1, 6))


async def test_an_empty_stream_has_a_place_for_the_first_message(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """An operator removed the stream and created it again."""
    await js.delete_stream(CDC_STREAM.name)
    await provision(js, StreamOverrides())

    await (await make().open()).send(5, 6)

    assert await messages(js) == [
        (session_subject(SOURCE), 4), ("cdc.t.insert", 5), ("cdc.t.insert", 6),
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
async def test_the_message_names_this_slot_s_place_whatever_others_stored_last(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """Another database's LSN would be a commit that this one never had."""
    await (await make().open()).send(5, 6)
    await js.publish("cdc.others.insert", b'{"commit_lsn": 1000}')
    await js.publish("cdc.others.insert", b"unreadable")
    await make().fence.take_over(shared=True)

    last = await js.get_last_msg(CDC_STREAM.name, session_subject(SOURCE))
    assert json.loads(last.data or b"")["commit_lsn"] == 6


async def test_a_session_that_lasts_outlives_the_age_of_its_message(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """Else its next batch would be refused, and nobody would wait for it."""
    config = (await js.stream_info(CDC_STREAM.name)).config
    config.max_age, config.duplicate_window = 2.0, 1.0
    await js.update_stream(config)
    session = await make().open()
    assert session.lane
    keeping = asyncio.create_task(session.fence.keep(session.lane))

    for number in range(1, 41):
        await session.send(number, number)
        await asyncio.sleep(0.1)
    keeping.cancel()

    found, _ = await session.registry.session_message()
    assert found > 1, "the first is long gone"


def logical(source: str) -> LogicalMessage:
    return LogicalMessage(
        prefix="audit", content="", transactional=False, place=FIRST, source=source
    )


@pytest.mark.parametrize(
    ("publish", "is_ours"),
    [
        ("cdc.t.delete", True),
        ("cdc.dropped.insert", True),
        (SOURCE, True),
        ("cdc.others.insert", False),
        ("9/9/other", False),
        (session_subject(SOURCE), False),
    ],
    ids=["a table", "a table of before", "a message", "another's", "another's message", "session"],
)
async def test_whatever_an_old_session_can_store_is_seen(
    make: Callable[..., Session], js: JetStreamContext, publish: str, is_ours: bool
) -> None:
    """The subjects are those by which the stream's end is found."""
    registry = make().registry
    await registry.forget(TableName("public", "dropped"))
    tables = await registry.slot_tables([TABLE])
    if "/" in publish:
        await registry.publish(logical(publish))
        await registry.publish(logical("9/9/hides it"))
    else:
        await js.publish(publish, b"{}")

    found = await registry.stored_behind(0, tables, lambda: None)

    assert (found is not None) is is_ours
    assert await registry.stored_behind(9, tables, lambda: None) is None


@pytest.mark.usefixtures("quick")
async def test_a_mark_of_the_bridge_s_own_minds_other_sessions_and_no_other_writers(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """On condition of the stream's end it would fail for as long as another bridge is busy."""
    old = await make().open()
    await js.publish("cdc.others.insert", b"{}")
    await old.registry.publish(logical(SOURCE), old.fence.condition)
    await make().open()

    later = dataclasses.replace(logical(SOURCE), prefix="late")
    with pytest.raises(ChainBroken):
        await old.registry.publish(later, old.fence.condition)

    subjects = [subject for subject, _ in await messages(js)]
    assert (subjects.count("cdc._message.audit"), subjects.count("cdc._message.late")) == (1, 0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("shared", [True, False])
async def test_ids_protect_nothing_that_the_fence_does_not(
    make: Callable[..., Session], js: JetStreamContext, shared: bool
) -> None:
    """What an old session begins late is refused, also when the server has forgotten the ids."""
    config = (await js.stream_info(CDC_STREAM.name)).config
    config.duplicate_window = 0.1
    await js.update_stream(config)
    old = await make().open()
    await old.send(1, 10)
    new = await make().open(shared=shared)
    await new.send(11, 20)
    while not await are_ids_forgotten(js, f"{20:x}-t-insert"):
        await asyncio.sleep(0.1)

    with pytest.raises(ChainBroken):
        await old.send(11, 20)

    assert await stored(js) == list(range(1, 21))
    assert sum(is_session_subject(subject) for subject, _ in await messages(js)) >= 2


async def test_a_look_at_many_tables_leaves_time_for_signs_of_life(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """PostgreSQL gives a session up that is silent for wal_sender_timeout."""
    registry, beats = make().registry, list[None]()
    tables = [TableName("public", f"t{n}") for n in range(20)]
    await js.publish("$KV.schemas.another", b"{}")

    await registry.stored_end(tables, lambda: beats.append(None))

    assert len(beats) > len(tables)


async def test_reading_ages_of_many_tables_leaves_time_for_signs_of_life(
    make: Callable[..., Session], js: JetStreamContext
) -> None:
    """Another source stored the last messages, so each table is looked at."""
    registry, beats = make().registry, list[None]()
    tables = [TableName("public", f"t{n}") for n in range(20)]
    await js.publish("cdc.others.insert", b"{}")

    await read_stored_since(
        js._nc, registry, tables, Position(9, 0), timedelta(hours=1),
        meanwhile=lambda: beats.append(None),
    )  # fmt: skip

    assert len(beats) > len(tables)

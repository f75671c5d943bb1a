"""The publish lane against a real server: order, refusals, and what is counted as stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from nats.js import JetStreamContext

from bridge import loops
from bridge.config import NatsConfig
from bridge.errors import BridgeError, ChainBroken, PublishRefused, SinkLost
from bridge.jetstream.lane import Lane
from bridge.jetstream.provision import stream_config
from bridge.outbox import Outgoing
from examples.embedded import EmbeddedNats
from schemas.streams import CDC_STREAM
from tests.support.stream import administer, are_ids_forgotten

SUBJECT = "cdc.t.insert"


@pytest.fixture
async def js(nats_alone: EmbeddedNats) -> AsyncIterator[JetStreamContext]:
    """JetStream with a CDC stream that takes messages of up to 1,000 bytes."""
    async with administer(nats_alone.url) as js:
        config = stream_config(CDC_STREAM)
        config.max_msg_size = 1_000
        await js.add_stream(config)
        yield js


@pytest.fixture
def nats_alone(nats: EmbeddedNats) -> EmbeddedNats:
    """The fixture `nats` by a name that leaves the library's to the library."""
    return nats


WAYS = ("batches", "batches that follow", "a chain")
ALONE = WAYS[1:]
"""Those for a stream that nobody else writes to."""


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def lane(nats_alone: EmbeddedNats, js: JetStreamContext, way: str) -> AsyncIterator[Lane]:
    opened = await open_lane(nats_alone, js, way)
    yield opened
    await opened.close()


async def open_lane(server: EmbeddedNats, js: JetStreamContext, way: str) -> Lane:
    lane = await Lane.open(NatsConfig(host="127.0.0.1", port=server.port), timedelta(seconds=60))
    end = (await js.stream_info(CDC_STREAM.name)).state.last_seq
    if way == "a chain":
        lane.chain(CDC_STREAM.name, behind=end)
    elif way == "batches that follow":
        lane.follow(behind=end)
    return lane


def messages(first: int, last: int) -> list[Outgoing]:
    return [Outgoing(SUBJECT, f"{n:x}-t-insert", str(n).encode()) for n in range(first, last + 1)]


async def stored(js: JetStreamContext) -> list[int]:
    info = await js.stream_info(CDC_STREAM.name)
    found = [await js.get_msg(CDC_STREAM.name, n + 1) for n in range(info.state.last_seq)]
    return [int(message.data or b"0") for message in found]


async def send(lane: Lane, batch: list[Outgoing], *, close: bool = True) -> int:
    """Send and count what the lane says is stored."""
    counts: list[int] = []
    await lane.send(batch, "application/msgpack", close=close, on_stored=counts.append)
    return sum(counts)


async def test_a_closed_batch_is_stored_whole_and_in_order(
    lane: Lane, js: JetStreamContext
) -> None:
    assert await send(lane, messages(1, 300)) == 300
    assert await send(lane, messages(301, 301)) == 1
    assert await stored(js) == list(range(1, 302))
    assert lane.last_sequence == 301


async def test_an_open_batch_goes_on_with_the_next_messages(
    lane: Lane, js: JetStreamContext
) -> None:
    await send(lane, messages(1, 10), close=False)
    await send(lane, messages(11, 20))
    assert await stored(js) == list(range(1, 21))


async def test_what_a_cancelled_sender_had_sent_is_stored_before_anything_else_happens(
    lane: Lane, js: JetStreamContext
) -> None:
    """Whoever removes it next removes all of it."""
    sending = asyncio.create_task(
        lane.send(messages(1, 5_000), "text/plain", close=True, on_stored=lambda _: None)
    )
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await lane.settle()

    assert (await js.stream_info(CDC_STREAM.name)).state.messages == 5_000
    await lane.send(messages(5_001, 5_001), "text/plain", close=True, on_stored=lambda _: None)
    assert (await js.stream_info(CDC_STREAM.name)).state.messages == 5_001


async def test_nothing_is_stored_behind_a_message_that_was_refused(
    lane: Lane, js: JetStreamContext
) -> None:
    """Else the successor would stand where its predecessor belongs, and a look-up would skip it."""
    batch = messages(1, 10)
    batch[4].body = bytes(2_000)

    with pytest.raises(BridgeError):
        await send(lane, batch)

    assert await stored(js) == [1, 2, 3, 4]
    with pytest.raises(BridgeError):
        await send(lane, messages(11, 12))
    assert await stored(js) == [1, 2, 3, 4], "a lane that failed sends nothing more"


async def test_a_first_message_that_is_refused_tells_why(lane: Lane, js: JetStreamContext) -> None:
    """Whoever tries again after a refusal learns its reason, in a chain too."""
    batch = messages(1, 3)
    batch[0].body = bytes(2_000)

    with pytest.raises(PublishRefused, match="size exceeds"):
        await send(lane, batch)
    assert await stored(js) == []


@pytest.mark.parametrize("way", ALONE, indirect=True)
async def test_nothing_is_chained_behind_somebody_elses_message(
    lane: Lane, js: JetStreamContext
) -> None:
    """It would take the place of a message of ours that was refused for it."""
    await send(lane, messages(1, 5), close=False)
    await send(lane, messages(6, 10))
    await js.publish("cdc.others.insert", b"1000000")

    with pytest.raises(ChainBroken):
        await send(lane, messages(11, 2_000))

    assert await stored(js) == [*range(1, 11), 1_000_000]


@pytest.mark.parametrize("way", ALONE, indirect=True)
async def test_a_chain_does_not_begin_behind_what_came_since_the_stream_was_asked(
    lane: Lane, js: JetStreamContext
) -> None:
    """It may be what a bridge that was killed had on its way: the look-up did not see it."""
    await js.publish(SUBJECT, b"1")

    with pytest.raises(ChainBroken):
        await send(lane, messages(1, 3))
    assert await stored(js) == [1]


@pytest.mark.parametrize("way", ALONE, indirect=True)
async def test_a_chain_ends_where_somebody_else_comes_between(
    lane: Lane, js: JetStreamContext, nats_alone: EmbeddedNats
) -> None:
    """Wherever that is among many messages: before it all of ours, and behind it none."""

    async def keep_sending() -> None:
        for first in range(1, 200_000, 100):
            await send(lane, messages(first, first + 99), close=False)

    sending = asyncio.create_task(keep_sending())
    while (await js.stream_info(CDC_STREAM.name)).state.messages < 1_000:
        await asyncio.sleep(0.001)
    await js.publish("cdc.others.insert", b"1000000")

    with pytest.raises(ChainBroken):
        await sending
    found = await stored_bodies(nats_alone)
    ours = len(found) - 1
    assert ours >= 1_000
    assert found == [*range(1, ours + 1), 1_000_000]


async def stored_bodies(server: EmbeddedNats) -> list[int]:
    """Read a whole stream, which may be long."""
    async with administer(server.url) as js:
        count = (await js.stream_info(CDC_STREAM.name)).state.messages
        reader = await js.subscribe("cdc.>", stream=CDC_STREAM.name, ordered_consumer=True)
        return [int((await reader.next_msg(timeout=60)).data) for _ in range(count)]


@pytest.mark.parametrize("way", ["batches", "a chain"], indirect=True)
async def test_a_resend_is_stored_once(
    lane: Lane, js: JetStreamContext, nats_alone: EmbeddedNats, way: str
) -> None:
    """The answer to the first try may be lost, and its messages may still be on their way."""
    await send(lane, messages(1, 10))
    second = await open_lane(nats_alone, js, way)
    assert await send(second, messages(6, 15)) == 10
    await second.close()
    assert await stored(js) == list(range(1, 16))


@pytest.mark.parametrize("old", ALONE)
async def test_an_old_session_stores_nothing_behind_its_successor(
    js: JetStreamContext, nats_alone: EmbeddedNats, old: str
) -> None:
    """Not even in the middle of a batch that it had begun, and when its ids are forgotten."""
    config = (await js.stream_info(CDC_STREAM.name)).config
    config.duplicate_window = 0.1
    await js.update_stream(config)
    frozen = await open_lane(nats_alone, js, old)
    await send(frozen, messages(1, 10), close=False)
    while (await js.stream_info(CDC_STREAM.name)).state.messages < 10:
        await asyncio.sleep(0.01)
    successor = await open_lane(nats_alone, js, "batches that follow")
    await send(successor, messages(11, 20))
    while not await are_ids_forgotten(js, f"{20:x}-t-insert"):
        await asyncio.sleep(0.1)

    for late in (frozen, successor):
        # The old chain may go on behind the successor's last message, as if it had sent that one.
        with contextlib.suppress(BridgeError):
            await send(late, messages(11 if late is frozen else 21, 30))
        await late.close()

    assert await stored(js) == list(range(1, 31))


@pytest.mark.parametrize("way", ["batches"], indirect=True)
async def test_two_bridges_share_a_stream(
    lane: Lane, js: JetStreamContext, nats_alone: EmbeddedNats
) -> None:
    """Each keeps its own order, whatever the other does."""
    second = await open_lane(nats_alone, js, "batches")
    await asyncio.gather(
        *(send(who, messages(n, n + 99)) for who, n in ((lane, 1), (second, 1_001)))
    )
    await second.close()
    found = await stored(js)
    assert [n for n in found if n < 1_000] == list(range(1, 101))
    assert [n for n in found if n > 1_000] == list(range(1_001, 1_101))


async def test_a_missing_stream_is_no_ack(lane: Lane, js: JetStreamContext) -> None:
    """No responders is an empty answer."""
    await js.delete_stream(CDC_STREAM.name)
    with pytest.raises(SinkLost, match="no stream"):
        await send(lane, messages(1, 3))


def test_what_is_sent_when_the_connection_has_just_ended_is_lost_and_no_fault(
    nats_alone: EmbeddedNats,
) -> None:
    """The program's own loop raises where asyncio's only warns, before the listener has heard."""

    async def send_behind_the_end() -> None:
        lane = await Lane.open(
            NatsConfig(host="127.0.0.1", port=nats_alone.port), timedelta(seconds=60)
        )
        lane._writer.transport.abort()
        await asyncio.sleep(0)  # one turn, in which the transport is closed
        try:
            await send(lane, messages(1, 3))
        finally:
            await lane.close()

    with (
        asyncio.Runner(loop_factory=loops.loop_factory()) as runner,
        pytest.raises(SinkLost, match="hung up"),
    ):
        runner.run(send_behind_the_end())


async def test_a_lost_connection_is_noticed_with_nothing_to_send(
    lane: Lane, nats_alone: EmbeddedNats
) -> None:
    """A server that comes back may have forgotten its tail; somebody has to look."""
    watching = asyncio.create_task(lane.watch())
    await asyncio.to_thread(nats_alone.kill)
    with pytest.raises(SinkLost):
        await asyncio.wait_for(watching, 30)

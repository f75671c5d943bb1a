"""What waits to be published: first in, first out, and bounded."""

from __future__ import annotations

import asyncio

from bridge.outbox import Outbox, Outgoing


def message(body: bytes = b"x") -> Outgoing:
    return Outgoing("cdc.t.insert", "1-t-insert", body)


async def test_the_reader_waits_while_the_outbox_is_full() -> None:
    """Memory is bounded by what is in flight, not by how fast PostgreSQL sends."""
    outbox = Outbox(max_bytes=1_000)
    await outbox.put(message(bytes(2_000)))
    waiting = asyncio.create_task(outbox.put(message()))
    await asyncio.sleep(0.01)
    assert not waiting.done()

    assert len(await outbox.take(10)) == 1
    await asyncio.sleep(0.01)
    assert not waiting.done(), "bytes count until they are stored"
    outbox.release(1)

    await asyncio.wait_for(waiting, 5)


async def test_messages_leave_in_the_order_they_came() -> None:
    outbox = Outbox(max_bytes=1_000_000)
    for number in range(5):
        await outbox.put(message(bytes([number])))
    assert [m.body[0] for m in await outbox.take(3)] == [0, 1, 2]
    assert [m.body[0] for m in await outbox.take(3)] == [3, 4]
    assert [m.body[0] for m in outbox.release(5)] == [0, 1, 2, 3, 4]
    assert outbox.bytes_held == 0


async def test_a_closed_outbox_is_drained_before_it_ends() -> None:
    outbox = Outbox(max_bytes=1_000)
    await outbox.put(message(b"rest"))
    outbox.close()
    assert [m.body for m in await outbox.take(10)] == [b"rest"]
    assert await outbox.take(10) == []


async def test_closing_wakes_a_publisher_that_waits() -> None:
    outbox = Outbox(max_bytes=1_000)
    taking = asyncio.create_task(outbox.take(10))
    await asyncio.sleep(0.01)
    outbox.close()
    assert await asyncio.wait_for(taking, 5) == []

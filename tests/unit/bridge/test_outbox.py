"""What waits to be published: first in, first out, bounded, and sealed when its end is known."""

from __future__ import annotations

import asyncio

from bridge.outbox import Outbox, Outgoing

ENDS = (b"false}", b"true}")


def outbox(*bodies: bytes, max_bytes: int = 1_000_000) -> Outbox:
    """An outbox with one transaction of these bodies in it."""
    made = Outbox(max_bytes, ENDS)
    for body in bodies:
        made.add(Outgoing("cdc.t.insert", "1-t-insert", body))
    made.end_transaction()
    return made


async def bodies(box: Outbox, most: int = 100) -> list[bytes]:
    return [message.body for message in await box.take(most)]


async def test_only_the_last_change_of_a_transaction_says_so() -> None:
    assert await bodies(outbox(b"a:", b"b:")) == [b"a:false}", b"b:true}"]


async def test_a_change_is_held_back_until_it_is_known_whether_it_is_the_last() -> None:
    box = outbox()
    box.add(Outgoing("cdc.t.insert", "1-t-insert", b"a:"))
    assert box.is_empty
    box.end_transaction()
    assert await bodies(box) == [b"a:true}"]


async def test_an_empty_transaction_ends_nothing() -> None:
    box = outbox(b"a:")
    box.end_transaction()
    assert await bodies(box) == [b"a:true}"]


async def test_the_reader_waits_while_the_outbox_is_full() -> None:
    """Memory is bounded by what is in flight, not by how fast PostgreSQL sends."""
    box = outbox(bytes(2_000), max_bytes=1_000)
    waiting = asyncio.create_task(box.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()

    assert len(await box.take(10)) == 1
    await asyncio.sleep(0.01)
    assert not waiting.done(), "bytes count until they are stored"
    box.release(1)

    await asyncio.wait_for(waiting, 5)


async def test_messages_leave_in_the_order_they_came() -> None:
    box = outbox(b"0", b"1", b"2", b"3", b"4")
    assert [body[:1] for body in await bodies(box, 3)] == [b"0", b"1", b"2"]
    assert [body[:1] for body in await bodies(box, 3)] == [b"3", b"4"]
    assert [message.body[:1] for message in box.release(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert box.bytes_held == 0


async def test_a_closed_outbox_is_drained_before_it_ends() -> None:
    box = outbox(b"rest")
    box.close()
    assert await bodies(box) == [b"resttrue}"]
    assert await bodies(box) == []


async def test_closing_wakes_a_publisher_that_waits() -> None:
    box = outbox()
    taking = asyncio.create_task(box.take(10))
    await asyncio.sleep(0.01)
    box.close()
    assert await asyncio.wait_for(taking, 5) == []

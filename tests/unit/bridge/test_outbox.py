"""What waits to be published: first in, first out, bounded, and sealed when its end is known."""

from __future__ import annotations

import asyncio

from bridge.outbox import Outbox
from bridge.rowparts import PackedRow

ENDS = (b"false}", b"true}")


def row(body: bytes) -> PackedRow:
    return b"cdc.t.insert", b"1-t-insert", body + ENDS[False]


def outbox(*bodies: bytes, max_bytes: int = 1_000_000, chunk_messages: int = 100) -> Outbox:
    """An outbox with one transaction of these bodies in it."""
    made = Outbox(max_bytes, ENDS, chunk_messages)
    for body in bodies:
        made.add(row(body))
    made.end_transaction()
    return made


async def bodies(box: Outbox) -> list[bytes]:
    chunk = await box.take()
    return [body for _, _, body in chunk.give()] if chunk else []


async def test_only_the_last_change_of_a_transaction_says_so() -> None:
    assert await bodies(outbox(b"a:", b"b:")) == [b"a:false}", b"b:true}"]


async def test_a_change_is_held_back_until_it_is_known_whether_it_is_the_last() -> None:
    box = outbox()
    box.add(row(b"a:"))
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

    assert len(await bodies(box)) == 1
    await asyncio.sleep(0.01)
    assert not waiting.done(), "bytes count until they are stored"
    box.release(1)

    await asyncio.wait_for(waiting, 5)


async def test_messages_leave_in_the_order_they_came() -> None:
    box = outbox(b"0", b"1", b"2", b"3", b"4", chunk_messages=3)
    assert [body[:1] for body in await bodies(box)] == [b"0", b"1", b"2"]
    assert [body[:1] for body in await bodies(box)] == [b"3", b"4"]


async def test_many_messages_queue_like_one_after_the_other() -> None:
    """The hot path hands over lists, and takes the message held back into the first of them."""
    box = outbox()
    box.add(row(b"a:"))
    rows = box.take_held()
    rows += [row(b"b:"), row(b"c:")]
    box.extend(rows, hold=True)
    box.end_transaction()
    assert await bodies(box) == [b"a:false}", b"b:false}", b"c:true}"]


async def test_chunks_are_released_when_all_of_their_messages_are_stored() -> None:
    """JetStream acknowledges by its own count, which need not end where a chunk ends."""
    box = outbox(b"0", b"1", b"2", b"3", b"4", chunk_messages=3)
    await bodies(box)
    await bodies(box)
    assert box.release(2) == []
    assert [chunk.subjects for chunk in box.release(2)] == [{"cdc.t.insert": 3}]
    assert [chunk.subjects for chunk in box.release(1)] == [{"cdc.t.insert": 2}]
    assert box.bytes_held == 0


async def test_a_chunk_knows_its_largest_body() -> None:
    """What no message can carry is found by this alone."""
    chunk = await outbox(b"a", bytes(70_000), b"b").take()
    assert chunk is not None
    assert chunk.largest == 70_000 + len(ENDS[False])


async def test_the_publisher_waits_a_moment_for_more() -> None:
    box = outbox(b"a")
    assert await box.more_within(5)
    await bodies(box)
    assert not await box.more_within(0.001)
    waiting = asyncio.create_task(box.more_within(30))
    await asyncio.sleep(0.01)
    box.add(row(b"b"))
    box.end_transaction()
    assert await asyncio.wait_for(waiting, 5)


async def test_a_closed_outbox_is_drained_before_it_ends() -> None:
    box = outbox(b"rest")
    box.close()
    assert await bodies(box) == [b"resttrue}"]
    assert await bodies(box) == []


async def test_closing_wakes_a_publisher_that_waits() -> None:
    box = outbox()
    taking = asyncio.create_task(box.take())
    await asyncio.sleep(0.01)
    box.close()
    assert await asyncio.wait_for(taking, 5) is None

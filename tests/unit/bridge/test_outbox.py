"""What waits to be published: bounded, and cut where transactions end."""

from __future__ import annotations

import asyncio

import pytest

from bridge.config import PublishLimits
from bridge.outbox import Outbox, Outgoing, plan_batch


@pytest.mark.parametrize(
    ("queued", "ends", "urgent", "taken"),
    [
        (0, [], False, 0),
        (3, [3], False, 3),
        (5, [2, 3], False, 3),
        (12, [4, 9, 12], False, 9),
        (12, [12], False, 10),
        (4, [], False, 0),
        (4, [], True, 4),
        (30, [], False, 10),
    ],
    ids=[
        "nothing",
        "one whole transaction",
        "two whole ones, the rest waits",
        "the last that fits",
        "one larger than a batch is cut",
        "an open one waits for its end",
        "unless there is no room for it",
        "an endless one is cut",
    ],
)
def test_a_batch_ends_where_a_transaction_ends_if_one_fits(
    queued: int, ends: list[int], urgent: bool, taken: int
) -> None:
    """So that consumers see small transactions whole."""
    assert plan_batch(queued, ends, most=10, urgent=urgent) == taken


def message(body: bytes = b"x", *, ends: bool = True) -> Outgoing:
    return Outgoing("cdc.t.insert", "1-t-insert", body, ends)


async def test_the_reader_waits_while_the_outbox_is_full() -> None:
    """Memory is bounded by what is in flight, not by how fast PostgreSQL sends."""
    outbox = Outbox(PublishLimits(max_bytes=1_000))
    await outbox.put(message(bytes(2_000)))
    waiting = asyncio.create_task(outbox.put(message()))
    await asyncio.sleep(0.01)
    assert not waiting.done()

    batch = await outbox.take()
    await asyncio.sleep(0.01)
    assert not waiting.done(), "bytes count until they are acknowledged"
    await outbox.release(batch)

    await asyncio.wait_for(waiting, 5)


async def test_a_transaction_larger_than_the_outbox_still_flows() -> None:
    """Waiting for its end with no room for it would stand still for ever."""
    outbox = Outbox(PublishLimits(max_bytes=1_000))
    await outbox.put(message(bytes(2_000), ends=False))
    assert len(await asyncio.wait_for(outbox.take(), 5)) == 1


async def test_closing_hands_out_whole_transactions_and_keeps_half_ones() -> None:
    """Half a transaction at the end would be read again and is better sent whole next time."""
    outbox = Outbox(PublishLimits())
    await outbox.put(message(b"whole"))
    await outbox.put(message(b"half", ends=False))
    await outbox.close()

    assert [m.body for m in await outbox.take()] == [b"whole"]
    assert await outbox.take() == []

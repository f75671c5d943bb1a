"""Read a range of stream sequences, and prove that nothing of it is missing.

An ephemeral pull consumer without acknowledgements delivers from the first sequence on, in order.
Pulls are bounded in messages and bytes, so memory stays bounded and the server never has to hold
more for us than one pull. Every sequence must arrive: a jump, or an end of the stream before the
range's end, names what is missing. A consumer that falls silent (a server restart forgets
ephemeral consumers) is made again at the next sequence that is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from lake_consumer.batches import describe_gaps
from lake_consumer.errors import MessagesMissing, NatsUnreachable

PULL_MESSAGES = 5_000
PULL_BYTES = 16 << 20
SILENCE_SECONDS = 10.0
ATTEMPTS = 6

_ENDS_PULL = ("404", "408", "409", "503")


class RangeReader:
    """Yields lists of (sequence, message), covering first to last without a hole."""

    def __init__(self, client: Client, stream: str, first: int, last: int) -> None:
        self._client = client
        self._js = client.jetstream()
        self._stream = stream
        self._next = first
        self._last = last
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def blocks(self) -> AsyncIterator[list[tuple[int, Msg]]]:
        failures = 0
        while self._next <= self._last:
            before = self._next
            async for block in self._one_consumer():
                yield block
            failures = 0 if self._next > before else failures + 1
            if failures >= ATTEMPTS:
                raise NatsUnreachable(
                    f"stream {self._stream} stopped delivering at sequence {self._next}"
                )

    async def _one_consumer(self) -> AsyncIterator[list[tuple[int, Msg]]]:
        """Read until the range is complete or the consumer falls silent."""
        inbox = self._client.new_inbox()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._arrived = arrived

        async def collect(message: Msg) -> None:
            arrived.put_nowait(message)

        subscription = await self._client.subscribe(
            inbox, cb=collect, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        name = f"lake-read-{uuid.uuid4().hex}"
        try:
            await self._js.add_consumer(self._stream, _ephemeral(name, self._next))
            while self._next <= self._last:
                block = await self._pull(name, inbox)
                if not block:
                    return
                yield block
        finally:
            # The server forgets the consumer by itself; this only makes it sooner.
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()
                await self._js.delete_consumer(self._stream, name)

    async def _pull(self, consumer: str, inbox: str) -> list[tuple[int, Msg]]:
        wanted = min(PULL_MESSAGES, self._last - self._next + 1)
        request = {"batch": wanted, "max_bytes": PULL_BYTES, "expires": 5_000_000_000}
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}",
            json.dumps(request).encode(),
            reply=inbox,
        )
        block: list[tuple[int, Msg]] = []
        while len(block) < wanted:
            try:
                message = await asyncio.wait_for(self._arrived.get(), SILENCE_SECONDS)
            except TimeoutError:
                break
            status = _status(message)
            if status is None:
                self._take(message, block)
            elif status in _ENDS_PULL:
                if status == "404" or (status == "408" and not block):
                    await self._check_end()
                break
            while len(block) < wanted and not self._arrived.empty():
                queued = self._arrived.get_nowait()
                if _status(queued) is not None:
                    return block
                self._take(queued, block)
        return block

    def _take(self, message: Msg, block: list[tuple[int, Msg]]) -> None:
        sequence = stream_sequence(message.reply)
        if sequence != self._next:
            self._missing(min(sequence, self._last + 1) - 1)
        block.append((sequence, message))
        self._next += 1

    async def _check_end(self) -> None:
        """Nothing more comes: either the stream ends here, or the consumer was lost."""
        try:
            await self._js.get_msg(self._stream, seq=self._next)
        except NotFoundError:
            self._missing(self._last)

    def _missing(self, until: int) -> None:
        gap = describe_gaps([(self._next, until)])
        raise MessagesMissing(f"stream {self._stream} no longer holds sequence {gap}")


def _ephemeral(name: str, first: int) -> ConsumerConfig:
    return ConsumerConfig(
        name=name,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=first,
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=60,
    )


def _status(message: Msg) -> str | None:
    headers: dict[str, Any] | None = message.headers
    if message.data or not headers:
        return None
    return headers.get("Status")


def stream_sequence(reply: str) -> int:
    """Read the stream sequence from `$JS.ACK...`, which is longer where there is a domain."""
    tokens = reply.split(".")
    return int(tokens[5] if len(tokens) < 11 else tokens[7])

"""Read a range of stream sequences, and prove that nothing of it is missing.

An ephemeral pull consumer without acknowledgements delivers from the first sequence on, in order.
Pulls are bounded in messages and bytes, so memory stays bounded and the server never has to hold
more for us than one pull; the next one is asked for before a block is handed out, so the server
sends while it is decoded. Every sequence must arrive: a jump, or an end of the stream before the
range's end, names what is missing. A consumer that falls silent (a server restart forgets
ephemeral consumers) is made again at the next sequence that is due.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from lake_consumer.batches import describe_gaps
from lake_consumer.errors import MessagesMissing, NatsUnreachable
from lake_consumer.jetstream.connection import jetstream
from lake_consumer.jetstream.taking import Taken, Taker, status_of

PULL_MESSAGES = 20_000
PULL_BYTES = 16 << 20
SILENCE_SECONDS = 10.0
ATTEMPTS = 6

_ENDS_PULL = ("404", "408", "409", "503")


@dataclass(frozen=True, slots=True)
class Block:
    """Messages of adjoining sequences, the first of which is `first`."""

    first: int
    messages: list[Taken]


class RangeReader:
    """Yields blocks that cover first to last without a hole."""

    def __init__(self, client: Client, stream: str, first: int, last: int) -> None:
        self._client = client
        self._js = jetstream(client)
        self._stream = stream
        self._next = first
        self._last = last
        self._pull_bytes: int | None = PULL_BYTES

    async def blocks(self) -> AsyncIterator[Block]:
        failures = 0
        while self._next <= self._last:
            before = self._next
            async for block in self._one_consumer():
                yield block
            failures = 0 if self._next > before else failures + 1
            # A single message may be larger than a pull: then a pull is one message.
            self._pull_bytes = None if failures else PULL_BYTES
            if failures >= ATTEMPTS:
                raise NatsUnreachable(
                    f"stream {self._stream} stopped delivering at sequence {self._next}"
                )

    async def _one_consumer(self) -> AsyncIterator[Block]:
        """Read until the range is complete or the consumer falls silent."""
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=_nothing)
        taker = Taker(self._client, subscription._id)
        name = f"lake-read-{uuid.uuid4().hex}"
        try:
            await self._js.add_consumer(self._stream, _ephemeral(name, self._next))
            wanted = await self._ask(name, inbox)
            while wanted:
                block = await self._receive(taker, wanted)
                if not block.messages:
                    return
                wanted = await self._ask(name, inbox)
                yield block
        finally:
            taker.close()
            # The server forgets the consumer by itself; this only makes it sooner.
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()
                await self._js.delete_consumer(self._stream, name)

    async def _ask(self, consumer: str, inbox: str) -> int:
        """Ask for the next messages of the range; gives how many."""
        wanted = min(PULL_MESSAGES if self._pull_bytes else 1, self._last - self._next + 1)
        if wanted:
            request = {"batch": wanted, "expires": 5_000_000_000}
            if self._pull_bytes:
                request["max_bytes"] = self._pull_bytes
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}"
            await self._client.publish(subject, json.dumps(request).encode(), reply=inbox)
        return wanted

    async def _receive(self, taker: Taker, wanted: int) -> Block:
        """Take what one pull brings, which is less than was wanted where the server ends it."""
        first = self._next
        block: list[Taken] = []
        while len(block) < wanted and await taker.wait(SILENCE_SECONDS):
            arrived = taker.take()
            ends = [status for status in map(status_of, arrived[-1:]) if status]
            if ends:
                arrived.pop()
            self._check(arrived)
            block += arrived
            if ends and ends[0] in _ENDS_PULL:
                if ends[0] == "404" or (ends[0] == "408" and not block):
                    await self._check_end()
                break
        return Block(first, block)

    def _check(self, arrived: list[Taken]) -> None:
        """Every message must be the one that is due."""
        if not arrived:
            return
        # The reply is longer where there is a JetStream domain.
        at = 5 if arrived[0].reply.count(b".") < 10 else 7
        due = self._next
        for message in arrived:
            sequence = int(message.reply.split(b".")[at])
            if sequence != due:
                self._next = due
                self._missing(min(sequence, self._last + 1) - 1)
            due += 1
        self._next = due

    async def _check_end(self) -> None:
        """Nothing more comes: either the stream ends here, or the consumer was lost."""
        try:
            await self._js.get_msg(self._stream, seq=self._next)
        except NotFoundError:
            self._missing(self._last)

    def _missing(self, until: int) -> None:
        gap = describe_gaps([(self._next, until)])
        raise MessagesMissing(f"stream {self._stream} no longer holds sequence {gap}")


async def _nothing(_: object) -> None:
    """Nothing reaches nats-py's own path: the taker takes it all."""


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

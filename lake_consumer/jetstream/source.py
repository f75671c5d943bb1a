"""Messages as Arrow record batches: ranges of a stream, read side by side in the executors.

A row is one message: its sequence, what its subject says, and its body. Bodies stay opaque except
for the table's schema revision, which the driver needs before it can say how rows look.

`RangeSource` is a function for `DataFrame.mapInArrow` over the indices of its ranges. A registered
Python data source would do the same, but planning one costs Spark further Python processes. Side
by side on two busy cores, warm, 20,000 messages took 5.8 to 9.3 s that way, 2.6 to 4.7 s this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from nats.aio.client import Client
from nats.aio.msg import Msg

from lake_consumer.errors import UndecodableMessage
from lake_consumer.jetstream.connection import connect
from lake_consumer.jetstream.payload import body_of, is_plain
from lake_consumer.jetstream.reader import RangeReader
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import BadPayload, codec_for

MESSAGES = pa.schema(
    [
        ("stream_seq", pa.int64()),
        ("token", pa.string()),
        ("verb", pa.string()),
        ("schema_revision", pa.int64()),
        ("codec", pa.string()),
        ("body", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class RangeSource:
    """Turns indices of `ranges` into the messages of these ranges; pickled to executors."""

    nats: NatsOptions
    stream: str
    ranges: Sequence[tuple[int, int]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self.read(*self.ranges[index])

    def read(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        # Spark pulls, NATS pushes: the loop runs only while Spark waits for the next batch.
        loop = asyncio.new_event_loop()
        client: Client | None = None
        try:
            client = loop.run_until_complete(connect(self.nats))
            blocks = RangeReader(client, self.stream, first, last).blocks()
            while (block := loop.run_until_complete(anext(blocks, None))) is not None:
                yield loop.run_until_complete(_to_arrow(client, block))
        finally:
            if client is not None:
                loop.run_until_complete(client.close())
            loop.close()


async def _to_arrow(client: Client, block: list[tuple[int, Msg]]) -> pa.RecordBatch:
    rows = [
        _describe(
            sequence,
            message,
            message.data
            if is_plain(message.headers)
            else await body_of(client, message.subject, message.headers, message.data),
        )
        for sequence, message in block
    ]
    columns = [
        pa.array(column, type=field.type)
        for column, field in zip(zip(*rows, strict=True), MESSAGES, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _describe(
    sequence: int, message: Msg, body: bytes
) -> tuple[int, str, str, int | None, str, bytes]:
    try:
        _, token, verb = message.subject.split(".")
        codec = codec_for(message.headers)
        revision = codec.decode(body).get("schema_revision")
    except (BadPayload, ValueError) as error:
        raise UndecodableMessage(
            f"stream sequence {sequence} ({message.subject}): {error}"
        ) from error
    return sequence, token, verb, revision, codec.format, body

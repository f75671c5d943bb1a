"""A snapshot's chunks as Arrow record batches, read side by side in the executors.

A chunk is asked for by its subject, a few at a time. One that is not there any more (INIT keeps
them for some days, and a bridge removes those of a failed snapshot) ends the reading by name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from lake_consumer.errors import SnapshotGone
from lake_consumer.jetstream.connection import connect, jetstream
from lake_consumer.jetstream.payload import body_of
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import codec_for
from schemas.names import TableName
from schemas.snapshots import Checksum
from schemas.streams import INIT_STREAM
from schemas.subjects import snapshot_chunk_subject

AHEAD = 4
"""Chunks on their way while one is decoded; one is a MiB at most, unless a row is larger."""

CHUNKS = pa.schema([("codec", pa.string()), ("body", pa.binary())])
CHECKSUM = pa.schema([("checksum", pa.string())])


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """Turns indices of `ranges` into the chunks of these ranges; pickled to executors."""

    nats: NatsOptions
    table: TableName
    snapshot_id: str
    ranges: Sequence[tuple[int, int]] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for codec, body in self.read(*self.ranges[index]):
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([codec]), pa.array([body], pa.binary())], schema=CHUNKS
                    )

    def read(self, first: int, last: int) -> Iterator[tuple[str, bytes]]:
        """Give format and body of each chunk, in order."""
        loop = asyncio.new_event_loop()
        client: Client | None = None
        try:
            client = loop.run_until_complete(connect(self.nats))
            chunks = self.chunks(client, first, last)
            while (chunk := loop.run_until_complete(anext(chunks, None))) is not None:
                yield chunk
        finally:
            if client is not None:
                loop.run_until_complete(client.close())
            loop.close()

    async def chunks(
        self, client: Client, first: int, last: int
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Like `read`, on a connection and a loop of the caller."""
        coming: deque[asyncio.Task[tuple[str, bytes]]] = deque()
        try:
            for number in range(first, last + 1):
                coming.append(asyncio.create_task(self._chunk(client, number)))
                if len(coming) > AHEAD:
                    yield await coming.popleft()
            while coming:
                yield await coming.popleft()
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)

    async def _chunk(self, client: Client, number: int) -> tuple[str, bytes]:
        subject = snapshot_chunk_subject(self.table, self.snapshot_id, number)
        try:
            # Direct: the other way writes a body as base64, which may not fit into one message.
            found = await jetstream(client).get_last_msg(INIT_STREAM.name, subject, direct=True)
        except NotFoundError:
            raise SnapshotGone(
                f"chunk {number} of snapshot {self.snapshot_id} of {self.table} is gone"
            ) from None
        body = await body_of(client, subject, found.headers, found.data or b"")
        return codec_for(found.headers).format, body


@dataclass(frozen=True, slots=True)
class ChecksumSource:
    """Adds up all chunks in their order, which one task has to do alone; it holds one at a time."""

    chunks: ChunkSource

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            checksum = Checksum()
            for first, last in self.chunks.ranges:
                for _, body in self.chunks.read(first, last):
                    checksum.add(body)
            yield pa.RecordBatch.from_arrays([pa.array([str(checksum)])], schema=CHECKSUM)

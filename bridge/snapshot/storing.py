"""Chunks from the outflow to the INIT stream: in order, each few acknowledged before the next.

With `--zstd` a chunk is compressed on the way. The first chunk of a table without a dictionary that
fits trains one, from its rows as single changes would carry them: so it serves changes, which need
it, as well as chunks. Where only some columns were asked for, none is trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bridge.compression import Press, Samples
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.lane import Lane
from bridge.jetstream.oversize import OversizeStore
from bridge.outbox import Outgoing
from bridge.pressing import train_dictionary
from bridge.snapshot.chunks import HEADROOM_BYTES
from bridge.snapshot.outflow import Outflow
from bridge.status import SnapshotProgress
from schemas.codecs import OVERSIZE, Codec
from schemas.events import Change, Place
from schemas.shapes import TableShape
from schemas.snapshots import Checksum, moment

CHUNKS_PER_BATCH = 8


def as_changes(
    shape: TableShape, chunk: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Change]:
    """Give rows as the inserts that would have brought them, each at a position of its own."""
    for number, row in enumerate(rows):
        lsn = chunk["lsn"] + number * 0x100
        yield Change(
            table=shape.name,
            operation="INSERT",
            relation_id=shape.relation_id,
            place=Place(lsn=lsn, commit_lsn=lsn + 0x80, commit_ts=moment(), xid=number, seq=0,
                        last=True),
            schema_revision=chunk["schema_revision"],
            data=dict(row),
        )  # fmt: skip


def take_samples(shape: TableShape, codec: Codec, body: bytes) -> Samples:
    """Take rows from all over a chunk until they are enough."""
    chunk = codec.decode(body)
    rows = chunk["data"]
    # Neighbours in a table are more alike than its rows are.
    spread = [row for start in range(32) for row in rows[start::32]]
    samples = Samples()
    for change in as_changes(shape, chunk, spread):
        samples.add(codec.encode(change.to_map()))
        if samples.are_enough:
            break
    return samples


class ChunkPress:
    """Compresses the chunks of one snapshot."""

    def __init__(
        self, shape: TableShape, codec: Codec, store: DictionaryStore, *, may_train: bool
    ) -> None:
        self._shape = shape
        self._codec = codec
        self._store = store
        self._may_train = may_train
        self._press: Press | None = None

    async def press(self, body: bytes) -> tuple[bytes, str]:
        if self._press is None:
            self._press = await self._settle(body)
        return await asyncio.to_thread(self._press.press, body)

    async def _settle(self, first: bytes) -> Press:
        """Use the table's dictionary, or train one that fits it better."""
        shape, content_type = self._shape, self._codec.content_type
        found = await self._store.newest(shape.name)
        dictionary = found.dictionary if found else None
        if self._may_train and not (found and found.fits(shape.fingerprint, content_type)):
            samples = await asyncio.to_thread(take_samples, shape, self._codec, first)
            dictionary = (
                await train_dictionary(self._store, shape, samples, content_type) or dictionary
            )
        return Press(dictionary)


class ChunkStore:
    """Takes chunks from the outflow and stores them."""

    def __init__(
        self,
        lane: Lane,
        oversize: OversizeStore,
        content_type: str,
        progress: SnapshotProgress,
        *,
        checksum: Checksum,
        press: ChunkPress | None = None,
    ) -> None:
        self._lane = lane
        self._oversize = oversize
        self._content_type = content_type
        self._progress = progress
        self._checksum = checksum
        self._press = press

    async def store(self, outflow: Outflow) -> None:
        """Store every chunk there will be, and add each to the checksum as it was packed."""
        progress = self._progress
        while chunks := await outflow.take(CHUNKS_PER_BATCH):
            bodies = [chunk.message.body for chunk in chunks]
            # Beside the event loop: it is a seventh of the work, and needs no interpreter.
            adding = asyncio.create_task(asyncio.to_thread(self._add_all, bodies), name="checksum")
            try:
                await self._send([chunk.message for chunk in chunks])
            finally:
                await adding
            outflow.release(sum(chunk.size for chunk in chunks))
            progress.rows += sum(chunk.rows for chunk in chunks)
            progress.chunks += len(chunks)

    def _add_all(self, bodies: Sequence[bytes]) -> None:
        # One by one: to put them together would hold the interpreter, and so the event loop.
        for body in bodies:
            self._checksum.add(body)

    async def _send(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self._progress.bytes += await self._prepare(message)
        await self._lane.send(messages, self._content_type, close=True, on_stored=lambda _: None)

    async def _prepare(self, message: Outgoing) -> int:
        """Make a message that the server takes, and say how many bytes its body has now."""
        if self._press is not None:
            message.body, message.headers = await self._press.press(message.body)
        size = len(message.body)
        if size > self._lane.max_payload - HEADROOM_BYTES // 2:
            await self._oversize.put(message.msg_id, message.body)
            message.body = b""
            message.headers += f"{OVERSIZE}: {message.msg_id}\r\n"
        return size

"""Snapshot chunks to Parquet data files of a mirror, in the executors.

A task reads the chunks of its units once, decodes them into Arrow and writes the rows, one file per
unit. The digest of each chunk is computed on the same bytes; the driver combines the digests and
compares them with the snapshot's meta before any file becomes part of the table.

Hot code: it runs once per row of a table.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
from nats.aio.client import Client

from lake_consumer.errors import SnapshotGone, UndecodableMessage, reason_of
from lake_consumer.iceberg.blocks import UNDECODABLE
from lake_consumer.iceberg.datafiles import FileTarget, Written
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.initial_load import Unit
from lake_consumer.jetstream.chunks import ChunkSource
from lake_consumer.jetstream.connection import connect
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import CODECS
from schemas.snapshots import chunk_digest
from schemas.values import Format

FILE_BYTES = 96 << 20
"""Chunk bodies that are decoded before a file is written, at most: rows may be large."""

_UNPACK = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True)
class ChunkPlan:
    """How the chunks of one snapshot become files; pickled to executors."""

    source: ChunkSource
    decoder: Decoder
    revision: int
    target: FileTarget

    def decode(self, codec: str, body: bytes) -> pa.StructArray:
        chunk: dict[str, Any] = (
            _UNPACK(body) if codec == "msgpack" else CODECS[cast("Format", codec)].decode(body)
        )
        texts = {int(at): columns for at, columns in chunk.get("text", {}).items()}
        return self.decoder.chunk(chunk["data"], texts, self.revision)

    def write(self, rows: list[pa.StructArray]) -> list[Written]:
        if not sum(map(len, rows)):
            return []
        return self.target.write(pa.RecordBatch.from_struct_array(pa.concat_arrays(rows)))


class UnitDone(NamedTuple):
    """What a task made of a unit; `failure` says why the snapshot cannot be used, if so."""

    snapshot_id: str
    first: int
    rows: int
    digests: bytes
    files: tuple[Written, ...]
    failure: str = ""


@dataclass(frozen=True)
class ChunkFiles:
    """Turns lists of units into files, for `mapPartitions`."""

    nats: NatsOptions
    plans: Mapping[str, ChunkPlan]

    def __call__(self, lanes: Iterable[list[Unit]]) -> Iterator[UnitDone]:
        loop = asyncio.new_event_loop()
        client: Client | None = None
        # Decoded rows are many dicts and no cycles.
        gc.disable()
        try:
            client = loop.run_until_complete(connect(self.nats))
            for units in lanes:
                for unit in units:
                    yield self._write(loop, client, unit)
        finally:
            if client is not None:
                loop.run_until_complete(client.close())
            loop.close()
            gc.enable()

    def _write(self, loop: asyncio.AbstractEventLoop, client: Client, unit: Unit) -> UnitDone:
        plan = self.plans[unit.snapshot_id]
        files: list[Written] = []
        try:
            rows, digests = self._read(loop, client, unit, plan, files)
        except (SnapshotGone, UndecodableMessage) as error:
            return UnitDone(unit.snapshot_id, unit.first, 0, b"", tuple(files), str(error))
        return UnitDone(unit.snapshot_id, unit.first, rows, digests, tuple(files))

    def _read(
        self,
        loop: asyncio.AbstractEventLoop,
        client: Client,
        unit: Unit,
        plan: ChunkPlan,
        files: list[Written],
    ) -> tuple[int, bytes]:
        decoded: list[pa.StructArray] = []
        digests: list[bytes] = []
        rows = held = 0
        chunks = plan.source.chunks(client, unit.first, unit.last)
        while (chunk := loop.run_until_complete(anext(chunks, None))) is not None:
            codec, body = chunk
            digests.append(chunk_digest(body))
            try:
                decoded.append(plan.decode(codec, body))
            except UNDECODABLE as error:
                number = unit.first + len(digests) - 1
                raise UndecodableMessage(
                    f"chunk {number} of snapshot {unit.snapshot_id} of {plan.source.table}:"
                    f" {reason_of(error)}"
                ) from error
            rows += len(decoded[-1])
            held += len(body)
            if held >= FILE_BYTES:
                files += plan.write(decoded)
                decoded, held = [], 0
        files += plan.write(decoded)
        return rows, b"".join(digests)

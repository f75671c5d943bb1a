"""One snapshot, from the export to the last chunk.

`open` settles what is read and at which LSN; `copy` streams it. The table must be the same before
the snapshot was exported and after the readers hold it: a TRUNCATE or a rewrite in between would
show an old snapshot an empty table, so then everything begins again with a new export.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from bridge.config import NatsConfig, PostgresConfig, PublishLimits, SnapshotLimits
from bridge.errors import BridgeError, SourceLost
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.lane import Lane
from bridge.jetstream.oversize import OversizeStore
from bridge.outbox import Outgoing
from bridge.postgres import catalog, connection, copying, export, reading
from bridge.relations import shape_of
from bridge.snapshot.bodies import Bodies, bodies_for
from bridge.snapshot.chunks import HEADROOM_BYTES, Chunk, Chunker, ctid_ranges
from bridge.snapshot.outflow import Outflow, PackedChunk
from bridge.snapshot.requests import Rejected, SnapshotRequest, check_keys, choose_columns
from bridge.snapshot.storing import ChunkPress, ChunkStore
from bridge.status import SnapshotProgress
from bridge.tasks import end, until_all
from schemas.codecs import Codec
from schemas.shapes import Column, TableShape
from schemas.snapshots import Checksum, SnapshotName
from schemas.streams import ObjectStoreSpec
from schemas.subjects import chunk_id, snapshot_chunk_subject

EXPORTS_AT_MOST = 5
WATCH_EVERY_SECONDS = 1.0
LOCK_TIMEOUT = "1s"
"""How long others who wait for the table wait for us besides the copy."""

_NOT_TABLES = {
    "v": "a view, which has no changes to follow; ask for the tables below it",
    "m": "a materialized view, which has no changes to follow; ask for the tables below it",
    "f": "a foreign table, whose changes are not in this database's WAL",
    "S": "a sequence",
    "i": "an index",
    "c": "a composite type",
}

Register = Callable[[TableShape, int], Awaitable[int]]
"""Makes a shape its table's latest entry in KV and gives the revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMeans:
    """What every snapshot works with."""

    postgres: PostgresConfig
    nats: NatsConfig
    publication: str
    source_id: str
    codec: Codec
    publish: PublishLimits
    limits: SnapshotLimits
    zstd: bool
    oversize: ObjectStoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Helpers:
    """What a snapshot needs of the control plane."""

    oversize: OversizeStore
    dictionaries: DictionaryStore
    register: Register
    cdc_end: Callable[[], Awaitable[int]]
    """Gives the CDC stream's last sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What is read of a table."""

    shape: TableShape
    columns: tuple[Column, ...]
    bounds: tuple[copying.Bound, ...]
    storage: copying.Storage
    row_filter: str | None

    def holds_the_same_as(self, other: TablePlan) -> bool:
        return (
            self.storage.holds_the_same_as(other.storage)
            and self.shape.fingerprint == other.shape.fingerprint
            and self.row_filter == other.row_filter
        )

    def queries(self, readers: int) -> list[str]:
        """Write one COPY per reader; together they read every row once."""
        divisible = self.storage.is_divisible and not self.bounds
        ranges = ctid_ranges(self.storage.pages, readers) if divisible else [(0, None)]
        return [
            copying.copy_query(
                self.shape.name,
                self.columns,
                kind=self.storage.kind,
                row_filter=self.row_filter,
                bounds=self.bounds,
                pages=pages,
            )
            for pages in ranges
        ]


async def plan_table(
    clerk: catalog.Connection, publication: str, request: SnapshotRequest
) -> TablePlan:
    """Look the table up and hold the request against it, or say why it is not served."""
    table = request.table
    storage = await copying.find_storage(clerk, table)
    if storage is None:
        raise Rejected(f"there is no table {table}")
    if storage.kind in _NOT_TABLES:
        raise Rejected(f"{table} is {_NOT_TABLES[storage.kind]}")
    published = await catalog.published_tables(clerk, publication)
    found = next((p for p in published if p.relation.relation_id == storage.relation_id), None)
    if found is None:
        raise Rejected(f"{table} is not in publication {publication}")
    if not await copying.may_select(clerk, storage.relation_id):
        raise Rejected(
            f"the bridge's role may not read {table}: GRANT SELECT ON it, or run init.sh"
        )
    shape = shape_of(found.relation, found.facts)
    check_keys(shape, request)
    bounds = copying.key_bounds(shape.key, request.from_key, request.to_key)
    if complaint := await copying.check_bounds(clerk, bounds):
        raise Rejected(f"not a key of {table}: {complaint}")
    return TablePlan(
        shape=shape,
        columns=choose_columns(shape, request.columns),
        bounds=bounds,
        storage=storage,
        row_filter=await copying.find_row_filter(clerk, publication, table),
    )


class Taking:
    """A snapshot while it is taken; whoever holds it closes it, finished or not."""

    def __init__(
        self,
        request: SnapshotRequest,
        progress: SnapshotProgress,
        means: SnapshotMeans,
        helpers: Helpers,
    ) -> None:
        self._request = request
        self._progress = progress
        self._means = means
        self._helpers = helpers
        self._stack = AsyncExitStack()
        self._readers: list[reading.Reader] = []
        self._queries: list[str] = []
        self._chunks = 0
        self._checksum = Checksum()
        self._cdc_sequence = 0
        self.revision = 0

    async def close(self) -> None:
        await self._stack.aclose()

    async def open(self) -> SnapshotName:
        """Export a snapshot, put the readers into it and give its name."""
        for _ in range(EXPORTS_AT_MOST):
            plan = await self._export()
            if plan is not None:
                break
            await self._stack.aclose()
            self._readers.clear()
        else:
            raise SourceLost(
                f"{self._request.table} was rewritten, truncated or locked by others"
                f" {EXPORTS_AT_MOST} times running",
                advice="Ask again when nobody truncates, alters or locks the table.",
            )
        self._plan = plan
        self.revision = await self._helpers.register(plan.shape, self._progress.lsn)
        progress = self._progress
        return SnapshotName(
            progress.snapshot_id, self._request.table, progress.lsn, self._cdc_sequence
        )

    async def _export(self) -> TablePlan | None:
        """Export once; None where the table changed under our hands."""
        means, progress = self._means, self._progress
        progress.state = "exporting"
        clerk = await connection.connect(means.postgres)
        async with clerk:
            with connection.translated(means.postgres):
                plan = await plan_table(clerk, means.publication, self._request)
            self._queries = plan.queries(means.limits.readers)
            # Before the export: what commits behind the snapshot cannot be in the stream yet.
            self._cdc_sequence = await self._helpers.cdc_end()
            exporting = export.Export(means.postgres)
            watching = asyncio.create_task(self._watch(clerk, exporting.slot), name="export")
            try:
                async with exporting:
                    for _ in self._queries:
                        await self._add_reader(exporting.name)
            finally:
                watching.cancel()
                await asyncio.wait({watching})
                progress.wal_kept_bytes = 0
            with connection.translated(means.postgres):
                is_unchanged = await self._hold(clerk, plan)
        progress.lsn, progress.estimated_rows = exporting.lsn, plan.storage.estimate
        return plan if is_unchanged else None

    async def _hold(self, clerk: catalog.Connection, plan: TablePlan) -> bool:
        """Hold the table, and look again; False if it changed, or if somebody waits for it.

        ALTER TABLE waits for the first reader, and whatever needs the table next waits behind it.
        PostgreSQL sees no deadlock, because the reader waits for us: only a limit lets go.
        """
        try:
            for number, reader in enumerate(self._readers):
                await reader.prepare(plan.shape.name, plan.bounds, LOCK_TIMEOUT if number else "0")
            await clerk.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'".encode())
            await export.settle(clerk, await self._readers[0].visible())
            now = await plan_table(clerk, self._means.publication, self._request)
        except connection.LOCKED:
            return False
        return plan.holds_the_same_as(now)

    async def _add_reader(self, snapshot: str) -> None:
        reader = await reading.Reader.open(self._means.postgres, snapshot)
        self._stack.push_async_callback(reader.close)
        self._readers.append(reader)

    async def _watch(self, clerk: catalog.Connection, slot: str) -> None:
        """Show how much WAL is kept while the export waits for open transactions."""
        while True:
            await asyncio.sleep(WATCH_EVERY_SECONDS)
            self._progress.wal_kept_bytes = await export.retained_bytes(clerk, slot)

    async def copy(self, name: SnapshotName) -> tuple[int, Checksum]:
        """Store every chunk; give their number and the checksum once all are acknowledged."""
        means = self._means
        self._progress.state = "copying"
        lane = await Lane.open(means.nats, means.publish.ack_timeout)
        self._stack.push_async_callback(lane.close)
        outflow = Outflow(means.publish.max_bytes, writers=len(self._readers))
        bodies = bodies_for(self._plan.columns, means.codec.format)
        store = ChunkStore(
            lane,
            self._helpers.oversize,
            means.codec.content_type,
            self._progress,
            checksum=self._checksum,
            press=self._press(),
        )
        crew = {asyncio.create_task(store.store(outflow), name="store")}
        for reader, query in zip(self._readers, self._queries, strict=True):
            chunker = Chunker(bodies.block, lane.max_payload - HEADROOM_BYTES)
            work = self._read(reader.lines(query), bodies, chunker, outflow, name)
            crew.add(asyncio.create_task(work, name="read"))
        try:
            await until_all(crew)
        finally:
            await end(crew)
            with contextlib.suppress(BridgeError):
                # Chunks that are stored behind the purge of a failed snapshot would stay.
                await lane.settle()
        return self._chunks, self._checksum

    def _press(self) -> ChunkPress | None:
        if not self._means.zstd:
            return None
        return ChunkPress(
            self._plan.shape,
            self._means.codec,
            self._helpers.dictionaries,
            may_train=self._plan.columns == self._plan.shape.columns,
        )

    async def _read(self, batches: reading.Batches, bodies: Bodies, chunker: Chunker,
                    outflow: Outflow, name: SnapshotName) -> None:  # fmt: skip
        async with aclosing(batches):
            async for lines in batches:
                for full in chunker.add(lines):
                    await self._pack(full, bodies, outflow, name)
        for rest in chunker.rest():
            await self._pack(rest, bodies, outflow, name)
        outflow.close()

    async def _pack(
        self, chunk: Chunk, bodies: Bodies, outflow: Outflow, name: SnapshotName
    ) -> None:
        """Number a chunk and queue it; nothing waits between the two, so numbers are the order."""
        await outflow.room()
        number, self._chunks = self._chunks, self._chunks + 1
        body = bodies.chunk(name.chunk_head(number, self.revision), chunk.blocks)
        message = Outgoing(
            snapshot_chunk_subject(name.table, name.snapshot_id, number),
            chunk_id(name.snapshot_id, name.table, number),
            body,
        )
        outflow.add(PackedChunk(message, chunk.rows, len(body)))

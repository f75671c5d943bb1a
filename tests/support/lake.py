"""A CDC stream written by hand, and the lake that follows it."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zstandard
from nats.aio.client import Client
from nats.js import JetStreamContext
from pyspark.sql import SparkSession

from lake_consumer.app import Follower
from lake_consumer.batches import BatchLimits
from lake_consumer.catalogs import CatalogUri
from lake_consumer.config import LakeConfig, read_config
from lake_consumer.cuts import Cut as CutPlace
from lake_consumer.errors import NotReadable
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.reading import LakeReader, open_catalog, read_statuses
from lake_consumer.jetstream.connection import connect
from lake_consumer.jetstream.deadletters import DEAD_STREAM, REASON, SEQUENCE
from lake_consumer.jetstream.stream import CdcStream
from lake_consumer.loader import Loader
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.resync import ask_resync
from lake_consumer.tablestates import FirstSight
from lake_consumer.watermark import Watermark
from schemas.codecs import CODECS, CONTENT_ENCODING, CONTENT_TYPE, OVERSIZE
from schemas.ddl import DdlEvent, format_ddl
from schemas.events import Change, Event, LogicalMessage, Place, ShapeChange, iso_timestamp
from schemas.forks import Fork, format_fork
from schemas.names import TableName
from schemas.shapes import Column, ReplicaIdentity, TableShape
from schemas.snapshots import Checksum, SnapshotName
from schemas.streams import (
    CDC_STREAM,
    INIT_STREAM,
    LAKE_CONSUMER,
    OVERSIZE_STORE,
    SCHEMAS_BUCKET,
)
from schemas.subjects import (
    DDL_PREFIX,
    FORK_PREFIX,
    Operation,
    snapshot_chunk_subject,
    snapshot_meta_subject,
)
from schemas.types import parse_type
from schemas.values import Format

PATIENCE_SECONDS = 300.0
"""How long a bridge may leave a snapshot alone; never a statement about speed."""

_NOW = 818_000_000_000_000
_PLACE = Place(lsn=0, commit_lsn=0, commit_ts="", xid=0, seq=0, last=False)


def make_shape(
    table: str,
    columns: dict[str, str],
    *,
    key: tuple[str, ...] = ("id",),
    positions: dict[str, int] | None = None,
    identity: ReplicaIdentity = "default",
    relation: int | None = None,
) -> TableShape:
    """Make a shape from names and contract types; attnums in order unless told otherwise."""
    at = positions or {name: number for number, name in enumerate(columns, start=1)}
    return TableShape(
        name=TableName.parse(table),
        relation_id=relation_of(table) if relation is None else relation,
        replica_identity=identity,
        columns=tuple(
            Column(
                name=name,
                position=at[name],
                data_type=kind,
                type_oid=0,
                type_modifier=-1,
                type=parse_type(kind),
                key=key.index(name) if name in key else None,
            )
            for name, kind in columns.items()
        ),
    )


def relation_of(table: str) -> int:
    """The OID of a table that is never renamed and never created anew."""
    return 16_400 + zlib.crc32(str(TableName.parse(table)).encode()) % 1_000_000


def ddl(*events: DdlEvent) -> LogicalMessage:
    """What the bridge says of DDL statements."""
    return LogicalMessage(
        prefix=DDL_PREFIX,
        content=format_ddl(events),
        transactional=True,
        place=_PLACE,
        source="7/1",
    )


def fork_message(fork: Fork, source: str = "7/1") -> LogicalMessage:
    """What the bridge says of a PostgreSQL that goes on from an earlier point."""
    at = fork.place.commit_lsn
    moment = iso_timestamp(_NOW + at)
    return LogicalMessage(
        prefix=FORK_PREFIX,
        content=format_fork(fork),
        transactional=False,
        place=Place(lsn=at, commit_lsn=at, commit_ts=moment, xid=0, seq=0, last=True),
        source=source,
    )


def announce(shape: TableShape, revision: int, *, alone: bool = False) -> ShapeChange:
    """Announce a shape, in a transaction or `alone` between transactions."""
    return ShapeChange(
        shape=shape, place=_PLACE, schema_revision=revision, source="7/1", alone=alone
    )


def change(
    table: str,
    operation: Operation,
    data: dict[str, Any],
    revision: int = 1,
    relation: int | None = None,
    **more: Any,
) -> Change:
    return Change(
        table=TableName.parse(table),
        operation=operation,
        relation_id=relation_of(table) if relation is None else relation,
        place=_PLACE,
        schema_revision=revision,
        data=data,
        **more,
    )


def logical_message(prefix: str) -> LogicalMessage:
    return LogicalMessage(
        prefix=prefix, content="x", transactional=True, place=_PLACE, source="7/1"
    )


@dataclass(frozen=True, kw_only=True)
class RawMessage:
    """Bytes that somebody published under `cdc.`, whatever they are."""

    subject: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    place: Place = _PLACE

    @property
    def msg_id(self) -> str:
        return f"{self.place.lsn:x}-raw"


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A change in another form than the stream's own."""

    event: Change
    format: Format
    compressed: bool = False
    oversize: str | None = None
    place: Place = _PLACE

    @property
    def subject(self) -> str:
        return self.event.subject

    @property
    def msg_id(self) -> str:
        return replace(self.event, place=self.place).msg_id


Sendable = Event | RawMessage | Encoded


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that the lake left out."""

    sequence: int
    subject: str
    reason: str
    body: bytes


@dataclass
class HandMadeStream:
    """Writes transactions to the CDC stream as the bridge would."""

    url: str
    format: Format = "msgpack"
    lsn: int = 1_000
    events: list[Sendable] = field(default_factory=list)
    access: NatsOptions | None = None

    async def connect(self) -> Client:
        return await connect(self.access or NatsOptions(url=self.url))

    def commit(self, *parts: Sendable) -> int:
        """Add one transaction; gives its commit LSN. Nothing is sent before `send`."""
        placed: list[Sendable] = []
        ordinal = 0
        commit_lsn = self.lsn + len(parts) * 10
        counted = [part for part in parts if not isinstance(part, ShapeChange)] or parts
        for part in parts:
            self.lsn += 10
            place = Place(
                lsn=self.lsn,
                commit_lsn=commit_lsn,
                commit_ts=iso_timestamp(_NOW + commit_lsn),
                xid=commit_lsn // 10,
                seq=ordinal,
                last=part is counted[-1],
            )
            placed.append(replace(part, place=place))
            ordinal += not isinstance(part, ShapeChange)
        self.events += placed
        return commit_lsn

    def send(self) -> int:
        """Store what was committed since the last time; gives the stream's last sequence."""
        events, self.events = self.events, []
        return asyncio.run(self._send(events))

    async def _send(self, events: list[Sendable]) -> int:
        client = await self.connect()
        js = client.jetstream()
        await js.add_stream(name=CDC_STREAM.name, subjects=list(CDC_STREAM.subjects))
        before: dict[str, str] = {}
        for event in events:
            body, headers = await self._form(js, event)
            ids = {"Nats-Msg-Id": event.msg_id, **before}
            await js.publish(event.subject, body, headers={**ids, **headers})
            # As the bridge chains its messages.
            before = {"Nats-Expected-Last-Msg-Id": event.msg_id}
        last: int = (await js.stream_info(CDC_STREAM.name)).state.last_seq
        await client.close()
        return last

    async def _form(self, js: JetStreamContext, event: Sendable) -> tuple[bytes, dict[str, str]]:
        if isinstance(event, RawMessage):
            return event.body, event.headers
        codec, plain = CODECS[self.format], event
        if isinstance(event, Encoded):
            codec, plain = CODECS[event.format], replace(event.event, place=event.place)
        assert not isinstance(plain, Encoded)
        body = codec.encode(plain.to_map())
        headers = {CONTENT_TYPE: codec.content_type}
        if isinstance(event, Encoded) and event.compressed:
            body = zstandard.ZstdCompressor().compress(body)
            headers[CONTENT_ENCODING] = "zstd"
        if isinstance(event, Encoded) and event.oversize:
            store = await js.create_object_store(OVERSIZE_STORE.name)
            await store.put(event.oversize, body)
            body, headers[OVERSIZE] = b"", event.oversize
        return body, headers

    def delete(self) -> None:
        """Delete the whole stream, to begin another."""

        async def delete() -> None:
            client = await self.connect()
            await client.jetstream().delete_stream(CDC_STREAM.name)
            await client.close()

        asyncio.run(delete())

    def write_schemas(self, *shapes: tuple[TableShape, int], gone: tuple[str, ...] = ()) -> None:
        """Write KV `schemas` as the bridge does: the shapes in order, each with its revision."""

        async def write() -> None:
            client = await self.connect()
            js = client.jetstream()
            bucket = await js.create_key_value(bucket=SCHEMAS_BUCKET.name, history=64)
            for shape, revision in shapes:
                fields = shape.to_map(timestamp="", lsn=0, source="7/1")
                found = await bucket.put(shape.name.token, CODECS[self.format].encode(fields))
                assert found == revision
            for table in gone:
                await bucket.delete(TableName.parse(table).token)
            await client.close()

        asyncio.run(write())

    def store_snapshot(
        self,
        shape: TableShape,
        rows: list[dict[str, Any]],
        *,
        lsn: int,
        at: int,
        revision: int = 1,
    ) -> None:
        """Store a whole snapshot in INIT, as a bridge would that had read CDC up to `at`."""
        name = SnapshotName(f"s{lsn}", shape.name, lsn, at)
        codec = CODECS[self.format]
        body = codec.encode({**name.chunk_head(0, revision), "data": rows})
        checksum = Checksum([body])
        meta = name.meta(
            batch_count=1,
            row_count=len(rows),
            checksum=str(checksum),
            chunks_checksum=checksum.of_chunks,
            cdc_complete=at,
            schema_revision=revision,
            whole=True,
        )

        async def store() -> None:
            client = await self.connect()
            js = client.jetstream()
            await js.add_stream(
                name=INIT_STREAM.name, subjects=list(INIT_STREAM.subjects), allow_direct=True
            )
            headers = {CONTENT_TYPE: codec.content_type}
            chunk = snapshot_chunk_subject(shape.name, name.snapshot_id, 0)
            await js.publish(chunk, body, headers=headers)
            complete = snapshot_meta_subject(shape.name)
            await js.publish(complete, codec.encode(meta), headers=headers)
            await client.close()

        asyncio.run(store())

    def dead_letters(self) -> list[DeadLetter]:
        """What the lake left out, in order."""

        async def read() -> list[DeadLetter]:
            client = await self.connect()
            js = client.jetstream()
            count = (await js.stream_info(DEAD_STREAM)).state.messages
            found = [await js.get_msg(DEAD_STREAM, seq=seq) for seq in range(1, count + 1)]
            await client.close()
            return [
                DeadLetter(
                    int((letter.headers or {})[SEQUENCE]),
                    str(letter.subject),
                    (letter.headers or {})[REASON],
                    letter.data or b"",
                )
                for letter in found
            ]

        return asyncio.run(read())

    def forget(self, sequence: int, *, before: bool = False) -> None:
        """Delete one message, or everything before it, as age or an administrator would."""

        async def delete() -> None:
            client = await self.connect()
            js = client.jetstream()
            if before:
                await js.purge_stream(CDC_STREAM.name, seq=sequence)
            else:
                await js.delete_msg(CDC_STREAM.name, sequence)
            await client.close()

        asyncio.run(delete())

    def durable_position(self) -> int:
        """Where operators see the lake."""

        async def ask() -> int:
            client = await self.connect()
            found = await client.jetstream().consumer_info(CDC_STREAM.name, LAKE_CONSUMER)
            await client.close()
            return int(found.ack_floor.stream_seq)

        return asyncio.run(ask())


def reach_end(follower: Follower, nats: NatsOptions) -> None:
    """Follow to the stream's present end, with every mirror loaded."""
    with closing(CdcStream(nats)) as stream:
        goal = stream.state().last
    while follower.catch_up(goal):
        if follower.is_waiting:
            time.sleep(0.1)


class LakeRig:
    """One lake in a folder, driven in this process."""

    def __init__(self, spark: SparkSession, folder: Path, url: str) -> None:
        self.warehouse = f"file://{folder}"
        self.catalog = CatalogUri(f"sqlite:///{folder}/catalog.db")
        self.nats = NatsOptions(url=url)
        # A session of its own has a catalog of its own, on the one JVM.
        self.spark = spark.newSession()
        sessions = SparkSession._get_j_spark_session_class(self.spark._jvm)
        sessions.setDefaultSession(self.spark._jsparkSession)
        sessions.setActiveSession(self.spark._jsparkSession)
        settings = {**self.catalog.spark(), "warehouse": self.warehouse}
        for key, value in settings.items():
            self.spark.conf.set(f"spark.sql.catalog.lake.{key}", value)

    def drain(
        self,
        max_messages: int = 10_000,
        lake_class: type[Lake] = Lake,
        *,
        dead_letters: bool = False,
        batches: int | None = None,
    ) -> int:
        """Follow the stream to its end or for some batches; gives how many that took."""
        with closing(CdcStream(self.nats)) as stream:
            stream.ensure_durable()
            lake = lake_class(self.spark, self.nats, stream.shape, dead_letters=dead_letters)
            follower = Follower(BatchLimits(max_messages=max_messages), stream, lake)
            took = 0
            with closing(follower):
                while took != batches and follower.step(None):
                    took += 1
            return took

    @contextmanager
    def following(
        self,
        max_messages: int = 10_000,
        lake_class: type[Lake] = Lake,
        *,
        first_sight: FirstSight = "snapshot",
    ) -> Iterator[Follower]:
        """Follow as the program does: every table begins with a snapshot, gaps are healed."""
        with closing(CdcStream(self.nats)) as stream:
            stream.ensure_durable()
            lake = lake_class(
                self.spark, self.nats, stream.shape, first_sight=first_sight, can_load=True
            )
            loader = Loader(stream, lake, patience_seconds=PATIENCE_SECONDS)
            limits = BatchLimits(max_messages=max_messages)
            with closing(Follower(limits, stream, lake, loader)) as follower:
                yield follower

    def catch_up(self, max_messages: int = 10_000, lake_class: type[Lake] = Lake) -> None:
        """Do what `lake-consumer drain` does."""
        with self.following(max_messages, lake_class) as follower:
            reach_end(follower, self.nats)

    def at_cuts(self, *tables: str) -> Iterator[tuple[CutPlace, dict[str, list[dict[str, Any]]]]]:
        """The rows of these tables at every cut at which all of them can be read."""
        lake = LakeReader(self.catalog, self.warehouse)
        book = lake.cuts()
        for cut in book.cuts():
            try:
                found = {table: book.mirror_snapshot(table, cut) for table in tables}
            except NotReadable:
                continue
            yield cut, {table: self.mirror_at(table, found[table]) for table in tables}

    def mirror_at(self, table: str, snapshot_id: int) -> list[dict[str, Any]]:
        name = mirror_of(TableName.parse(table))
        held = open_catalog(self.catalog, self.warehouse).load_table((name.namespace, name.name))
        rows: list[dict[str, Any]] = held.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        return rows

    def config(self) -> LakeConfig:
        values = {"warehouse": self.warehouse, "catalog_uri": self.catalog.uri}
        return read_config({**values, "nats_url": self.nats.url}, {}, {})

    def resync(self, *tables: str) -> str:
        return ask_resync(self.config(), tables)

    def notes(self) -> dict[str, str]:
        """What `status` says of tables that are not well."""
        statuses = read_statuses(self.catalog, self.warehouse)
        return {status.name: status.note for status in statuses if status.note}

    def mirror(self, table: str) -> list[dict[str, Any]]:
        return self._rows(f"SELECT * FROM {mirror_of(TableName.parse(table)).sql} ORDER BY 1")

    def unordered(self, table: str) -> list[dict[str, Any]]:
        """Like `mirror`, for a table whose first column may be one that has no order."""
        return self._rows(f"SELECT * FROM {mirror_of(TableName.parse(table)).sql}")

    def log(self, table: str) -> list[dict[str, Any]]:
        name = log_of(TableName.parse(table)).sql
        return self._rows(f"SELECT * FROM {name} ORDER BY stream_seq")

    def cuts(self) -> list[dict[str, Any]]:
        return self._rows("SELECT * FROM lake._bridge.cuts ORDER BY stream_seq, table_name")

    def _rows(self, query: str) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self.spark.sql(query).collect()]

    def pyiceberg(self, name: str) -> list[dict[str, Any]]:
        """Read a table with no Spark at all."""
        table = open_catalog(self.catalog, self.warehouse).load_table(name)
        rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return rows

    def branches(self, name: str) -> set[str]:
        """The references to the table's snapshots, main among them."""
        table = open_catalog(self.catalog, self.warehouse).load_table(name)
        return set(table.metadata.refs)

    def versions(self, name: str) -> int:
        """How often a table was written; the empty snapshot that it begins with does not count."""
        table = open_catalog(self.catalog, self.warehouse).load_table(name)
        return sum(
            Watermark.from_summary(dict(found.summary.additional_properties)) is not None
            for found in table.metadata.snapshots
            if found.summary is not None
        )

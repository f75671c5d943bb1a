"""The driver's view of the CDC stream: how far it goes, what a message says, our durable consumer.

nats-py is asynchronous and Spark's driver is not: one loop runs in a thread of its own, and every
method here waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import KeyNotFoundError, NotFoundError

from lake_consumer.batches import Mark
from lake_consumer.errors import MessagesMissing, NatsUnreachable, StreamMissing, UndecodableMessage
from lake_consumer.forks import ForkMark
from lake_consumer.gaps import join_sequences
from lake_consumer.jetstream.connection import connect, jetstream
from lake_consumer.jetstream.deadletters import DEAD_STREAM
from lake_consumer.jetstream.identity import explain_request
from lake_consumer.jetstream.payload import body_of
from lake_consumer.jetstream.snapshots import Snapshots
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import BadPayload, codec_for, decode_entry
from schemas.forks import parse_fork
from schemas.names import TableName
from schemas.streams import CDC_STREAM, LAKE_CONSUMER, SCHEMAS_BUCKET
from schemas.subjects import FORK_PREFIX, GAP_PREFIX, is_session_subject, message_subject

CLOSE_TIMEOUT_SECONDS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What the stream holds now."""

    first: int
    last: int
    messages: int
    bytes: int
    holes: tuple[tuple[int, int], ...] = ()
    """Sequences between first and last that were deleted."""

    @property
    def mean_bytes(self) -> float:
        return self.bytes / self.messages if self.messages else 0.0


class CdcStream:
    """A connection to the stream `CDC`, for the driver."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        try:
            self._client: Client = self._wait(connect(options))
        except NatsUnreachable:
            self._stop()
            raise
        self._js = jetstream(self._client)
        self._snapshots: Snapshots | None = None
        self._tables_at = -1
        self._tables_known: dict[TableName, int] = {}

    def _wait(self, work: Coroutine[Any, Any, T], patience: float = 120) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience)
        except NotFoundError:
            raise
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise explain_request(self._options, error) from error

    def close(self) -> None:
        # Whatever keeps a connection from being closed was told by the request before it.
        with contextlib.suppress(Exception):
            self._wait(self._client.close(), CLOSE_TIMEOUT_SECONDS)
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def state(self) -> StreamState:
        try:
            found = self._wait(self._js.stream_info(CDC_STREAM.name)).state
        except NotFoundError:
            raise StreamMissing(
                f"NATS at {self._options.shown} has no stream {CDC_STREAM.name} yet"
            ) from None
        return StreamState(
            first=found.first_seq,
            last=found.last_seq,
            messages=found.messages,
            bytes=found.bytes,
            holes=self._wait(self._holes()) if found.num_deleted else (),
        )

    async def _holes(self) -> tuple[tuple[int, int], ...]:
        subject, question = f"$JS.API.STREAM.INFO.{CDC_STREAM.name}", b'{"deleted_details": true}'
        answer = json.loads((await self._client.request(subject, question, timeout=30)).data)
        return join_sequences(answer.get("state", {}).get("deleted") or [])

    def dead_letters(self) -> int:
        """Messages that the lake could not apply and left out."""
        try:
            return int(self._wait(self._js.stream_info(DEAD_STREAM)).state.messages)
        except NotFoundError:
            return 0

    def gap_mark(self, sequence: int) -> int | None:
        """The first mark of the bridge, at or behind a sequence, that changes are missing."""
        subject = message_subject(GAP_PREFIX)
        try:
            found = self._wait(
                self._js.get_msg(CDC_STREAM.name, seq=sequence, subject=subject, next=True)
            )
        except NotFoundError:
            return None
        return found.seq

    def fork_mark(self, sequence: int) -> ForkMark | None:
        """The first fork at or after a sequence."""
        subject = message_subject(FORK_PREFIX)
        try:
            found = self._wait(
                self._js.get_msg(CDC_STREAM.name, seq=sequence, subject=subject, next=True)
            )
        except NotFoundError:
            return None
        try:
            body = self._wait(body_of(self._client, subject, found.headers, found.data or b""))
            fields = codec_for(found.headers).decode(body)
            fork, source = parse_fork(fields["content"]), fields["source"]
        except (BadPayload, KeyError) as error:
            raise UndecodableMessage(f"stream sequence {found.seq} ({subject}): {error}") from error
        if fork is None:
            raise UndecodableMessage(
                f"stream sequence {found.seq} ({subject}): {fields['content']}"
            )
        return ForkMark.of(int(found.seq or 0), str(source), fork)

    @property
    def snapshots(self) -> Snapshots:
        """The INIT stream, over the same connection."""
        if self._snapshots is None:
            self._snapshots = Snapshots(self._js, self._wait)
        return self._snapshots

    def look(self, sequence: int) -> Mark:
        """Read what one message says about its transaction."""
        try:
            found = self._wait(self._js.get_msg(CDC_STREAM.name, seq=sequence))
        except NotFoundError:
            raise MessagesMissing(
                f"stream {CDC_STREAM.name} no longer holds sequence {sequence}"
            ) from None
        subject = str(found.subject)
        body = self._wait(body_of(self._client, subject, found.headers, found.data or b""))
        try:
            fields = codec_for(found.headers).decode(body)
            return Mark(
                commit_lsn=fields["commit_lsn"],
                ordinal=fields["seq"],
                last=fields["last"],
                commit_ts=fields["commit_ts"],
                is_session=is_session_subject(subject),
            )
        except (BadPayload, KeyError) as error:
            raise UndecodableMessage(
                f"stream sequence {sequence} ({found.subject}): {error}"
            ) from error

    def ensure_durable(self) -> None:
        """Make the durable consumer where it is missing; an existing one is left as it is."""
        try:
            self._wait(self._js.consumer_info(CDC_STREAM.name, LAKE_CONSUMER))
        except NotFoundError:
            config = ConsumerConfig(
                name=LAKE_CONSUMER,
                durable_name=LAKE_CONSUMER,
                ack_policy=AckPolicy.ALL,
                deliver_policy=DeliverPolicy.ALL,
                max_ack_pending=-1,
                description="How far the lake is; moved after each lake commit",
            )
            self._wait(self._js.add_consumer(CDC_STREAM.name, config))

    def move_durable(self, applied: int) -> None:
        """Show operators that everything up to `applied` is in the lake; no body is delivered."""
        self._wait(self._js.reset_consumer(CDC_STREAM.name, LAKE_CONSUMER, seq=applied + 1))

    def shape(self, table: TableName, revision: int) -> dict[str, Any] | None:
        """A table's shape from KV `schemas`, which outlives the stream; None where it is gone."""
        return self._wait(self._shape(table, revision))

    def tables(self) -> dict[TableName, int]:
        """Every table that KV `schemas` knows, with the newest revision of its shape."""
        return self._wait(self._tables())

    async def _tables(self) -> dict[TableName, int]:
        stream, prefix = f"KV_{SCHEMAS_BUCKET.name}", f"$KV.{SCHEMAS_BUCKET.name}."
        try:
            # Not by a watcher: nats-py's now and then miss what is already there.
            info = await self._js.stream_info(stream, subjects_filter=f"{prefix}>")
        except NotFoundError:
            return {}
        if info.state.last_seq == self._tables_at:
            return self._tables_known
        found: dict[TableName, int] = {}
        for subject in info.state.subjects or {}:
            entry = await self._js.get_last_msg(stream, subject)
            if entry.data:
                table = TableName.from_token(subject.removeprefix(prefix))
                found[table] = int(entry.seq or 0)
        self._tables_at, self._tables_known = info.state.last_seq, found
        return found

    async def _shape(self, table: TableName, revision: int) -> dict[str, Any] | None:
        try:
            bucket = await self._js.key_value(SCHEMAS_BUCKET.name)
            entry = await bucket.get(table.token, revision=revision)
        except (NotFoundError, KeyNotFoundError):
            return None
        return decode_entry(entry.value or b"")

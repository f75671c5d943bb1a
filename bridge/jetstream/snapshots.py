"""Snapshots on the NATS side: requests in, notices out, chunks of a failed one removed.

Requests come over core NATS, to be answered, or wait in the INIT stream until a bridge has served
them. Notices are stored and acknowledged one by one; chunks go through a lane of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from bridge.config import NatsConfig
from bridge.errors import reason_of
from bridge.jetstream.control import translated
from schemas.codecs import CONTENT_TYPE, MESSAGE_ID, Codec, codec_for
from schemas.names import TableName
from schemas.streams import CDC_STREAM, INIT_STREAM
from schemas.subjects import (
    INIT,
    SNAPSHOT_CANCELS,
    SNAPSHOT_REQUESTS,
    STORED_SNAPSHOT_REQUESTS,
    snapshot_chunks_filter,
    snapshot_error_subject,
    snapshot_meta_subject,
    snapshot_progress_subject,
    snapshot_start_subject,
)

REQUESTS_CONSUMER = "snapshots"
"""The durable consumer of stored requests; one per account, as the stream is."""

ACK_WAIT_SECONDS = 6
FETCH_SECONDS = 5
LOOK_EVERY_SECONDS = 0.25
RETRY_SECONDS = (2, 5, 15, 60)

_log = logging.getLogger("bridge.snapshot")


@dataclass(frozen=True, slots=True)
class Asked:
    """A message to the service: the table's token, the body, and how to answer."""

    token: str
    body: bytes
    answer: Callable[[Mapping[str, Any]], Awaitable[None]]


class StoredRequest:
    """A request that waits in the stream until it is acknowledged."""

    def __init__(self, message: Msg) -> None:
        self._message = message
        self.token = _rest(message.subject, STORED_SNAPSHOT_REQUESTS)
        self.body = message.data

    async def working(self) -> None:
        """Keep the server from handing it out again, for as long as this runs."""
        while True:
            await asyncio.sleep(ACK_WAIT_SECONDS / 3)
            await self._message.in_progress()

    async def done(self) -> None:
        await self._message.ack_sync()

    @property
    def tries(self) -> int:
        """How many times it was handed out, this time included."""
        return self._message.metadata.num_delivered or 1

    async def again(self) -> None:
        """Ask for it once more, later each time."""
        await self._message.nak(delay=RETRY_SECONDS[min(self.tries, len(RETRY_SECONDS)) - 1])


class InitStream:
    """Notices of snapshots, and the requests for them."""

    def __init__(
        self, client: Client, js: JetStreamContext, codec: Codec, config: NatsConfig
    ) -> None:
        self._client = client
        self._js = js
        self._codec = codec
        self._config = config

    async def listen(
        self,
        on_request: Callable[[Asked], Awaitable[None]],
        on_cancel: Callable[[Asked], Awaitable[None]],
    ) -> None:
        """Subscribe to what people ask; each message is handed on at once."""

        def hand_on(
            pattern: str, handle: Callable[[Asked], Awaitable[None]]
        ) -> Callable[[Msg], Awaitable[None]]:
            async def received(message: Msg) -> None:
                token = _rest(message.subject, pattern)
                await handle(Asked(token, message.data, lambda a: self._answer(message, a)))

            return received

        with translated(self._config):
            for pattern, handle in ((SNAPSHOT_REQUESTS, on_request), (SNAPSHOT_CANCELS, on_cancel)):
                await self._client.subscribe(pattern, cb=hand_on(pattern, handle))
            await self._client.flush()

    async def until_lost(self) -> None:
        """Wait until the connection is gone."""
        while self._client.is_connected:
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def _answer(self, message: Msg, fields: Mapping[str, Any]) -> None:
        if message.reply:
            with contextlib.suppress(nats.errors.Error):
                await message.respond(json.dumps(fields, ensure_ascii=False).encode())

    async def stored_requests(self) -> AsyncIterator[StoredRequest]:
        """Give requests as they are stored, also those stored while no bridge ran."""
        config = ConsumerConfig(
            durable_name=REQUESTS_CONSUMER,
            filter_subject=STORED_SNAPSHOT_REQUESTS,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_SECONDS,
        )
        with translated(self._config):
            subscription = await self._js.pull_subscribe(
                STORED_SNAPSHOT_REQUESTS,
                durable=REQUESTS_CONSUMER,
                stream=INIT_STREAM.name,
                config=config,
            )
        while self._client.is_connected:
            try:
                for message in await subscription.fetch(1, timeout=FETCH_SECONDS):
                    yield StoredRequest(message)
            except TimeoutError:
                continue
            except nats.errors.Error as error:
                # The consumer may be gone: whoever reads this subscribes again.
                _log.debug("stored requests: %s", reason_of(error))
                return

    async def started(self, table: TableName, fields: Mapping[str, Any]) -> None:
        await self._note(snapshot_start_subject(table), table, "start", fields)

    async def completed(self, table: TableName, fields: Mapping[str, Any]) -> None:
        """Say that a snapshot is whole; every chunk is stored before this is called."""
        await self._note(snapshot_meta_subject(table), table, "meta", fields)

    async def failed(self, table: TableName, fields: Mapping[str, Any]) -> None:
        """Say that a snapshot is not to be used, and free the room its chunks take.

        The room first: a stream that they have filled could not take the notice either. Those who
        listen hear it even if it is not stored.
        """
        with translated(self._config):
            chunks = snapshot_chunks_filter(table, fields["snapshot_id"])
            await self._js.purge_stream(INIT_STREAM.name, subject=chunks)
        await self._note(snapshot_error_subject(table), table, "error", fields)

    async def cdc_end(self) -> int:
        """Give the sequence of the last change the CDC stream holds by now."""
        with translated(self._config):
            return int((await self._js.stream_info(CDC_STREAM.name)).state.last_seq)

    async def unfinished(self) -> dict[str, TableName]:
        """Give every snapshot that began and of which the stream does not say how it ended."""
        with translated(self._config):
            begun = {
                fields["snapshot_id"]: TableName(fields["schema"], fields["table"])
                for fields in await self._read_all(f"{INIT}.start.>")
            }
            for ends in (f"{INIT}.meta.>", f"{INIT}.error.>"):
                for fields in await self._read_all(ends):
                    begun.pop(fields["snapshot_id"], None)
        return begun

    async def _read_all(self, subject: str) -> list[dict[str, Any]]:
        """Read notices, which are few and small."""
        subscription = await self._js.subscribe(
            subject, stream=INIT_STREAM.name, ordered_consumer=True
        )
        info = await subscription.consumer_info()
        pending = (info.num_pending or 0) + (info.delivered.consumer_seq if info.delivered else 0)
        notices = [await subscription.next_msg(FETCH_SECONDS) for _ in range(pending)]
        await subscription.unsubscribe()
        return [codec_for(notice.headers).decode(notice.data) for notice in notices]

    async def tell(self, table: TableName, fields: Mapping[str, Any]) -> None:
        """Say how far a snapshot is, to whoever listens; nobody has to."""
        body = json.dumps(fields, ensure_ascii=False).encode()
        with contextlib.suppress(nats.errors.Error):
            await self._client.publish(snapshot_progress_subject(table), body)

    async def _note(
        self, subject: str, table: TableName, kind: str, fields: Mapping[str, Any]
    ) -> None:
        headers = {
            MESSAGE_ID: f"{fields['snapshot_id']}-{table.token}-{kind}",
            CONTENT_TYPE: self._codec.content_type,
        }
        with translated(self._config):
            await self._js.publish(
                subject, self._codec.encode(fields), stream=INIT_STREAM.name, headers=headers
            )


def _rest(subject: str, pattern: str) -> str:
    return subject.removeprefix(pattern.removesuffix(">"))

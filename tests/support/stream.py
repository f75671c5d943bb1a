"""Reads a whole stream the way any consumer would, and meddles with it as others might."""

from __future__ import annotations

import asyncio
import io
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError

from schemas.codecs import MESSAGE_ID, OVERSIZE, codec_for, decode_entry
from schemas.compression import Expander, is_compressed
from schemas.streams import (
    CDC_STREAM,
    DICTIONARIES_BUCKET,
    OVERSIZE_STORE,
    SCHEMAS_BUCKET,
    SOURCES_BUCKET,
    STORAGE_BUCKET,
)
from schemas.subjects import OPERATIONS, source_token

PATIENCE_SECONDS = 120
ANSWER_SECONDS = 60
WRONG_LAST_SEQUENCE = 10071


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the stream holds it."""

    sequence: int
    subject: str
    headers: dict[str, str]
    fields: dict[str, Any]
    body: bytes = field(default=b"", repr=False, compare=False)

    @property
    def position(self) -> tuple[int, int]:
        return self.fields["commit_lsn"], self.fields["seq"]

    @property
    def is_change(self) -> bool:
        return self.fields.get("operation") in OPERATIONS


def read_stream(url: str, stream: str = CDC_STREAM.name) -> list[StoredMessage]:
    """Give every message of the stream, in order."""
    return asyncio.run(_read_stream(url, stream))


def read_changes(url: str) -> list[StoredMessage]:
    return [message for message in read_stream(url) if message.is_change]


def count_messages(url: str, stream: str = CDC_STREAM.name) -> int:
    return asyncio.run(_count(url, stream))


def read_shapes(url: str) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Give every revision of every key in KV `schemas`."""
    return asyncio.run(_read_shapes(url))


def read_storage(url: str, token: str) -> dict[str, Any] | None:
    """Give what the bridge remembers of a table's storage."""

    async def read() -> dict[str, Any] | None:
        async with administer(url) as js:
            try:
                bucket = await js.key_value(STORAGE_BUCKET.name)
                found = await bucket.get(token)
            except nats.js.errors.NotFoundError:
                return None
            storage: dict[str, Any] = decode_entry(found.value or b"")["storage"]
            return storage

    return asyncio.run(read())


def read_source(url: str, source: str) -> dict[str, Any]:
    """Give what the bridge remembers of a slot; nothing if there is no entry yet."""

    async def read() -> dict[str, Any]:
        async with administer(url) as js:
            subject = f"$KV.{SOURCES_BUCKET.name}.{source_token(source)}"
            try:
                found = await js.get_last_msg(f"KV_{SOURCES_BUCKET.name}", subject)
            except nats.js.errors.NotFoundError:
                return {}
            fields: dict[str, Any] = json.loads(found.data or b"{}")
            return fields

    return asyncio.run(read())


def publish(url: str, subject: str, count: int = 1) -> None:
    """Store empty messages as anybody might."""
    asyncio.run(_publish(url, subject, count))


def edit_stream(url: str, stream: str = CDC_STREAM.name, **settings: object) -> None:
    """Change settings of a stream as an administrator does."""
    asyncio.run(_edit_stream(url, stream, settings))


def delete_stream(url: str, stream: str) -> None:
    async def delete() -> None:
        async with administer(url) as js:
            await js.delete_stream(stream)

    asyncio.run(delete())


def remove_messages(url: str, sequences: list[int], stream: str = CDC_STREAM.name) -> None:
    """Remove single messages from a stream."""

    async def remove() -> None:
        async with administer(url) as js:
            for sequence in sequences:
                await js.delete_msg(stream, sequence)

    asyncio.run(remove())


def delete_consumer(url: str, stream: str, consumer: str) -> bool:
    """Delete a consumer; raises where it is not there (yet)."""

    async def delete() -> bool:
        async with administer(url) as js:
            return await js.delete_consumer(stream, consumer)

    return asyncio.run(delete())


@asynccontextmanager
async def administer(url: str) -> AsyncIterator[JetStreamContext]:
    """Connect with patience: on a busy machine a server may answer late."""
    async with await nats.connect(url, connect_timeout=ANSWER_SECONDS) as client:
        yield client.jetstream(timeout=ANSWER_SECONDS)


async def are_ids_forgotten(js: JetStreamContext, msg_id: str) -> bool:
    """Say whether the CDC stream has forgotten an id, and with it those that are older.

    The server looks at ids before conditions: it calls the probe a duplicate, or finds that its
    condition does not hold. Nothing is stored either way.
    """
    probe = {MESSAGE_ID: msg_id, "Nats-Expected-Last-Subject-Sequence": str(1 << 40)}
    try:
        answer = await js.publish("cdc._probe.insert", b"", headers=probe)
    except BadRequestError as refused:
        if refused.err_code != WRONG_LAST_SEQUENCE:
            raise
        return True
    assert answer.duplicate
    return False


def forget_ids(url: str) -> None:
    """Wait until the CDC stream has forgotten the id of its last change."""

    async def forget() -> None:
        async with administer(url) as js:
            end = (await js.stream_info(CDC_STREAM.name)).state.last_seq
            last = await js.get_msg(CDC_STREAM.name, end)
            msg_id = (last.headers or {})[MESSAGE_ID]
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await are_ids_forgotten(js, msg_id):
                    await asyncio.sleep(0.1)

    asyncio.run(forget())


async def _publish(url: str, subject: str, count: int) -> None:
    async with administer(url) as js:
        for _ in range(count):
            await js.publish(subject, b"")


async def _edit_stream(url: str, stream: str, settings: dict[str, object]) -> None:
    async with administer(url) as js:
        found = (await js.stream_info(stream)).config
        await js.update_stream(StreamConfig(**{**vars(found), **settings}))


async def _count(url: str, stream: str) -> int:
    async with administer(url) as js:
        return int((await js.stream_info(stream)).state.messages)


async def _read_stream(url: str, stream: str) -> list[StoredMessage]:
    async with administer(url) as js:
        expander = Expander()
        if not (await js.stream_info(stream)).state.messages:
            return []
        subscription = await js.subscribe(">", stream=stream, ordered_consumer=True)
        found = []
        async for message in _until_end(subscription):
            headers = dict(message.headers or {})
            body = message.data
            if name := headers.get(OVERSIZE):
                # Into a buffer: without one the client copies all it has for every piece it gets.
                whole = io.BytesIO()
                await (await js.object_store(OVERSIZE_STORE.name)).get(name, writeinto=whole)
                body = whole.getvalue()
            if is_compressed(headers):
                if key := expander.lacks(message.subject, headers):
                    bucket = await js.key_value(DICTIONARIES_BUCKET.name)
                    expander.learn(key, (await bucket.get(key)).value or b"")
                body = expander.expand(body, message.subject, headers)
            fields = codec_for(headers).decode(body) if body else {}
            sequence = message.metadata.sequence.stream
            found.append(StoredMessage(sequence, message.subject, headers, fields, body))
        return found


async def _until_end(subscription: JetStreamContext.PushSubscription) -> AsyncIterator[Msg]:
    """Give what is there; what is removed meanwhile will not come, and is not waited for."""
    silent, last = 0, 0
    while silent < PATIENCE_SECONDS:
        try:
            message = await subscription.next_msg(timeout=1)
        except TimeoutError:
            info = await subscription.consumer_info()
            if not info.num_pending and info.delivered and info.delivered.stream_seq <= last:
                return
            silent += 1
            continue
        silent, last = 0, message.metadata.sequence.stream
        yield message
        if not message.metadata.num_pending:
            return
    raise TimeoutError("the stream says there is more, and nothing comes")


async def _read_shapes(url: str) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    # Not by a watcher: nats-py's now and then miss what is already there.
    found: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    prefix = f"$KV.{SCHEMAS_BUCKET.name}."
    async with administer(url) as js:
        stream = f"KV_{SCHEMAS_BUCKET.name}"
        last = (await js.stream_info(stream)).state.last_seq
        revision = 0
        while revision < last:
            entry = await js.get_msg(stream, seq=revision + 1, subject=f"{prefix}>", next=True)
            revision = entry.seq or last
            key = str(entry.subject).removeprefix(prefix)
            if entry.data:  # a delete marker has nothing to read
                found[key].append((revision, decode_entry(entry.data)))
    return dict(found)

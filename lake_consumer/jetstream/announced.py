"""Shapes that a range of the stream announces, found without reading what is between them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.js.errors import NotFoundError

from lake_consumer.errors import UndecodableMessage
from lake_consumer.jetstream.connection import connect, jetstream
from lake_consumer.jetstream.payload import body_of
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import BadPayload, codec_for
from schemas.streams import CDC_STREAM
from schemas.subjects import SCHEMA_SUBJECTS, MessageSubject, parse_cdc_subject


class Announcement(NamedTuple):
    """A shape as a map, with its revision and the stream sequence of its message."""

    fields: dict[str, Any]
    revision: int
    sequence: int


Announced = list[Announcement]
"""Announcements in stream order."""


def read_announcements(nats: NatsOptions, first: int, last: int) -> Announced:
    return asyncio.run(_read(nats, first, last))


async def _read(nats: NatsOptions, first: int, last: int) -> Announced:
    client = await connect(nats)
    try:
        return await _find(client, first, last)
    finally:
        await client.close()


async def _find(client: Client, first: int, last: int) -> Announced:
    js = jetstream(client)
    found: Announced = []
    while first <= last:
        try:
            # The server knows which subjects its blocks hold: it goes straight to the next one.
            message = await js.get_msg(
                CDC_STREAM.name, seq=first, subject=SCHEMA_SUBJECTS, next=True
            )
        except NotFoundError:
            break
        sequence, subject = message.seq or last, str(message.subject)
        if sequence > last:
            break
        first = sequence + 1
        if isinstance(parse_cdc_subject(subject), MessageSubject):
            continue
        try:
            body = await body_of(client, subject, message.headers, message.data or b"")
            fields = codec_for(message.headers).decode(body)
            found.append(Announcement(fields, fields["schema_revision"], sequence))
        except (BadPayload, KeyError) as error:
            what = f"stream sequence {sequence} ({subject}): {error}"
            raise UndecodableMessage(what) from error
    return found

"""Schema and DDL messages of a range of the stream, found without reading what is between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from nats.js.errors import NotFoundError

from lake_consumer.ddl_plan import Announced, Ddl, Notice
from lake_consumer.errors import UndecodableMessage
from lake_consumer.jetstream.connection import connect, jetstream
from lake_consumer.jetstream.payload import body_of
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import BadPayload, codec_for
from schemas.ddl import parse_ddl
from schemas.shapes import TableShape
from schemas.streams import CDC_STREAM
from schemas.subjects import (
    DDL_PREFIX,
    SCHEMA_SUBJECTS,
    MessageSubject,
    message_subject,
    parse_cdc_subject,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A message of the stream, decoded."""

    sequence: int
    subject: str
    fields: dict[str, Any]

    @property
    def is_schema(self) -> bool:
        """A logical message of prefix `schema` has a subject that looks like one."""
        return not isinstance(parse_cdc_subject(self.subject), MessageSubject)


def read_messages(nats: NatsOptions, first: int, last: int) -> list[Found]:
    """Schema messages, and logical messages of prefix `bridge-ddl`, in stream order."""
    return asyncio.run(_read(nats, first, last))


def notices_of(found: Found) -> list[Notice]:
    """What a message says about tables; `UndecodableMessage` if it breaks the contract."""
    fields = found.fields
    try:
        if not found.is_schema:
            return [
                Ddl(
                    sequence=found.sequence,
                    lsn=fields["commit_lsn"],
                    source=fields["source"],
                    event=event,
                )
                for event in parse_ddl(fields["content"])
            ]
        shape = TableShape.from_map(fields)
        return [
            Announced(
                sequence=found.sequence,
                lsn=fields["commit_lsn"],
                name=shape.name,
                relation=shape.relation_id,
                source=fields.get("source", ""),
                revision=fields["schema_revision"],
            )
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise _undecodable(found.sequence, found.subject, error) from error


async def _read(nats: NatsOptions, first: int, last: int) -> list[Found]:
    client = await connect(nats)
    try:
        found = [
            message
            for subject in (SCHEMA_SUBJECTS, message_subject(DDL_PREFIX))
            async for message in _find(client, subject, first, last)
        ]
    finally:
        await client.close()
    return sorted(found, key=lambda message: message.sequence)


async def _find(client: Client, subject: str, first: int, last: int) -> AsyncIterator[Found]:
    js = jetstream(client)
    is_ddl = subject == message_subject(DDL_PREFIX)
    while first <= last:
        try:
            # The server knows which subjects its blocks hold: it goes straight to the next one.
            message = await js.get_msg(CDC_STREAM.name, seq=first, subject=subject, next=True)
        except NotFoundError:
            break
        sequence, at = message.seq or last, str(message.subject)
        if sequence > last:
            break
        first = sequence + 1
        if not is_ddl and isinstance(parse_cdc_subject(at), MessageSubject):
            continue
        try:
            body = await body_of(client, at, message.headers, message.data or b"")
            fields = codec_for(message.headers).decode(body)
        except BadPayload as error:
            raise _undecodable(sequence, at, error) from error
        yield Found(sequence, at, fields)


def _undecodable(sequence: int, subject: str, error: Exception) -> UndecodableMessage:
    return UndecodableMessage(f"stream sequence {sequence} ({subject}): {error}")

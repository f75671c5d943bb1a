"""Whether the stream holds nothing but logical messages between the lake's end and a mark.

Then the lake is already at the mark, though no lake commit says so: nobody follows, and nothing
that concerns a table has happened since it was drained.
"""

from __future__ import annotations

import asyncio

from nats.js.errors import NotFoundError

from lake_consumer.jetstream.connection import connect, jetstream
from lake_consumer.jetstream.payload import body_of
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import codec_for
from schemas.streams import CDC_STREAM
from schemas.subjects import MessageSubject, is_session_subject, parse_cdc_subject

LOOKED_AT = 1_000
"""Beyond so many messages the lake is far behind, and following is the answer."""


def is_quiet_up_to(nats: NatsOptions, applied: int, commit_lsn: int) -> bool:
    """Say whether no change lies behind sequence `applied` and before a commit at or behind."""
    return asyncio.run(_is_quiet_up_to(nats, applied, commit_lsn))


async def _is_quiet_up_to(nats: NatsOptions, applied: int, commit_lsn: int) -> bool:
    client = await connect(nats)
    try:
        js = jetstream(client)
        for sequence in range(applied + 1, applied + LOOKED_AT):
            try:
                found = await js.get_msg(CDC_STREAM.name, seq=sequence)
            except NotFoundError:
                return False
            subject = str(found.subject)
            if not isinstance(parse_cdc_subject(subject), MessageSubject):
                return False
            if is_session_subject(subject):
                continue
            body = await body_of(client, subject, found.headers, found.data or b"")
            if codec_for(found.headers).decode(body)["commit_lsn"] >= commit_lsn:
                return True
        return False
    finally:
        await client.close()

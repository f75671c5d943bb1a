"""The stream's end, for `bridge/tails.py` to judge."""

from __future__ import annotations

import nats.js.errors
from nats.js import JetStreamContext

from bridge.errors import SinkRefused
from bridge.jetstream.registry import Registry
from bridge.tails import Tail
from schemas.positions import Position
from schemas.streams import CDC_STREAM


async def read_tail(js: JetStreamContext, registry: Registry, stored: Position) -> Tail:
    """Look at the stream's last message; whether it is ours, the position `stored` tells."""
    last, _ = await registry.chain_end()
    try:
        message = await js.get_last_msg(CDC_STREAM.name, CDC_STREAM.subjects[0])
        fields = await registry.fields_of(message)
    except (nats.js.errors.NotFoundError, SinkRefused):
        return Tail(last, stored)
    is_ours = fields.get("commit_lsn") == stored.commit_lsn
    return Tail(last, stored, is_whole=not is_ours or bool(fields.get("last", True)))

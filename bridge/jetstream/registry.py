"""What is already there: shapes in KV `schemas`, and how far the CDC stream reaches.

The stream itself is the authority on what was stored. After any interruption the bridge asks it for
the last message of each of its tables, and goes on behind the furthest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from bridge.jetstream.oversize import OversizeStore
from schemas.codecs import BadPayload, Codec, codec_for, decode_entry
from schemas.events import Place
from schemas.names import TableName
from schemas.positions import ORIGIN, Position
from schemas.shapes import TableShape
from schemas.streams import CDC_STREAM, SCHEMAS_BUCKET
from schemas.subjects import schema_subject, table_filter


class Registry:
    """Reads and writes shapes, and reads the stream's end."""

    def __init__(self, js: JetStreamContext, codec: Codec, oversize: OversizeStore) -> None:
        self._js = js
        self._codec = codec
        self._oversize = oversize

    async def register(self, shape: TableShape, lsn: int) -> int:
        """Make `shape` the latest entry of its table and give the entry's revision."""
        bucket = await self._js.key_value(SCHEMAS_BUCKET.name)
        token = shape.name.token
        try:
            entry = await bucket.get(token)
            if decode_entry(entry.value or b"")["fingerprint"] == shape.fingerprint:
                return int(entry.revision or 0)
        except (nats.js.errors.KeyNotFoundError, BadPayload, KeyError):
            pass  # none yet, or nothing a reader could use: the new entry mends it
        return await bucket.put(token, self._codec.encode(self.describe(shape, lsn)))

    @staticmethod
    def describe(shape: TableShape, lsn: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return shape.to_map(timestamp=now, lsn=lsn)

    async def announced(self, table: TableName) -> str | None:
        """Give the fingerprint of the shape that the stream's end is in."""
        message = await self._last(schema_subject(table))
        return None if message is None else str((await self._fields(message)).get("fingerprint"))

    async def stored_position(self, tables: Iterable[TableName]) -> Position:
        """Find the furthest change of these tables that the stream holds."""
        furthest = ORIGIN
        for table in tables:
            message = await self._last(table_filter(table))
            if message is not None:
                furthest = max(furthest, await self._position(message))
        return furthest

    async def _last(self, subject: str) -> RawStreamMsg | None:
        # Not a direct get: those may be answered by a replica that is behind, and what it has not
        # heard of yet would be stored twice.
        try:
            return await self._js.get_last_msg(CDC_STREAM.name, subject)
        except nats.js.errors.NotFoundError:
            return None

    async def _position(self, message: RawStreamMsg) -> Position:
        position = Place.from_map(await self._fields(message)).position
        if str(message.subject).endswith(".schema"):
            # A shape shares its place with the change behind it, which may not be stored yet.
            return Position(position.commit_lsn, position.ordinal - 1)
        return position

    async def _fields(self, message: RawStreamMsg) -> dict[str, Any]:
        return codec_for(message.headers).decode(await self._oversize.body_of(message))

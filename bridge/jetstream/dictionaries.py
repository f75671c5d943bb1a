"""Dictionaries in KV: stored before anything names them, found again, and read like any consumer.

An entry's value is the dictionary as zstd reads it; headers of the entry say which shape and which
codec it was trained for. The key holds the hash of the value, so storing one again changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from bridge.compression import StoredDictionary
from bridge.config import NatsConfig
from bridge.errors import SinkRefused
from bridge.jetstream.control import translated
from schemas.codecs import CONTENT_TYPE
from schemas.compression import Dictionary, Expander, dictionary_key, is_compressed
from schemas.names import TableName
from schemas.streams import DICTIONARIES_BUCKET

FINGERPRINT = "Schema-Fingerprint"

_STREAM = f"KV_{DICTIONARIES_BUCKET.name}"
_PREFIX = f"$KV.{DICTIONARIES_BUCKET.name}."


class DictionaryStore:
    """The bucket, and what was read of it already."""

    def __init__(self, js: JetStreamContext, config: NatsConfig) -> None:
        self._js = js
        self._config = config
        self._expander = Expander()

    async def newest(self, table: TableName) -> StoredDictionary | None:
        """Find the dictionary that a table's messages were last compressed with."""
        found = await self._last(f"{table.token}.*")
        if found is None or not found.data:
            return None
        headers = found.headers or {}
        return StoredDictionary(
            Dictionary(found.data),
            headers.get(FINGERPRINT, ""),
            headers.get(CONTENT_TYPE, ""),
            found.time or datetime.now(UTC),
        )

    async def put(
        self, table: TableName, dictionary: Dictionary, *, fingerprint: str, content_type: str
    ) -> None:
        """Store a dictionary; it is there when this returns."""
        key = dictionary_key(table, dictionary.id)
        headers = {FINGERPRINT: fingerprint, CONTENT_TYPE: content_type}
        with translated(self._config):
            await self._js.publish(
                f"{_PREFIX}{key}", dictionary.content, stream=_STREAM, headers=headers
            )

    async def expand(self, message: RawStreamMsg, body: bytes) -> bytes:
        """Give a message's body as it was before it was compressed, if it was."""
        subject, headers = str(message.subject), message.headers
        if headers is None or not is_compressed(headers):
            return body
        if key := self._expander.lacks(subject, headers):
            self._expander.learn(key, await self._content(key))
        return self._expander.expand(body, subject, headers)

    async def _content(self, key: str) -> bytes:
        found = await self._last(key)
        if found is None or not found.data:
            raise SinkRefused(
                f"bucket {DICTIONARIES_BUCKET.name} lacks {key}, which the stream's last changes"
                " are compressed with",
                advice="Put the entry back, or purge the table's changes from the stream and let"
                " consumers take a new snapshot.",
            )
        return found.data

    async def _last(self, keys: str) -> RawStreamMsg | None:
        with translated(self._config):
            try:
                return await self._js.get_last_msg(_STREAM, f"{_PREFIX}{keys}")
            except nats.js.errors.NotFoundError:
                return None

"""Rows too large for one message: their bodies live in an object store, by message id.

The object is stored before the message that names it, so whoever reads the message finds the body.
A resend puts the same body under the same name again.
"""

from __future__ import annotations

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ObjectStoreConfig, RawStreamMsg
from nats.js.object_store import ObjectStore

from bridge.errors import BridgeError, RowTooLarge, SinkLost
from schemas.codecs import OVERSIZE
from schemas.streams import ObjectStoreSpec


class OversizeStore:
    """Puts bodies aside and finds them again."""

    def __init__(self, client: Client, js: JetStreamContext, spec: ObjectStoreSpec) -> None:
        self._client = client
        self._js = js
        self._spec = spec
        self._store: ObjectStore | None = None

    async def put(self, name: str, body: bytes) -> None:
        """Store a body under its message's id, durably, before anybody hears of it."""
        try:
            await (await self._open()).put(name, body)
        except (nats.errors.Error, TimeoutError) as error:
            raise self._refusal(name, body, error) from error

    async def body_of(self, message: RawStreamMsg) -> bytes:
        """Give a message's body, wherever it is."""
        name = (message.headers or {}).get(OVERSIZE)
        if name is None:
            return message.data or b""
        return (await (await self._open()).get(name)).data or b""

    async def _open(self) -> ObjectStore:
        """Open the bucket, making it the first time a row needs it."""
        if self._store is None:
            spec = self._spec
            try:
                self._store = await self._js.object_store(spec.name)
            except nats.js.errors.NotFoundError:
                config = ObjectStoreConfig(ttl=spec.max_age.total_seconds(), replicas=spec.replicas)
                self._store = await self._js.create_object_store(spec.name, config)
        return self._store

    def _refusal(self, name: str, body: bytes, error: Exception) -> BridgeError:
        what = f"{name} takes {len(body)} bytes, and object store {self._spec.name} did not"
        # A server that forbids a subject does not answer; one that is gone is not connected.
        if self._client.is_connected:
            return RowTooLarge(f"{what} take it: {error or type(error).__name__}")
        return SinkLost(f"{what} answer")

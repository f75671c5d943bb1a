"""Rows too large for one message: their bodies live in an object store, by message id.

The object is stored before the message that names it, so whoever reads the message finds the body.
A resend puts the same body under the same name again.
"""

from __future__ import annotations

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ObjectMeta, ObjectMetaOptions, ObjectStoreConfig, RawStreamMsg
from nats.js.object_store import ObjectStore

from bridge.errors import BridgeError, PublishRefused, RowTooLarge, SinkLost, reason_of
from bridge.jetstream.refusals import ADVICE, MAY_PASS
from schemas.codecs import OVERSIZE
from schemas.streams import ObjectStoreSpec

_CHUNK_BYTES = 128 << 10
_MAY_PASS = (*MAY_PASS, nats.js.errors.NotFoundError)
"""Also a bucket that somebody removed: the next session makes it again."""


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
            store = await self._open()
            chunks = ObjectMetaOptions(max_chunk_size=min(_CHUNK_BYTES, self._client.max_payload))
            await store.put(name, body, ObjectMeta(name=name, options=chunks))
        except (nats.errors.Error, TimeoutError) as error:
            raise self._refusal(name, body, error) from error

    async def body_of(self, message: RawStreamMsg) -> bytes:
        """Give a message's body, wherever it is."""
        name = (message.headers or {}).get(OVERSIZE)
        if name is None:
            return message.data or b""
        found = await (await self._open()).get(name)
        body = found.data or b""
        if len(body) != found.info.size:
            # nats-py gives what it has when the connection ends.
            raise SinkLost(f"object {name} came in part: {len(body)} of {found.info.size} bytes")
        return body

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
        if forbidden := self._forbidden():
            return RowTooLarge(f"{what} take it: {forbidden}")
        if advice := ADVICE.get(getattr(error, "err_code", None) or 0):
            return PublishRefused(f"{what} take it: {error}", advice=advice)
        if isinstance(error, nats.js.errors.APIError) and not isinstance(error, _MAY_PASS):
            return RowTooLarge(f"{what} take it: {error}")
        return SinkLost(f"{what} answer: {reason_of(error)}")

    def _forbidden(self) -> str | None:
        """Give what we may not do here: who asks for that is told, but gets no answer."""
        said = str(self._client.last_error or "").lower()
        ours = "permissions violation" in said and self._spec.name.lower() in said
        return said.removeprefix("nats: ") if ours else None

"""A message's body as the contract means it: fetched where it is oversize, expanded where zstd."""

from __future__ import annotations

import zstandard
from nats.aio.client import Client

from lake_consumer.errors import UndecodableMessage
from schemas.codecs import CONTENT_ENCODING, OVERSIZE, ZSTD_DICTIONARY
from schemas.streams import OVERSIZE_STORE


def is_plain(headers: dict[str, str] | None) -> bool:
    """Whether the message's data is its body, as it almost always is."""
    return not headers or (OVERSIZE not in headers and CONTENT_ENCODING not in headers)


async def body_of(client: Client, headers: dict[str, str] | None, body: bytes) -> bytes:
    if headers is None or is_plain(headers):
        return body
    if name := headers.get(OVERSIZE):
        body = await _fetch(client, name)
    if headers.get(CONTENT_ENCODING) == "zstd":
        body = _expand(body, headers)
    return body


async def _fetch(client: Client, name: str) -> bytes:
    try:
        store = await client.jetstream().object_store(OVERSIZE_STORE.name)
        found = await store.get(name)
    except Exception as error:
        raise UndecodableMessage(
            f"a change too large for one message is missing: object {name} of store "
            f"{OVERSIZE_STORE.name} ({error or type(error).__name__})",
            advice="The object expired before it was read; take a new snapshot of the table.",
        ) from error
    return found.data or b""


def _expand(body: bytes, headers: dict[str, str]) -> bytes:
    if ZSTD_DICTIONARY in headers:
        raise UndecodableMessage(
            f"a change is compressed with dictionary {headers[ZSTD_DICTIONARY]}",
            advice="Changes are read with plain zstd only; run the bridge without --zstd.",
        )
    return zstandard.ZstdDecompressor().decompressobj().decompress(body)

"""A message's body as the contract means it: fetched where it is oversize, expanded where zstd."""

from __future__ import annotations

import threading

from nats.aio.client import Client
from nats.js.errors import (
    DigestMismatchError,
    InvalidKeyError,
    InvalidObjectNameError,
    NotFoundError,
)

from lake_consumer.errors import NatsUnreachable, UndecodableMessage, reason_of
from lake_consumer.jetstream.connection import jetstream
from schemas.codecs import CONTENT_ENCODING, OVERSIZE, BadPayload
from schemas.compression import Expander, is_compressed
from schemas.streams import DICTIONARIES_BUCKET, OVERSIZE_STORE


class _Kept(threading.local):
    """The dictionaries that were fetched already; an expander is for one thread."""

    def __init__(self) -> None:
        self.expander = Expander()


_kept = _Kept()


def is_plain(headers: dict[str, str] | None) -> bool:
    """Whether the message's data is its body, as it almost always is."""
    return not headers or (OVERSIZE not in headers and CONTENT_ENCODING not in headers)


async def body_of(
    client: Client, subject: str, headers: dict[str, str] | None, body: bytes
) -> bytes:
    if headers is None or is_plain(headers):
        return body
    if name := headers.get(OVERSIZE):
        body = await _fetch(client, name)
    if is_compressed(headers):
        body = await _expand(client, subject, headers, body)
    return body


_GONE = (NotFoundError, DigestMismatchError, InvalidKeyError, InvalidObjectNameError)
"""What is said of the thing itself; any other failure says nothing about the message."""


def _unreachable(what: str, error: Exception) -> NatsUnreachable:
    return NatsUnreachable(f"{what} could not be fetched: {reason_of(error)}")


async def _fetch(client: Client, name: str) -> bytes:
    try:
        store = await jetstream(client).object_store(OVERSIZE_STORE.name)
        found = await store.get(name)
    except _GONE as error:
        raise UndecodableMessage(
            f"a change too large for one message is missing: object {name} of store "
            f"{OVERSIZE_STORE.name} ({reason_of(error)})",
            advice="The object expired before it was read; take a new snapshot of the table.",
        ) from error
    except Exception as error:
        raise _unreachable(f"object {name}", error) from error
    body = found.data or b""
    if len(body) != found.info.size:
        # nats-py gives what it has when the connection ends.
        raise NatsUnreachable(f"object {name} came in part: {len(body)} of {found.info.size} bytes")
    return body


async def _expand(client: Client, subject: str, headers: dict[str, str], body: bytes) -> bytes:
    expander = _kept.expander
    try:
        if key := expander.lacks(subject, headers):
            expander.learn(key, await _dictionary(client, key))
        return expander.expand(body, subject, headers)
    except BadPayload as error:
        raise UndecodableMessage(f"a message of {subject}: {error}") from error


async def _dictionary(client: Client, key: str) -> bytes:
    try:
        bucket = await jetstream(client).key_value(DICTIONARIES_BUCKET.name)
        found = await bucket.get(key)
    except _GONE as error:
        raise UndecodableMessage(
            f"dictionary {key} of bucket {DICTIONARIES_BUCKET.name} is missing "
            f"({reason_of(error)})",
            advice="Put the entry back, or take a new snapshot of the table.",
        ) from error
    except Exception as error:
        raise _unreachable(f"dictionary {key}", error) from error
    return found.value or b""

"""Codecs: a map to bytes and back. MessagePack by default, JSON on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from schemas.values import Format

MESSAGE_ID = "Nats-Msg-Id"
CONTENT_TYPE = "Content-Type"
CONTENT_ENCODING = "Content-Encoding"
ZSTD_DICTIONARY = "Zstd-Dictionary"
OVERSIZE = "Oversize"
CONTRACT_VERSION = "Contract-Version"
"""Which version of the contract a message follows; without it, the first."""

KNOWN_VERSION = "1"


class BadPayload(ValueError):
    """Bytes that are not a map in the codec they claim to be in."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to write a map as bytes, under the Content-Type that announces it."""

    format: Format
    content_type: str
    encode: Callable[[Any], bytes]
    _decode: Callable[[bytes], Any]
    ends: tuple[bytes, bytes]
    """How a map ends whose last value is false, or true."""

    def decode(self, body: bytes) -> dict[str, Any]:
        try:
            fields = self._decode(body)
        except Exception as error:
            # Every decoder has its own family of errors; the caller needs one.
            raise BadPayload(f"not {self.content_type}: {error}") from error
        if not isinstance(fields, dict):
            raise BadPayload(f"a {type(fields).__name__} where a map belongs")
        return fields


def _encode_json(fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode_json(body: bytes) -> Any:
    return _JSON_DECODER.decode(body.decode())


def _decode_msgpack(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False)


MSGPACK = Codec(
    "msgpack", "application/msgpack", msgpack.packb, _decode_msgpack, (b"\xc2", b"\xc3")
)
JSON = Codec("json", "application/json", _encode_json, _decode_json, (b"false}", b"true}"))

CODECS: Mapping[Format, Codec] = {codec.format: codec for codec in (MSGPACK, JSON)}
_BY_CONTENT_TYPE = {codec.content_type: codec for codec in CODECS.values()}


def codec_for(headers: Mapping[str, str] | None) -> Codec:
    """Choose by Content-Type; a message without one is MessagePack."""
    headers = headers or {}
    version = headers.get(CONTRACT_VERSION, KNOWN_VERSION)
    if version != KNOWN_VERSION:
        raise BadPayload(
            f"it follows version {version} of the contract, and this reader knows {KNOWN_VERSION}"
        )
    name = headers.get(CONTENT_TYPE, MSGPACK.content_type)
    try:
        return _BY_CONTENT_TYPE[name]
    except KeyError:
        raise BadPayload(f"unknown {CONTENT_TYPE} {name!r}") from None


def decode_entry(body: bytes) -> dict[str, Any]:
    """Decode a KV entry, which has no headers: only a JSON map begins with a brace."""
    return (JSON if body[:1] == b"{" else MSGPACK).decode(body)

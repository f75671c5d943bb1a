"""Compressed bodies: what the headers say, which dictionary they need, how a reader expands them.

`Content-Encoding: zstd` says that the body (the object's content, where it is oversize) is one zstd
frame that states its size. `Zstd-Dictionary: {id}` names the dictionary it needs: the value of key
`{table}.{id}` in KV `dictionaries`, stored before the first message that names it. The id is the
beginning of the content's SHA-256, so it can never come to mean another dictionary, and a reader
that has one keeps it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import zstandard

from schemas.codecs import CONTENT_ENCODING, ZSTD_DICTIONARY, BadPayload
from schemas.names import TableName

ZSTD = "zstd"

MAX_BODY_BYTES = 1 << 30
"""What a reader expands at most: PostgreSQL does not write a row of more than 1 GiB."""

_ID_DIGITS = 16
_KEPT_AT_MOST = 256

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A zstd dictionary, named by its content."""

    content: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:_ID_DIGITS]


def dictionary_key(table: TableName, dictionary_id: str) -> str:
    """Give the key in KV `dictionaries`."""
    return f"{table.token}.{dictionary_id}"


def is_compressed(headers: Headers | None) -> bool:
    return bool(headers and CONTENT_ENCODING in headers)


def needed_key(subject: str, headers: Headers) -> str | None:
    """Give the key of the dictionary that a message needs, if it needs one."""
    dictionary_id = headers.get(ZSTD_DICTIONARY)
    if dictionary_id is None:
        return None
    match subject.split("."):
        case ["cdc", token, *_] | ["init", "snap", token, *_]:
            return f"{token}.{dictionary_id}"
    raise BadPayload(f"{subject} is about no table, and names dictionary {dictionary_id}")


class Expander:
    """Expands bodies, and keeps the dictionaries that it was given; for one thread."""

    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._plain = zstandard.ZstdDecompressor()
        self._kept: dict[str, zstandard.ZstdDecompressor] = {}

    def lacks(self, subject: str, headers: Headers) -> str | None:
        """Give the key of a dictionary that must be learned before this message is expanded."""
        key = needed_key(subject, headers)
        return None if key is None or key in self._kept else key

    def learn(self, key: str, content: bytes) -> None:
        """Keep a dictionary, unless it is not what its key says."""
        if Dictionary(content).id != key.rpartition(".")[2]:
            raise BadPayload(f"dictionary {key} is not the one that its id names")
        if len(self._kept) >= _KEPT_AT_MOST:
            self._kept.clear()
        known = zstandard.ZstdCompressionDict(content)
        self._kept[key] = zstandard.ZstdDecompressor(dict_data=known)

    def expand(self, body: bytes, subject: str, headers: Headers) -> bytes:
        """Give the body as it was before it was compressed."""
        encoding = headers[CONTENT_ENCODING]
        if encoding != ZSTD:
            raise BadPayload(f"unknown {CONTENT_ENCODING} {encoding!r}")
        key = needed_key(subject, headers)
        try:
            self._check_size(zstandard.frame_content_size(body))
            return (self._kept[key] if key else self._plain).decompress(body)
        except zstandard.ZstdError as error:
            raise BadPayload(f"not {ZSTD}: {error}") from error

    def _check_size(self, size: int) -> None:
        if size < 0:
            raise BadPayload(f"a {ZSTD} frame that does not state its size")
        if size > self._max_bytes:
            raise BadPayload(f"a body of {size} bytes, and {self._max_bytes} are the most")

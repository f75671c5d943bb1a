"""Table names as tokens: every PostgreSQL name has exactly one token, and back.

A token is one NATS subject token and one KV key: `users` for `public.users`, `sales/orders` for any
other schema. Whatever a subject or a key cannot hold is written `=XX`, the hex of each UTF-8 byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

DEFAULT_SCHEMA = "public"

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")

# `cdc._message.{prefix}` carries logical messages, so a table of that name must not reach it.
_RESERVED = {"_message": "=5Fmessage"}

# The empty string is a legal logical-message prefix and an illegal subject token.
_EMPTY = "="


_QUOTED = r'"(?:[^"]|"")+"'
_TYPED = re.compile(rf"(?P<schema>{_QUOTED}|[^.]*)\.(?P<table>.*)", re.DOTALL)


class BadToken(ValueError):
    """Not a token that this contract writes."""


def escape(name: str) -> str:
    """Write any text as one subject token."""
    return "".join(chr(b) if b in _PLAIN else f"={b:02X}" for b in name.encode()) or _EMPTY


def unescape(token: str) -> str:
    """Read what `escape` wrote; anything it would not have written is refused."""
    try:
        name = "" if token == _EMPTY else _unescape_bytes(token).decode()
    except (UnicodeError, ValueError):
        raise BadToken(f"{token!r} is not a token of a name") from None
    if escape(name) != token:
        raise BadToken(f"{token!r} is not the token of {name!r}")
    return name


def _unescape_bytes(token: str) -> bytes:
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), token.encode("ascii"))


_RESERVED_BACK = {escaped: plain for plain, escaped in _RESERVED.items()}


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's schema and name, exactly as PostgreSQL spells them."""

    schema: str
    table: str

    @property
    def token(self) -> str:
        return _token(self.schema, self.table)

    @classmethod
    def from_token(cls, token: str) -> TableName:
        schema, slash, table = token.rpartition("/")
        table = _RESERVED_BACK.get(table, table)
        name = cls(unescape(schema) if slash else DEFAULT_SCHEMA, unescape(table))
        if name.token != token:
            raise BadToken(f"{token!r} is not the token of {name}")
        return name

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `users` or `sales.orders` as a person types it; the first dot divides.

        Either part may stand in double quotes, as in SQL; upper and lower case are kept anyway.
        """
        found = None if re.fullmatch(_QUOTED, text) else _TYPED.fullmatch(text)
        if found is None:
            return cls(DEFAULT_SCHEMA, _unquote(text))
        return cls(_unquote(found["schema"]), _unquote(found["table"]))

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if re.fullmatch(_QUOTED, part) else part


@cache
def _token(schema: str, table: str) -> str:
    name = escape(table)
    if schema != DEFAULT_SCHEMA:
        return f"{escape(schema)}/{name}"
    return _RESERVED.get(name, name)

"""NATS's client protocol as bytes, as far as the publish lane needs it. Pure; no socket here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import SinkLost
from bridge.outbox import Outgoing
from schemas.codecs import CONTENT_TYPE, MESSAGE_ID

PING = b"PING\r\n"
PONG = b"PONG\r\n"


def publish_parts(message: Outgoing, reply: str, content_type: str) -> tuple[bytes, ...]:
    """Write one message with its headers, and where the answer to it goes.

    In parts, because a body may be a megabyte and is copied anyway when frames are put together.
    """
    body = message.body
    headers = (
        f"NATS/1.0\r\n{MESSAGE_ID}: {message.msg_id}\r\n"
        f"{CONTENT_TYPE}: {content_type}\r\n{message.headers}\r\n"
    )
    size = len(headers)
    start = f"HPUB {message.subject} {reply} {size} {size + len(body)}\r\n{headers}"
    return start.encode(), body, b"\r\n"


def publish_template(reply: str, content_type: str) -> tuple[bytes, int]:
    """Give what writes many messages without extra headers, and the size of headers without an id.

    It is filled with subject, what the reply leaves open, size of headers, whole size, id and body.
    """
    before, after = f"NATS/1.0\r\n{MESSAGE_ID}: ", f"\r\n{CONTENT_TYPE}: {content_type}\r\n\r\n"
    line = f"HPUB %b {reply} %d %d\r\n{before}%b{after}%b\r\n"
    return line.encode(), len(before) + len(after)


def connect_frame(options: dict[str, Any]) -> bytes:
    return b"CONNECT " + json.dumps(options).encode() + b"\r\n"


def subscribe_frame(subject: str, sid: int) -> bytes:
    return f"SUB {subject} {sid}\r\n".encode()


@dataclass(frozen=True, slots=True)
class Info:
    """The server's introduction."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for one of our subscriptions; `headers` keeps the status line."""

    subject: str
    headers: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class ServerError:
    """A protocol error; the server usually hangs up after it."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """The server asks whether we are there."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The server has seen everything sent before our ping."""


@dataclass(frozen=True, slots=True)
class Ok:
    """The server agrees; it only says so when asked to be verbose."""


ServerFrame = Info | Delivery | ServerError | Ping | Pong | Ok


class ServerReader:
    """Cuts the server's bytes into frames, whatever pieces they arrive in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[ServerFrame]:
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> ServerFrame | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        verb, _, rest = bytes(self._buffer[:end]).partition(b" ")
        verb = verb.upper()
        if verb in (b"MSG", b"HMSG"):
            return self._delivery(verb, rest, end + 2)
        del self._buffer[: end + 2]
        read = _FRAMES.get(verb)
        if read is None:
            raise SinkLost(f"NATS sent what is not its protocol: {verb[:32]!r}")
        return read(rest)

    def _delivery(self, verb: bytes, rest: bytes, start: int) -> Delivery | None:
        try:
            fields = rest.decode().split()
            total = int(fields[-1])
            header_size = int(fields[-2]) if verb == b"HMSG" else 0
            if not 0 <= header_size <= total:
                raise ValueError
        except (ValueError, IndexError):
            raise SinkLost(f"NATS sent a message without a size: {rest[:64]!r}") from None
        if len(self._buffer) < start + total + 2:
            return None
        content = bytes(self._buffer[start : start + total])
        del self._buffer[: start + total + 2]
        return Delivery(fields[0], content[:header_size], content[header_size:])


def _json(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise SinkLost(f"NATS introduced itself with what is not JSON: {text[:64]!r}")
    return fields


def _server_error(text: bytes) -> ServerError:
    return ServerError(text.decode(errors="replace").strip().strip("'"))


_FRAMES: Mapping[bytes, Callable[[bytes], ServerFrame]] = {
    b"INFO": lambda text: Info(_json(text)),
    b"PING": lambda _: Ping(),
    b"PONG": lambda _: Pong(),
    b"+OK": lambda _: Ok(),
    b"-ERR": _server_error,
}

"""Messages taken raw from a nats-py connection: the hot path of reading.

nats-py matches several regular expressions, parses headers as e-mail and goes through a queue and a
task for every message: 30 us each. Here the bytes are framed once; what is for our
subscription is kept as it came, and every other frame is handed to nats-py's own parser whole. So
identity, TLS, requests, pings and reconnects stay nats-py's.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from nats.aio.client import Client

_LINE_END = b"\r\n"
_HEADER_END = b"\r\n\r\n"


class Taken(NamedTuple):
    """One delivery: subjects and headers are bytes as the server sent them."""

    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes


class Taker:
    """Stands before a connection's parser and keeps what one subscription is sent."""

    def __init__(self, client: Client, sid: int) -> None:
        self._parser: Any = client._ps
        self._sid = b"%d" % sid
        self._rest = b""
        self._arrived = asyncio.Event()
        self._taken: list[Taken] = []
        client._ps = self  # type: ignore[assignment]  # it asks for `parse` and `reset` alone
        self._client = client

    def close(self) -> None:
        """Give the connection its own parser back; what is half there goes with it."""
        self._client._ps = self._parser
        self._parser.buf.extend(self._rest)
        self._rest = b""

    def take(self) -> list[Taken]:
        """Everything that came since the last time, up to the first status in it."""
        taken = self._taken
        for at, one in enumerate(taken):
            if not one.data and status_of(one) is not None:
                self._taken = taken[at + 1 :]
                return taken[: at + 1]
        self._taken = []
        return taken

    async def wait(self, seconds: float) -> bool:
        """Wait until something was taken; False where nothing came."""
        if not self._taken:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), seconds)
            except TimeoutError:
                return False
        return True

    def reset(self) -> None:
        """Begin anew, as nats-py asks after a reconnect."""
        self._rest = b""
        self._parser.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Take or hand on every whole frame; hot, so it is one loop over local names."""
        buffer = self._rest + data if self._rest else data
        at, size, sid, taken = 0, len(buffer), self._sid, self._taken
        find = buffer.find
        while at < size:
            end = find(_LINE_END, at)
            if end < 0:
                break
            line = buffer[at:end].split(b" ")
            body = end + 2
            if line[0] == b"HMSG":
                after = body + int(line[-1])
                if after + 2 > size:
                    break
                if line[2] == sid:
                    split = body + int(line[-2])
                    reply = line[3] if len(line) == 6 else b""
                    taken.append(Taken(line[1], reply, buffer[body:split], buffer[split:after]))
                    at = after + 2
                    continue
            elif line[0] == b"MSG":
                after = body + int(line[-1])
                if after + 2 > size:
                    break
                if line[2] == sid:
                    reply = line[3] if len(line) == 5 else b""
                    taken.append(Taken(line[1], reply, b"", buffer[body:after]))
                    at = after + 2
                    continue
            else:
                after = end
            await self._parser.parse(buffer[at : after + 2])
            at = after + 2
        self._rest = buffer[at:]
        if taken:
            self._arrived.set()


def parse_headers(raw: bytes) -> dict[str, str]:
    """Read `NATS/1.0...` header lines; names as the contract writes them."""
    lines = raw.removesuffix(_HEADER_END).decode().split("\r\n")
    pairs = (line.partition(":") for line in lines[1:])
    return {name: value.strip() for name, _, value in pairs if name}


def status_of(taken: Taken) -> str | None:
    """The status that the server sends instead of a message, such as 404 or 408."""
    if taken.data or taken.headers[:9] != b"NATS/1.0 ":
        return None
    return taken.headers[9:12].decode()

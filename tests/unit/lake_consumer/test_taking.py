"""Frames are found wherever the socket cuts them, and only ours are taken."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lake_consumer.jetstream.taking import Taken, Taker, parse_headers, status_of

HEADERS = b"NATS/1.0\r\nContent-Type: application/msgpack\r\n\r\n"
OURS = b"HMSG cdc.users.insert 7 $JS.ACK.CDC.c.1.42.1.0.0 %d %d\r\n%b%b\r\n" % (
    len(HEADERS), len(HEADERS) + 6, HEADERS, b"a\r\nHMS",
)  # fmt: skip
PLAIN = b"MSG cdc.users.delete 7 $JS.ACK.CDC.c.1.43.2.0.0 3\r\nxyz\r\n"
OTHERS = b"PING\r\nMSG _INBOX.y 8 5\r\nhello\r\nHMSG _INBOX.z 70 12 12\r\nNATS/1.0\r\n\r\n\r\n"


class Parser:
    """Notes what it is given, as nats-py's would be."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.buf = bytearray()

    async def parse(self, data: bytes) -> None:
        self.given.append(data)


def take(wire: bytes, step: int) -> tuple[list[Taken], list[bytes]]:
    parser = Parser()
    client: Any = SimpleNamespace(_ps=parser)

    async def run() -> list[Taken]:
        taker = Taker(client, 7)
        for at in range(0, len(wire), step):
            await taker.parse(wire[at : at + step])
        taken: list[Taken] = []
        while got := taker.take():
            taken += got
        taker.close()
        assert client._ps is parser
        return taken

    return asyncio.run(run()), parser.given


@pytest.mark.parametrize("step", [1, 2, 7, 64, 10_000])
def test_frames_are_whole_however_the_socket_cuts_them(step: int) -> None:
    """A body may hold what looks like a frame; only its length says where it ends."""
    status = b"HMSG _INBOX.x 7 32 32\r\nNATS/1.0 408 Request Timeout\r\n\r\n\r\n"
    taken, given = take(OTHERS + OURS + PLAIN + status + OTHERS, step)

    assert [(one.subject, one.data) for one in taken] == [
        (b"cdc.users.insert", b"a\r\nHMS"), (b"cdc.users.delete", b"xyz"), (b"_INBOX.x", b""),
    ]  # fmt: skip
    assert taken[0].reply == b"$JS.ACK.CDC.c.1.42.1.0.0"
    assert taken[0].headers == HEADERS
    assert [status_of(one) for one in taken] == [None, None, "408"]
    assert b"".join(given) == OTHERS + OTHERS
    assert given[:3] == [b"PING\r\n", b"MSG _INBOX.y 8 5\r\nhello\r\n",
                         b"HMSG _INBOX.z 70 12 12\r\nNATS/1.0\r\n\r\n\r\n"]  # fmt: skip


def test_headers_are_read_as_the_contract_writes_them() -> None:
    raw = b"NATS/1.0\r\nNats-Msg-Id: a:b\r\nOversize:x y\r\n\r\n"

    assert parse_headers(raw) == {"Nats-Msg-Id": "a:b", "Oversize": "x y"}

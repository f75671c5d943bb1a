"""NATS's client protocol as bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SinkLost
from bridge.jetstream.frames import (
    Delivery,
    Info,
    Ok,
    Ping,
    Pong,
    ServerError,
    ServerFrame,
    ServerReader,
    batch_frames,
)
from bridge.outbox import Outgoing


def outgoing(number: int, body: bytes = b"body") -> Outgoing:
    return Outgoing("cdc.t.insert", f"{number}-t-insert", body, True)


def frames(count: int) -> bytes:
    return batch_frames(
        [outgoing(n) for n in range(count)],
        batch_id="b1",
        reply="_INBOX.x.1",
        content_type="application/msgpack",
    )


def test_only_the_last_message_of_a_batch_commits_and_asks_for_an_ack() -> None:
    parts = frames(3).split(b"HPUB ")[1:]
    assert [b"Nats-Batch-Commit: 1" in part for part in parts] == [False, False, True]
    assert [b"_INBOX.x.1" in part for part in parts] == [False, False, True]
    assert [f"Nats-Batch-Sequence: {n}\r\n".encode() in p for n, p in enumerate(parts, 1)] == [
        True
    ] * 3


def test_a_single_message_needs_no_batch() -> None:
    assert frames(1) == (
        b"HPUB cdc.t.insert _INBOX.x.1 72 76\r\nNATS/1.0\r\nNats-Msg-Id: 0-t-insert\r\n"
        b"Content-Type: application/msgpack\r\n\r\nbody\r\n"
    )


def test_declared_sizes_are_the_real_ones() -> None:
    """A wrong length would make the server read a payload as protocol."""
    rest = frames(2)
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        header_size, total = (int(word) for word in line.split()[-2:])
        assert rest[:header_size].endswith(b"\r\n\r\n")
        assert rest[total : total + 2] == b"\r\n"
        rest = rest[total + 2 :]


SERVER = (
    b'INFO {"max_payload":1048576}\r\nPING\r\nPONG\r\n+OK\r\n'
    b"MSG _INBOX.x.1 1 5\r\nhe\r\no\r\n"
    b"HMSG _INBOX.x.2 1 16 18\r\nNATS/1.0 503\r\n\r\nok\r\n"
    b"-ERR 'Authorization Violation'\r\n"
)
FRAMES: list[ServerFrame] = [
    Info({"max_payload": 1048576}),
    Ping(),
    Pong(),
    Ok(),
    Delivery("_INBOX.x.1", b"", b"he\r\no"),
    Delivery("_INBOX.x.2", b"NATS/1.0 503\r\n\r\n", b"ok"),
    ServerError("Authorization Violation"),
]


@given(st.lists(st.integers(0, len(SERVER)), max_size=8))
def test_frames_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    reader, found = ServerReader(), list[ServerFrame]()
    edges = [0, *sorted(cuts), len(SERVER)]
    for start, end in itertools.pairwise(edges):
        found += reader.feed(SERVER[start:end])
    assert found == FRAMES


@given(st.binary())
def test_any_bytes_parse_or_raise_the_one_error(data: bytes) -> None:
    for prefix in (b"", b"MSG ", b"INFO ", b"HMSG "):
        try:
            list(ServerReader().feed(prefix + data + b"\r\n"))
        except SinkLost:
            continue


def test_what_is_not_nats_is_refused() -> None:
    with pytest.raises(SinkLost, match="not its protocol"):
        list(ServerReader().feed(b"HTTP/1.1 400 Bad Request\r\n"))

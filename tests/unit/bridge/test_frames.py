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
    publish_parts,
)
from bridge.outbox import Outgoing


def test_a_message_carries_its_id_and_where_the_answer_goes() -> None:
    message = Outgoing("cdc.t.insert", "0-t-insert", "é".encode())
    assert b"".join(publish_parts(message, "_INBOX.x", "application/json")) == (
        b"HPUB cdc.t.insert _INBOX.x 69 71\r\nNATS/1.0\r\nNats-Msg-Id: 0-t-insert\r\n"
        b"Content-Type: application/json\r\n\r\n\xc3\xa9\r\n"
    )


def test_a_message_carries_headers_of_its_own() -> None:
    message = Outgoing("cdc.t.insert", "0-t-insert", b"", headers="Oversize: 0-t-insert\r\n")
    assert b"\r\nOversize: 0-t-insert\r\n" in b"".join(publish_parts(message, "_INBOX.x", "j"))


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

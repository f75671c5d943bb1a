"""NATS's client protocol as bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SinkLost
from bridge.jetstream.frames import (
    EXPECTED_ID,
    EXPECTED_SEQUENCE,
    LARGE_BYTES,
    BatchParts,
    ChainParts,
    Delivery,
    Info,
    Ok,
    Ping,
    Pong,
    ServerError,
    ServerFrame,
    ServerReader,
    gather,
    join_batch,
    join_chain,
    publish_parts,
)
from bridge.native import native
from bridge.outbox import Outgoing, outgoing
from bridge.rowparts import PackedRow
from tests.support.native import both_ways


def test_a_message_carries_its_id_and_where_the_answer_goes() -> None:
    message = Outgoing("cdc.t.insert", "0-t-insert", "é".encode())
    assert b"".join(publish_parts(message, "_INBOX.x", "application/json")) == (
        b"HPUB cdc.t.insert _INBOX.x 69 71\r\nNATS/1.0\r\nNats-Msg-Id: 0-t-insert\r\n"
        b"Content-Type: application/json\r\n\r\n\xc3\xa9\r\n"
    )


def test_a_message_names_the_one_it_must_follow() -> None:
    message = Outgoing("cdc.t.insert", "1-t-insert", b"")
    condition = f"{EXPECTED_ID}: 0-t-insert\r\n"
    assert b"".join(publish_parts(message, "", "j", condition)) == (
        b"HPUB cdc.t.insert 93 93\r\nNATS/1.0\r\nNats-Msg-Id: 1-t-insert\r\n"
        b"Nats-Expected-Last-Msg-Id: 0-t-insert\r\nContent-Type: j\r\n\r\n\r\n"
    )


def test_a_message_carries_headers_of_its_own() -> None:
    message = Outgoing("cdc.t.insert", "0-t-insert", b"", headers="Oversize: 0-t-insert\r\n")
    assert b"\r\nOversize: 0-t-insert\r\n" in b"".join(publish_parts(message, "_INBOX.x", "j"))


@given(st.lists(st.sampled_from([b"", b"a", b"bc", b"L" * LARGE_BYTES, b"M" * LARGE_BYTES])))
def test_small_parts_are_gathered_and_large_ones_are_not_copied(parts: list[bytes]) -> None:
    gathered = gather(parts)

    assert b"".join(gathered) == b"".join(parts)
    large = [part for part in parts if len(part) >= LARGE_BYTES]
    assert [id(part) for part in gathered if len(part) >= LARGE_BYTES] == list(map(id, large))
    assert len(gathered) <= 2 * len(large) + 1


ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"cdc.t.insert", b"cdc.a=20b.delete"]),
        st.sampled_from([b"0-t-insert", b"f" * 200, b"e" * 5_000]),
        st.binary(max_size=20) | st.sampled_from([b"x" * 3_990, b"y" * 5_000, b"z" * 70_000]),
    )
)


@both_ways
@given(
    rows=ROWS,
    first=st.integers(1, 2**40),
    behind=st.none() | st.integers(0, 1_000) | st.integers(2**40, 2**64 - 2**20),
)
def test_many_messages_of_a_batch_are_what_they_are_one_by_one(
    way: str, rows: list[PackedRow], first: int, behind: int | None
) -> None:
    write = native("publish_batch") if way == "compiled" else join_batch

    shared = BatchParts.of(("_INBOX.x.", ".1"), "j", expecting=behind is not None)
    written = write(rows, first, behind or 0, shared)

    follows = [f"{EXPECTED_SEQUENCE}: {(behind or 0) + n}\r\n" for n in range(len(rows))]
    assert written == b"".join(
        part
        for number, (row, condition) in enumerate(zip(rows, follows, strict=True), first)
        for part in publish_parts(
            outgoing(row), f"_INBOX.x.{number}.1", "j", "" if behind is None else condition
        )
    )


@both_ways
@given(rows=ROWS, behind=st.sampled_from([b"0-t-delete", b"e" * 3_000]))
def test_many_messages_of_a_chain_are_what_they_are_one_by_one(
    way: str, rows: list[PackedRow], behind: bytes
) -> None:
    write = native("publish_chain") if way == "compiled" else join_chain

    written = write(rows, behind, ChainParts.of("j"))

    before = [behind, *(msg_id for _, msg_id, _ in rows)]
    assert written == b"".join(
        part
        for row, predecessor in zip(rows, before, strict=False)
        for part in publish_parts(
            outgoing(row), "", "j", f"{EXPECTED_ID}: {predecessor.decode()}\r\n"
        )
    )


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

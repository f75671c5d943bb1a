"""Bytes from PostgreSQL: what they mean, and that nonsense is refused by one error."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.errors import MalformedWal
from bridge.protocol.decoder import decode_message
from bridge.protocol.framing import Keepalive, XLogData, decode_frame, encode_status
from bridge.protocol.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    Type,
    Update,
    WalMessage,
)
from tests.support import wal

MESSAGES: list[tuple[bytes, WalMessage]] = [
    (wal.begin(0x100, xid=9, commit_time=5), Begin(0x100, 5, 9)),
    (wal.commit(0x100, 0x130, 5), Commit(0x100, 0x130, 5)),
    (b"O" + bytes(7) + b"\x05" + b"origin\0", Origin(5, "origin")),
    (
        wal.relation(16, "users", [("id", 23, True), ("n", 25, False)], schema="s", identity="f"),
        Relation(
            16,
            "s",
            "users",
            "f",
            (RelationColumn("id", 23, -1, True), RelationColumn("n", 25, -1, False)),
        ),
    ),
    (b"Y\x00\x00\x00\x10s\0mood\0", Type(16, "s", "mood")),
    (wal.insert(16, ["1", None, ""]), Insert(16, ("1", None, ""))),
    (wal.update(16, ["1", b"u"]), Update(16, ("1", UNCHANGED))),
    (wal.update(16, ["2", "b"], ["1", None]), Update(16, ("2", "b"), key=("1", None))),
    (wal.update(16, ["1", "b"], ["1", "a"], "O"), Update(16, ("1", "b"), old=("1", "a"))),
    (wal.delete(16, ["1", None]), Delete(16, key=("1", None))),
    (wal.delete(16, ["1", "a"], "O"), Delete(16, old=("1", "a"))),
    (wal.truncate([16, 17], 3), Truncate((16, 17), True, True)),
    (wal.message(0x99, "p", b"\0x"), Message(True, 0x99, "p", b"\0x")),
]


@pytest.mark.parametrize(("data", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_every_kind_of_message_is_read(data: bytes, message: WalMessage) -> None:
    assert decode_message(data) == message


@pytest.mark.parametrize("data", [data for data, _ in MESSAGES])
def test_every_cut_of_a_message_is_refused(data: bytes) -> None:
    """Half a message must never pass for a smaller one."""
    for size in range(len(data)):
        with pytest.raises(MalformedWal):
            decode_message(data[:size])


@pytest.mark.parametrize("data", [data for data, _ in MESSAGES])
def test_bytes_behind_a_message_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedWal):
        decode_message(data + b"\0")


@given(st.binary())
@example(b"I\0\0\0\x10N\0\x01t\xff\xff\xff\xff")
@example(b"R\0\0\0\x10s\0t\0d\xff\xff")
@example(b"T\xff\xff\xff\xff\0")
def test_any_bytes_parse_or_raise_the_one_error(data: bytes) -> None:
    """A decoder that dies of anything else would end the process without a remedy."""
    for prefix in (b"", *{message[:1] for message, _ in MESSAGES}):
        try:
            decode_message(prefix + data)
        except MalformedWal:
            continue


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedWal, match="UTF-8"):
        decode_message(b"I\0\0\0\x10N\0\x01t\0\0\0\x01\xff")


def test_an_unknown_kind_is_refused_rather_than_skipped() -> None:
    """A skipped message is a lost change."""
    with pytest.raises(MalformedWal, match="unknown message kind"):
        decode_message(b"Zwhatever")


def test_frames_carry_position_and_payload() -> None:
    data = b"w" + (1).to_bytes(8) + (2).to_bytes(8) + (3).to_bytes(8) + b"payload"
    assert decode_frame(data) == XLogData(1, 2, b"payload")


def test_a_keepalive_says_whether_it_wants_an_answer() -> None:
    data = b"k" + (9).to_bytes(8) + (3).to_bytes(8) + b"\x01"
    assert decode_frame(data) == Keepalive(9, reply_requested=True)


@given(st.binary())
def test_any_frame_parses_or_raises_the_one_error(data: bytes) -> None:
    for prefix in (b"", b"w", b"k"):
        try:
            decode_frame(prefix + data)
        except MalformedWal:
            continue


def test_a_status_update_confirms_one_position_in_all_three_fields() -> None:
    """Written, flushed and applied are the same to us: stored."""
    status = encode_status(0x1234, 77)
    assert status[:1] == b"r"
    assert [int.from_bytes(status[at : at + 8]) for at in (1, 9, 17)] == [0x1234] * 3
    assert len(status) == 34

"""What the server's answers to a batch mean."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bridge.errors import PublishRefused, SinkLost
from bridge.jetstream.batch import Batch
from bridge.jetstream.frames import Delivery
from bridge.outbox import Outgoing, outgoing


def batch(sent: int, *, close: bool = False) -> Batch:
    made = Batch("_INBOX.x", "b1")
    made.frames(
        [Outgoing("cdc.t.insert", f"{n}-t-insert", b"x") for n in range(sent)], "j", close=close
    )
    return made


def answer(**fields: Any) -> Delivery:
    return Delivery("_INBOX.x.b1.500.fail.1.0.$FI", b"", json.dumps(fields).encode())


def operations(frames: list[bytes]) -> list[str]:
    return re.findall(r"b1\.500\.fail\.(\d+\.\d)\.\$FI", b"".join(frames).decode())


def test_a_batch_starts_appends_and_commits() -> None:
    made = Batch("_INBOX.x", "b1")
    message = Outgoing("cdc.t.insert", "1-t-insert", b"x")
    assert operations(made.frames([message] * 2, "j", close=False)) == ["1.0", "2.1"]
    assert operations(made.frames([message] * 2, "j", close=True)) == ["3.1", "4.2"]


def test_a_single_message_starts_and_commits_at_once() -> None:
    message = Outgoing("cdc.t.insert", "1-t-insert", b"x")
    assert operations(Batch("_INBOX.x", "b1").frames([message], "j", close=True)) == ["1.2"]


@pytest.mark.parametrize(
    "condition",
    [{}, {"behind": 0}, {"behind": 9_999}, {"fence": "Fence: 1\r\n"}],
    ids=["unconditional", "behind nothing", "behind a message", "fenced"],
)
def test_messages_of_the_short_way_are_framed_like_all_others(condition: dict[str, Any]) -> None:
    """Most messages are written by one template, which must not differ from what it stands for."""
    rows = [(b"cdc.t.insert", f"{n:x}-t-insert".encode(), b"x" * n) for n in (1, 99, 1_000)]
    short, long = (Batch("_INBOX.x", "b1", **condition) for _ in range(2))

    for close in (False, True):
        framed = short.frames(rows, "j", close=close)
        assert framed == long.frames([outgoing(row) for row in rows], "j", close=close)


def test_each_message_names_the_sequence_it_follows() -> None:
    """However they are sent, each may only be stored where it belongs."""
    made = Batch("_INBOX.x", "b1", behind=7)
    row = (b"cdc.t.insert", b"1-t-insert", b"x")
    sent = made.frames([row] * 4, "j", close=False) + made.frames([row] * 3, "j", close=True)

    named = re.findall(rb"Nats-Expected-Last-Sequence: (\d+)\r\n", b"".join(sent))
    assert named == [b"%d" % n for n in range(7, 14)]


def test_a_fence_stands_before_the_first_message_alone() -> None:
    """A second condition on the same subject is refused while the first is on its way."""
    made = Batch("_INBOX.x", "b1", fence="Fence: 1\r\n")
    row = (b"cdc.t.insert", b"1-t-insert", b"x")
    sent = b"".join(made.frames([row] * 4, "j", close=False) + made.frames([row], "j", close=True))

    assert sent.count(b"Fence: 1\r\n") == 1
    assert sent.index(b"Fence: 1\r\n") < sent.index(b"HPUB", 1)


def test_a_batch_stored_elsewhere_than_where_it_belongs_is_no_ack() -> None:
    made = Batch("_INBOX.x", "b1", behind=7)
    made.frames([Outgoing("cdc.t.insert", "1-t-insert", b"x")], "j", close=True)
    with pytest.raises(SinkLost, match="follows 7"):
        made.answer(answer(stream="CDC", seq=9, batch="b1", count=1))


def test_flow_answers_say_how_much_is_stored() -> None:
    made = batch(30)
    assert made.answer(answer(type="ack", seq=0, msgs=10)) == 0
    assert made.answer(answer(type="ack", seq=10, msgs=10)) == 10
    assert made.answer(answer(type="ack", seq=30, msgs=10)) == 20
    assert not made.is_complete


def test_the_sender_waits_when_too_many_answers_are_outstanding() -> None:
    """The server's queue is bounded; what overflows it is refused."""
    made = batch(90)
    made.answer(answer(type="ack", seq=0, msgs=10))
    assert not made.has_room
    made.answer(answer(type="ack", seq=20, msgs=10))
    assert made.has_room


def test_the_commit_speaks_for_everything() -> None:
    made = batch(5, close=True)
    assert made.answer(answer(stream="CDC", seq=99, batch="b1", count=5)) == 5
    assert (made.is_complete, made.last_sequence) == (True, 99)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "gap", "last_seq": 3, "seq": 5},
        {"stream": "CDC", "seq": 99, "batch": "b1", "count": 3},
        {"type": "ack", "seq": 6, "msgs": 10},
        {"type": "surprise"},
        {},
    ],
    ids=["a gap", "fewer than sent", "more than sent", "unknown", "empty"],
)
def test_an_answer_that_does_not_speak_for_what_was_sent_is_no_ack(fields: dict[str, Any]) -> None:
    with pytest.raises(SinkLost):
        batch(5, close=True).answer(answer(**fields))


def test_a_commit_nobody_asked_for_is_a_failure() -> None:
    """The server ended the batch on its own: what follows in it will be refused."""
    with pytest.raises(SinkLost, match="ended a batch"):
        batch(5).answer(answer(stream="CDC", seq=99, batch="b1", count=5))


def test_a_refusal_says_what_to_do() -> None:
    error = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}
    with pytest.raises(PublishRefused, match="maximum bytes exceeded") as raised:
        batch(5).answer(answer(type="err", seq=3, error=error))
    assert "max_bytes" in raised.value.advice


def test_no_stream_is_a_failure_and_not_an_ack() -> None:
    """No responders is an empty answer; taking it for an ack would lose the change."""
    silent = Delivery("_INBOX.x.b1.500.fail.1.0.$FI", b"NATS/1.0 503\r\n\r\n", b"")
    with pytest.raises(SinkLost, match="no stream"):
        batch(1).answer(silent)

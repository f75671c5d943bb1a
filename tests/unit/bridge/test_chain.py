"""What goes over the wire in a chain, and what the server's answers to it mean."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from bridge.errors import ChainBroken, PublishRefused, SinkLost
from bridge.jetstream.chain import Chain
from bridge.jetstream.frames import Delivery
from bridge.jetstream.tally import FLOW, OUTSTANDING_ACKS
from bridge.outbox import Message, Outgoing, outgoing
from bridge.rowparts import PackedRow

INBOX = "_INBOX.x"


def begin(behind: int = 0) -> Chain:
    return Chain(INBOX, "CDC", behind=behind)


def row(number: int) -> PackedRow:
    return b"cdc.t.insert", f"{number:x}-t-insert".encode(), b"x" * (number % 50)


def ids(frames: list[bytes]) -> list[tuple[str, str | None]]:
    """Give each message's id and that of the one it must follow."""
    heads = re.findall(
        rb"Nats-Msg-Id: (\S+)\r\n(?:Nats-Expected-Last-Msg-Id: (\S+)\r\n)?", b"".join(frames)
    )
    return [(own.decode(), behind.decode() or None) for own, behind in heads]


def asking(frames: list[bytes]) -> list[int]:
    """Give the numbers of the messages that ask for an answer."""
    return [int(number) for number in re.findall(rb"_INBOX\.x\.(\d+) \d+", b"".join(frames))]


def answer(number: int, **fields: Any) -> Delivery:
    return Delivery(f"{INBOX}.{number}", b"", json.dumps(fields).encode())


def test_every_message_but_the_first_names_the_one_before_it() -> None:
    """Through closes and many calls too: else something could be stored behind a hole there."""
    chain, frames = begin(), list[bytes]()
    for first, last, close in ((1, 3, True), (4, 4, True), (5, 1_300, False), (1_301, 1_301, True)):
        frames += chain.frames([row(n) for n in range(first, last + 1)], "j", close=close)

    names = [f"{n:x}-t-insert" for n in range(1, 1_302)]
    assert ids(frames) == [(names[0], None), *((own, b) for b, own in itertools.pairwise(names))]


def test_the_first_message_names_the_sequence_that_the_stream_ended_with() -> None:
    """What came since the stream was asked may be what is about to be sent."""
    chain = begin(behind=71)

    first = b"".join(chain.frames([row(1), row(2)], "j", close=False))
    second = b"".join(chain.frames([row(3)], "j", close=True))

    assert first.count(b"\r\nNats-Expected-Last-Sequence: 71\r\n") == 1
    assert b"Nats-Expected-Last-Sequence" not in second


def test_messages_of_the_short_way_are_framed_like_all_others() -> None:
    rows = [row(n) for n in range(1, 1_100)]
    short, long, mixed = begin(), begin(), begin()
    some: list[Message] = [outgoing(each) if n % 7 == 0 else each for n, each in enumerate(rows)]

    for close in (False, True):
        framed = b"".join(short.frames(rows, "j", close=close))
        assert framed == b"".join(long.frames([outgoing(r) for r in rows], "j", close=close))
        assert framed == b"".join(mixed.frames(some, "j", close=close))


def test_headers_and_large_bodies_are_carried() -> None:
    """A body in the object store is named by a header, and one of a megabyte is not copied."""
    large = bytes(1 << 20)
    chain = begin()
    chain.frames([row(1)], "j", close=False)

    frames = chain.frames(
        [
            Outgoing("cdc.t.insert", "a", b"", "Oversize: a\r\n"),
            Outgoing("cdc.t.insert", "b", large),
        ],
        "j",
        close=True,
    )

    assert ids(frames) == [("a", "1-t-insert"), ("b", "a")]
    assert b"\r\nOversize: a\r\n" in frames[0]
    assert any(part is large for part in frames)


def test_the_first_message_every_so_many_and_the_last_ask_for_an_answer() -> None:
    """The first can tell why it was refused; one behind it can only tell that something was."""
    chain = begin()
    assert asking(chain.frames([row(n) for n in range(1, 11)], "j", close=False)) == [1]
    assert asking(chain.frames([row(n) for n in range(11, 13)], "j", close=True)) == [12]
    rest = [row(n) for n in range(13, 2 * FLOW + 2)]
    assert asking(chain.frames(rest, "j", close=False)) == [FLOW, 2 * FLOW]
    assert asking(chain.frames([], "j", close=True)) == []


def test_an_answer_speaks_for_everything_before_it() -> None:
    chain = begin()
    chain.frames([row(n) for n in range(1, 31)], "j", close=True)

    assert chain.answer(answer(1, stream="CDC", seq=71)) == 1
    assert not chain.is_complete
    assert chain.answer(answer(30, stream="CDC", seq=100)) == 29
    assert (chain.is_complete, chain.last_sequence) == (True, 100)


def test_what_was_stored_before_is_stored() -> None:
    """A message sent again has the sequence of its first time, which is not the stream's end."""
    chain = begin()
    chain.frames([row(n) for n in range(1, 3)], "j", close=True)
    chain.answer(answer(1, stream="CDC", seq=9))

    assert chain.answer(answer(2, stream="CDC", seq=4, duplicate=True)) == 1
    assert chain.last_sequence == 9


def test_the_sender_waits_when_too_many_answers_are_outstanding() -> None:
    chain = begin()
    chain.frames([row(n) for n in range(1, FLOW * OUTSTANDING_ACKS + 1)], "j", close=False)
    assert not chain.has_room

    chain.answer(answer(FLOW, stream="CDC", seq=FLOW))
    assert chain.has_room


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (3, {"stream": "CDC", "seq": 1}),
        (1, {"stream": "COPY", "seq": 1}),
        (1, {"type": "ack", "seq": 1}),
        (1, {}),
    ],
    ids=["more than sent", "of another stream", "of something else", "empty"],
)
def test_an_answer_that_does_not_speak_for_what_was_sent_is_no_ack(
    number: int, fields: dict[str, Any]
) -> None:
    chain = begin()
    chain.frames([row(1), row(2)], "j", close=True)

    with pytest.raises(SinkLost):
        chain.answer(answer(number, **fields))


@pytest.mark.parametrize(
    ("code", "error"),
    [(10070, ChainBroken), (10071, ChainBroken), (10077, PublishRefused), (10999, PublishRefused)],
)
def test_a_refusal_is_told_by_what_it_means(code: int, error: type[Exception]) -> None:
    chain = begin()
    chain.frames([row(1)], "j", close=True)

    with pytest.raises(error, match=str(code)):
        chain.answer(answer(1, error={"err_code": code, "description": "no"}, stream="CDC", seq=0))


def test_no_stream_is_a_failure_and_not_an_ack() -> None:
    chain = begin()
    chain.frames([row(1)], "j", close=True)

    with pytest.raises(SinkLost, match="no stream"):
        chain.answer(Delivery(f"{INBOX}.1", b"NATS/1.0 503\r\n\r\n", b""))


def test_answers_to_others_are_not_ours() -> None:
    assert begin().owns(answer(1))
    assert not begin().owns(Delivery("_INBOX.y.1", b"", b""))


def test_a_first_message_that_is_sent_alone_asks_for_its_answer() -> None:
    """Its condition is the one that decides whether the chain may begin at all."""
    assert asking(begin().frames([row(1)], "j", close=False)) == [1]

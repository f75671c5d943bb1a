"""A chain: every message names the one before it, and is stored behind that one or not at all.

`Nats-Expected-Last-Msg-Id` says which message must be the stream's last, so whatever comes behind a
message that was refused is refused too, and so is everything behind what somebody else stored
between two of ours. Nothing stands behind a hole, and the answer to one message speaks for all
before it; only some messages ask for one.

The first message names the sequence that the stream ended with when it was asked how far it is: had
anything come since, that answer would be no longer true. It also asks for an answer, because only
the message that was refused for a reason can tell it.

The server spends a fifth less on a chained message than on one of a batch (`batch`), which does not
mind other writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bridge.jetstream.frames import (
    EXPECTED_ID,
    EXPECTED_SEQUENCE,
    ChainParts,
    Delivery,
    gather,
    publish_chain,
    publish_parts,
)
from bridge.jetstream.tally import FLOW, OUTSTANDING_ACKS, Tally, read_answer, unexpected
from bridge.outbox import Message, all_packed, as_outgoing


class Chain(Tally):
    """All messages of a lane, from its first to its last."""

    goes_on: ClassVar[bool] = True

    def __init__(self, inbox: str, stream: str, *, behind: int) -> None:
        super().__init__()
        self._prefix = f"{inbox}."
        self._stream = stream
        self._begin = behind
        self._end = b""
        """The id of the last message sent."""

    @property
    def is_complete(self) -> bool:
        return self.stored == self.sent

    @property
    def has_room(self) -> bool:
        return self.sent - self.stored < FLOW * OUTSTANDING_ACKS

    def frames(self, messages: Sequence[Message], content_type: str, *, close: bool) -> list[bytes]:
        """Write the next messages; `close` asks for an answer to the last of them."""
        first, self.sent = self.sent + 1, self.sent + len(messages)
        parts: list[bytes] = []
        at = first
        for asking in _asking(first, self.sent, close=close):
            parts += self._silent(messages[at - first : asking - first], content_type)
            parts += self._one(messages[asking - first], content_type, f"{self._prefix}{asking}")
            at = asking + 1
        parts += self._silent(messages[at - first :], content_type)
        return gather(parts)

    def _silent(self, messages: Sequence[Message], content_type: str) -> list[bytes]:
        """Write messages that ask for nothing; nearly always they are rows of the short way."""
        if not messages:
            return []
        if all_packed(messages):
            behind, self._end = self._end, messages[-1][1]
            return [publish_chain(messages, behind, ChainParts.of(content_type))]
        return [part for each in messages for part in self._one(each, content_type, "")]

    def _one(self, message: Message, content_type: str, reply: str) -> tuple[bytes, ...]:
        written = as_outgoing(message)
        behind, self._end = self._end, written.msg_id.encode()
        first = f"{EXPECTED_SEQUENCE}: {self._begin}\r\n"
        condition = f"{EXPECTED_ID}: {behind.decode()}\r\n" if behind else first
        return publish_parts(written, reply, content_type, condition)

    def owns(self, delivery: Delivery) -> bool:
        return delivery.subject.startswith(self._prefix)

    def answer(self, delivery: Delivery) -> int:
        """Say how many more messages are stored by now, or raise what the server refused."""
        number = delivery.subject.removeprefix(self._prefix)
        match read_answer(delivery):
            case {"stream": self._stream, "seq": int(sequence)} if number.isdecimal():
                # What was stored before has the sequence that it got then.
                self.last_sequence = max(sequence, self.last_sequence or 0)
                return self.advance(int(number))
        raise unexpected(delivery)


def _asking(first: int, last: int, *, close: bool) -> list[int]:
    """Say which of some messages ask for an answer: the first of all, every so many, the last."""
    asking = {*range(-(-first // FLOW) * FLOW, last + 1, FLOW)}
    if first == 1 <= last:
        asking.add(1)
    if close and last >= first:
        asking.add(last)
    return sorted(asking)

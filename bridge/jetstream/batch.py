"""One fast-ingest batch: what was sent in it, how much of it is stored, and what an answer means.

The server stores the messages of a batch one by one, in the order of their batch sequence. In gap
mode `fail` a message that is refused or missing ends the batch: everything behind it is refused
too, so nothing is ever stored behind a hole. The reply subject carries the batch's protocol:
`<inbox>.<batch id>.<flow>.fail.<sequence>.<operation>.$FI`.

Conditions keep an old session out: one that lost its slot while it was frozen still has messages in
its buffers, and the server remembers their ids for a short time only. Alone in a stream, each
message names the sequence that it follows (`behind`). In a cluster the leader alone compares that,
with what it has proposed so far, so it holds for a whole batch on its way; `chain` would not do, as
each replica compares ids by itself. A sequence without a batch would not do either: somebody else's
message takes the place of one of ours, which is refused, and the next of ours would fit behind it.
Where others write to the stream too, the first message of a batch carries the lane's `fence`. It
has an id of this batch's own: the server looks at ids before conditions, and a batch that began
with a duplicate would be open without having met any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, ClassVar

from bridge.errors import ChainBroken, SinkLost
from bridge.jetstream.frames import (
    EXPECTED_SEQUENCE,
    BatchParts,
    Delivery,
    gather,
    publish_batch,
    publish_parts,
)
from bridge.jetstream.tally import FLOW, OUTSTANDING_ACKS, Tally, read_answer, unexpected
from bridge.outbox import Message, all_packed, as_outgoing

_FENCED = (
    "Another session of this slot has taken over, or the message that opened this one was removed"
    " from the stream. Nothing is lost; the next session goes on."
)


class Operation(IntEnum):
    """What a message does to its batch."""

    START = 0
    APPEND = 1
    COMMIT = 2


class Batch(Tally):
    """A batch from its first message to the answer that speaks for all of it."""

    goes_on: ClassVar[bool] = False

    def __init__(
        self, inbox: str, batch_id: str, *, behind: int | None = None, fence: str = ""
    ) -> None:
        super().__init__()
        self._prefix = f"{inbox}.{batch_id}.{FLOW}.fail."
        self._batch_id = batch_id
        self._behind = behind
        self._fence = fence
        self._flow = 1
        self._closing = False

    @property
    def is_complete(self) -> bool:
        return self.last_sequence is not None

    @property
    def has_room(self) -> bool:
        """Whether the server wants more before it has answered."""
        return self.sent - self.stored < self._flow * OUTSTANDING_ACKS

    def frames(self, messages: Sequence[Message], content_type: str, *, close: bool) -> list[bytes]:
        """Write the next messages; `close` makes the last of them end the batch.

        The first of a batch and the one that ends it say so. Those between are alike, and nearly
        always rows of the short way.
        """
        self._closing = close
        first, self.sent = self.sent + 1, self.sent + len(messages)
        begin = 1 if first == 1 else 0
        end = max(begin, len(messages) - close)
        between = messages[begin:end]
        parts = self._each(messages[:begin], first, content_type)
        if all_packed(between):
            reply = (self._prefix, f".{Operation.APPEND:d}.$FI")
            shared = BatchParts.of(reply, content_type, expecting=self._behind is not None)
            behind = (self._behind or 0) + first + begin - 1
            parts.append(publish_batch(between, first + begin, behind, shared))
        else:
            parts += self._each(between, first + begin, content_type)
        parts += self._each(messages[end:], first + end, content_type)
        return gather(parts)

    def _each(self, messages: Sequence[Message], first: int, content_type: str) -> list[bytes]:
        """Write messages one by one, whatever each needs."""
        parts: list[bytes] = []
        for sequence, message in enumerate(messages, first):
            reply = f"{self._prefix}{sequence}.{self._operation(sequence):d}.$FI"
            condition = self._condition(sequence)
            written = as_outgoing(message)
            if self._fence and sequence == 1:
                written = replace(written, msg_id=f"{written.msg_id}+{self._batch_id}")
            parts += publish_parts(written, reply, content_type, condition)
        return parts

    def _condition(self, sequence: int) -> str:
        """Say in headers what must be true for a message to be stored."""
        if self._behind is not None:
            return f"{EXPECTED_SEQUENCE}: {self._behind + sequence - 1}\r\n"
        return self._fence if sequence == 1 else ""

    def _operation(self, sequence: int) -> Operation:
        if self._closing and sequence == self.sent:
            return Operation.COMMIT
        return Operation.START if sequence == 1 else Operation.APPEND

    def owns(self, delivery: Delivery) -> bool:
        return delivery.subject.startswith(self._prefix)

    def answer(self, delivery: Delivery) -> int:
        """Say how many more messages are stored by now, or raise what the server refused."""
        match self._read(delivery):
            case {"type": "ack", "seq": int(stored), "msgs": int(flow)}:
                self._flow = flow
                return self.advance(stored)
            case {"batch": str(), "seq": int(sequence), "count": int(count)}:
                if not self._closing or count != self.sent:
                    raise SinkLost(f"JetStream ended a batch of {self.sent} after {count}")
                if self._behind is not None and sequence != self._behind + count:
                    raise SinkLost(f"JetStream stored a batch that follows {self._behind} up to"
                                   f" {sequence}, not {self._behind + count}")  # fmt: skip
                self.last_sequence = sequence
                return self.advance(count)
        raise unexpected(delivery)

    def _read(self, delivery: Delivery) -> dict[str, Any]:
        try:
            return read_answer(delivery)
        except ChainBroken as refused:
            if not self._fence:
                raise
            raise ChainBroken(str(refused), advice=_FENCED) from refused

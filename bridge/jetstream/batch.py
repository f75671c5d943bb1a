"""One fast-ingest batch: what was sent in it, how much of it is stored, and what an answer means.

The server stores the messages of a batch one by one, in the order of their batch sequence. In gap
mode `fail` a message that is refused or missing ends the batch: everything behind it is refused
too, so nothing is ever stored behind a hole. The reply subject carries the batch's protocol:
`<inbox>.<batch id>.<flow>.fail.<sequence>.<operation>.$FI`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar

from bridge.errors import SinkLost
from bridge.jetstream.frames import BatchParts, Delivery, gather, publish_batch, publish_parts
from bridge.jetstream.tally import FLOW, OUTSTANDING_ACKS, Tally, read_answer, unexpected
from bridge.outbox import Message, all_packed, as_outgoing


class Operation(IntEnum):
    """What a message does to its batch."""

    START = 0
    APPEND = 1
    COMMIT = 2


class Batch(Tally):
    """A batch from its first message to the answer that speaks for all of it."""

    goes_on: ClassVar[bool] = False

    def __init__(self, inbox: str, batch_id: str) -> None:
        super().__init__()
        self._prefix = f"{inbox}.{batch_id}.{FLOW}.fail."
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
            shared = BatchParts.of((self._prefix, f".{Operation.APPEND:d}.$FI"), content_type)
            parts.append(publish_batch(between, first + begin, shared))
        else:
            parts += self._each(between, first + begin, content_type)
        parts += self._each(messages[end:], first + end, content_type)
        return gather(parts)

    def _each(self, messages: Sequence[Message], first: int, content_type: str) -> list[bytes]:
        """Write messages one by one, whatever each needs."""
        parts: list[bytes] = []
        for sequence, message in enumerate(messages, first):
            reply = f"{self._prefix}{sequence}.{self._operation(sequence):d}.$FI"
            parts += publish_parts(as_outgoing(message), reply, content_type)
        return parts

    def _operation(self, sequence: int) -> Operation:
        if self._closing and sequence == self.sent:
            return Operation.COMMIT
        return Operation.START if sequence == 1 else Operation.APPEND

    def owns(self, delivery: Delivery) -> bool:
        return delivery.subject.startswith(self._prefix)

    def answer(self, delivery: Delivery) -> int:
        """Say how many more messages are stored by now, or raise what the server refused."""
        match read_answer(delivery):
            case {"type": "ack", "seq": int(stored), "msgs": int(flow)}:
                self._flow = flow
                return self.advance(stored)
            case {"batch": str(), "seq": int(sequence), "count": int(count)}:
                if not self._closing or count != self.sent:
                    raise SinkLost(f"JetStream ended a batch of {self.sent} after {count}")
                self.last_sequence = sequence
                return self.advance(count)
        raise unexpected(delivery)

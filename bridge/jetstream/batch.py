"""One fast-ingest batch: what was sent in it, how much of it is stored, and what an answer means.

The server stores the messages of a batch one by one, in the order of their batch sequence. In gap
mode `fail` a message that is refused or missing ends the batch: everything behind it is refused
too, so nothing is ever stored behind a hole. The reply subject carries the batch's protocol:
`<inbox>.<batch id>.<flow>.fail.<sequence>.<operation>.$FI`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from bridge.errors import PublishRefused, SinkLost
from bridge.jetstream.frames import Delivery, FrameParts, gather, publish_parts, publish_rows
from bridge.jetstream.refusals import ADVICE
from bridge.outbox import Message, Outgoing, all_packed, outgoing

FLOW = 500
"""After how many messages the server is asked to acknowledge; 500 is the most it does."""

OUTSTANDING_ACKS = 8
"""How many acknowledgements may be outstanding before the sender waits."""


class Operation(IntEnum):
    """What a message does to its batch."""

    START = 0
    APPEND = 1
    COMMIT = 2


class Batch:
    """A batch from its first message to the answer that speaks for all of it."""

    def __init__(self, inbox: str, batch_id: str) -> None:
        self._prefix = f"{inbox}.{batch_id}.{FLOW}.fail."
        self.sent = 0
        self.stored = 0
        self.last_sequence: int | None = None
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
            shared = FrameParts.of((self._prefix, f".{Operation.APPEND:d}.$FI"), content_type)
            parts.append(publish_rows(between, first + begin, shared))
        else:
            parts += self._each(between, first + begin, content_type)
        parts += self._each(messages[end:], first + end, content_type)
        return gather(parts)

    def _each(self, messages: Sequence[Message], first: int, content_type: str) -> list[bytes]:
        """Write messages one by one, whatever each needs."""
        parts: list[bytes] = []
        for sequence, message in enumerate(messages, first):
            reply = f"{self._prefix}{sequence}.{self._operation(sequence):d}.$FI"
            parts += publish_parts(_outgoing(message), reply, content_type)
        return parts

    def _operation(self, sequence: int) -> Operation:
        if self._closing and sequence == self.sent:
            return Operation.COMMIT
        return Operation.START if sequence == 1 else Operation.APPEND

    def owns(self, delivery: Delivery) -> bool:
        return delivery.subject.startswith(self._prefix)

    def answer(self, delivery: Delivery) -> int:
        """Say how many more messages are stored by now, or raise what the server refused."""
        if delivery.headers.startswith(b"NATS/1.0 503"):
            raise SinkLost("no stream listens on the subjects of the changes")
        fields: dict[str, Any] = json.loads(delivery.body or b"{}")
        if error := fields.get("error"):
            code = error.get("err_code", 0)
            what = f"JetStream refused a change: {error.get('description')} ({code})"
            raise PublishRefused(what, advice=ADVICE.get(code))
        match fields:
            case {"type": "ack", "seq": int(stored), "msgs": int(flow)}:
                self._flow = flow
                return self._advance(stored)
            case {"batch": str(), "seq": int(sequence), "count": int(count)}:
                if not self._closing or count != self.sent:
                    raise SinkLost(f"JetStream ended a batch of {self.sent} after {count}")
                self.last_sequence = sequence
                return self._advance(count)
        raise SinkLost(f"JetStream answered {delivery.body[:200]!r} to a batch")

    def _advance(self, stored: int) -> int:
        if stored > self.sent:
            raise SinkLost(f"JetStream acknowledged {stored} of {self.sent} messages")
        more = max(0, stored - self.stored)
        self.stored += more
        return more


def _outgoing(message: Message) -> Outgoing:
    return message if isinstance(message, Outgoing) else outgoing(message)

"""What was sent over a lane and how much of it the server says is stored; what its answers mean."""

from __future__ import annotations

import json
from typing import Any

from bridge.errors import SinkLost
from bridge.jetstream.frames import Delivery
from bridge.jetstream.refusals import refusal

FLOW = 500
"""After how many messages the server is asked to acknowledge; 500 is the most it does."""

OUTSTANDING_ACKS = 8
"""How many acknowledgements may be outstanding before the sender waits."""


class Tally:
    """Counts messages by their number from 1; an answer to one speaks for all before it."""

    def __init__(self) -> None:
        self.sent = 0
        self.stored = 0
        self.last_sequence: int | None = None
        """The stream's sequence of the last message that is known to be stored."""

    def advance(self, stored: int) -> int:
        """Count everything up to a message as stored, and say how many more that is."""
        if stored > self.sent:
            raise SinkLost(f"JetStream acknowledged {stored} of {self.sent} messages")
        more = max(0, stored - self.stored)
        self.stored += more
        return more


def read_answer(delivery: Delivery) -> dict[str, Any]:
    """Give an answer's fields, or raise what the server refused."""
    if delivery.headers.startswith(b"NATS/1.0 503"):
        raise SinkLost("no stream listens on the subjects of the changes")
    fields: dict[str, Any] = json.loads(delivery.body or b"{}")
    if error := fields.get("error"):
        raise refusal(error.get("err_code", 0), str(error.get("description")))
    return fields


def unexpected(delivery: Delivery) -> SinkLost:
    return SinkLost(f"JetStream answered {delivery.body[:200]!r} to a change")

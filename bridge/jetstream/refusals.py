"""JetStream's refusals, by its error codes: what each means here, and its remedy if it has one."""

from __future__ import annotations

from bridge.errors import BridgeError, ChainBroken, PublishRefused

WRONG_LAST = (10070, 10071)
"""A message was to follow another, by id or by sequence, that is not the stream's last."""

ADVICE = {
    10077: "The stream is full: raise its max_bytes or max_msgs, or let its age limit free room.",
    10047: "The server's JetStream storage is full: raise max_file_store.",
    10205: "Allow batches: nats stream edit CDC --allow-batch-publish.",
}


def refusal(code: int, description: str) -> BridgeError:
    """Make the error for a change that was refused."""
    what = f"JetStream refused a change: {description} ({code})"
    if code in WRONG_LAST:
        return ChainBroken(f"{what}: what it must follow is not the end of the stream")
    return PublishRefused(what, advice=ADVICE.get(code))

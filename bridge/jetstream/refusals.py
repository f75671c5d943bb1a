"""JetStream's refusals, by its error codes: what each means here, and its remedy if it has one."""

from __future__ import annotations

import nats.js.errors

from bridge.errors import BridgeError, ChainBroken, PublishRefused

MAY_PASS = (nats.js.errors.ServiceUnavailableError, nats.js.errors.ServerError)
"""What a server says that has no leader, is still reading its files, or is not well."""

NO_LEADER = (
    "Wait: the cluster is electing a leader for stream CDC or one of the buckets, or too few of its"
    " servers are up to agree on one (`nats stream report` shows which). The WAL is kept. A single"
    " server may still be reading its files, or lacks --jetstream."
)
"""What goes on if NATS answers, or did so a moment ago, and JetStream does not."""

WRONG_LAST = (10070, 10071, 10164)
"""A message was to follow another, by id or by sequence, that is not the stream's last."""

ADVICE = {
    10002: "The account's JetStream storage is full: raise its limits.",
    10005: "The cluster has no server left that could take it: look at its servers.",
    10023: "The server's JetStream storage is full: raise max_file_store, or free disk.",
    10071: "Another client stored a message meanwhile; the next session tries again.",
    10077: "The stream is full: raise its max_bytes or max_msgs, or let its age limit free room.",
    10047: "The server's JetStream storage is full: raise max_file_store.",
    10158: "The message is just being stored; it is asked for again.",
    10164: "Another session opens just now; the next session tries again.",
    10167: "The server has more to do than it takes; it is asked again.",
    10205: "Allow batches: nats stream edit CDC --allow-batch-publish.",
}


def refusal(code: int, description: str) -> BridgeError:
    """Make the error for a change that was refused."""
    what = f"JetStream refused a change: {description} ({code})"
    if code in WRONG_LAST:
        return ChainBroken(f"{what}: what it must follow is not the end of the stream")
    return PublishRefused(what, advice=ADVICE.get(code))

"""JetStream's refusals that have a remedy of their own, by its error codes."""

from __future__ import annotations

ADVICE = {
    10077: "The stream is full: raise its max_bytes or max_msgs, or let its age limit free room.",
    10047: "The server's JetStream storage is full: raise max_file_store.",
    10205: "Allow batches: nats stream edit CDC --allow-batch-publish.",
}

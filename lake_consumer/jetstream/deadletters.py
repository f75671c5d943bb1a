"""Dead letters: messages that could not be applied, kept as they were for a person to look at.

`dead.{subject}` in the stream `DEAD`, with the message's own headers and body, and three headers
more: where it was, and why it is here. Only which message it had to follow in its stream is left
out. The id is its place in the stream, so that a batch taken again stores it once. A batch goes on
only when the letter is acknowledged.
"""

from __future__ import annotations

from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import NotFoundError

from lake_consumer.errors import NatsUnreachable, reason_of
from lake_consumer.jetstream.connection import jetstream
from schemas.codecs import MESSAGE_ID

DEAD_STREAM = "DEAD"
DEAD_PREFIX = "dead"
SEQUENCE = "Dead-Letter-Sequence"
SUBJECT = "Dead-Letter-Subject"
REASON = "Dead-Letter-Reason"

_CONDITIONS = "Nats-Expected-"
"""Headers that say what must be true of a stream for a message to be stored."""

_MAX_BYTES = 1 << 30


async def ensure_dead_stream(client: Client) -> None:
    """Make the stream of dead letters where it is missing; an existing one is left as it is."""
    js = jetstream(client)
    try:
        await js.stream_info(DEAD_STREAM)
    except NotFoundError:
        await js.add_stream(
            StreamConfig(
                name=DEAD_STREAM,
                subjects=[f"{DEAD_PREFIX}.>"],
                max_bytes=_MAX_BYTES,
                # Full means that somebody should look before anything more is left out.
                discard=DiscardPolicy.NEW,
                description="Messages the lake could not apply, with the reason in their headers",
            )
        )


async def send_dead_letter(client: Client, stream: str, sequence: int, reason: str) -> None:
    """Store a message among the dead letters, or raise: it must not be left out unseen."""
    js = jetstream(client)
    await ensure_dead_stream(client)
    found = await js.get_msg(stream, seq=sequence)
    headers = {
        **{
            name: value
            for name, value in (found.headers or {}).items()
            if not name.startswith(_CONDITIONS)
        },
        MESSAGE_ID: f"{stream}-{sequence}",
        SEQUENCE: str(sequence),
        SUBJECT: str(found.subject),
        REASON: " ".join(reason.split())[:500],
    }
    try:
        await js.publish(
            f"{DEAD_PREFIX}.{found.subject}",
            found.data or b"",
            headers=headers,
        )
    except Exception as error:
        raise NatsUnreachable(
            f"stream sequence {sequence} ({found.subject}) could not be stored as a dead letter: "
            f"{reason_of(error)}",
            advice=f"See to stream {DEAD_STREAM}: it may be full, or this user may not write "
            f"to {DEAD_PREFIX}.>.",
        ) from error

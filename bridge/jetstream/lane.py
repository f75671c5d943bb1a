"""The publish lane: a connection of its own that stores batches, all of a batch or nothing of it.

One batch is in flight at a time, so nothing can be stored behind its successor: a batch that is
refused, or whose answer is lost, stops the lane with its successors unsent. Whoever holds the lane
then asks the stream how far it really is. Everything but this hot path goes through nats-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import ssl
from collections.abc import Sequence
from typing import Any, TypeVar

from bridge.config import NatsConfig
from bridge.errors import BridgeError, PublishRefused, SinkLost, SinkRefused
from bridge.jetstream.frames import (
    PING,
    PONG,
    Delivery,
    Info,
    Ping,
    Pong,
    ServerError,
    ServerFrame,
    ServerReader,
    batch_frames,
    connect_frame,
    subscribe_frame,
)
from bridge.outbox import Outgoing

CONNECT_TIMEOUT_SECONDS = 5
_READ_SIZE = 1 << 16

# What to do about the refusals that have a remedy of their own.
_ADVICE = {
    10077: "The stream is full: raise its max_bytes or max_msgs, or let its age limit free room.",
    10047: "The server's JetStream storage is full: raise max_file_store.",
    10174: "Allow atomic batches: nats stream edit CDC --allow-batch.",
    10199: "Lower --batch-messages, or raise jetstream.limits.batch.max_msgs of nats-server.",
}

Expected = TypeVar("Expected", Info, Pong)


class Lane:
    """A connection that publishes batches one after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: NatsConfig
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._config = config
        self._frames = ServerReader()
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._batch_prefix = secrets.token_hex(8)
        self._batches = 0
        self._ack: asyncio.Future[Delivery] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._failure: BridgeError | None = None
        self.max_payload = 0

    @classmethod
    async def open(cls, config: NatsConfig) -> Lane:
        """Connect, introduce ourselves and subscribe to our acks."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(config.host, config.port)
                lane = cls(reader, writer, config)
                try:
                    await lane._introduce()
                except BaseException:
                    writer.close()
                    raise
        except (OSError, EOFError, TimeoutError) as error:
            raise SinkLost(f"NATS at {config.where} cannot be reached: {error}") from error
        lane._listener = asyncio.create_task(lane._listen(), name="lane")
        return lane

    async def _introduce(self) -> None:
        info = await self._expect(Info)
        self.max_payload = int(info.fields["max_payload"])
        if self._config.tls or info.fields.get("tls_required"):
            context = ssl.create_default_context()
            await self._writer.start_tls(context, server_hostname=self._config.host)
        options = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "1",
            "name": "walbridge-lane",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "user": self._config.user,
            "pass": self._config.password,
            "auth_token": self._config.token,
        }
        given = {name: value for name, value in options.items() if value is not None}
        self._writer.write(connect_frame(given) + subscribe_frame(f"{self._inbox}.*", 1) + PING)
        await self._expect(Pong)

    async def _expect(self, kind: type[Expected]) -> Expected:
        """Wait for one kind of frame during the introduction."""
        while True:
            for frame in await self._receive():
                if isinstance(frame, ServerError):
                    raise self._server_error(frame)
                if isinstance(frame, kind):
                    return frame

    async def publish(self, messages: Sequence[Outgoing], content_type: str, wait: float) -> int:
        """Store a batch and give the stream sequence of its last message.

        On any error the caller must look up what the stream holds before it sends again.
        """
        if self._failure is not None:
            raise self._failure
        self._batches += 1
        batch_id = f"{self._batch_prefix}-{self._batches}"
        self._ack = asyncio.get_running_loop().create_future()
        self._writer.write(
            batch_frames(
                messages,
                batch_id=batch_id,
                reply=f"{self._inbox}.{self._batches}",
                content_type=content_type,
            )
        )
        try:
            async with asyncio.timeout(wait):
                answer = await self._ack
        except TimeoutError:
            raise SinkLost(
                f"no ack from NATS at {self._config.where} for {len(messages)} messages"
                f" within {wait:g} s"
            ) from None
        return self._settle(answer, len(messages))

    def _settle(self, answer: Delivery, count: int) -> int:
        """Believe only an ack that speaks of the whole batch."""
        if answer.headers.startswith(b"NATS/1.0 503"):
            raise SinkLost("no stream listens on the subjects of this batch")
        fields: dict[str, Any] = json.loads(answer.body or b"{}")
        if error := fields.get("error"):
            code = error.get("err_code", 0)
            what = f"JetStream refused {count} messages: {error.get('description')} ({code})"
            raise PublishRefused(what, advice=_ADVICE.get(code))
        if fields.get("count", 1) != count or "seq" not in fields:
            raise SinkLost(f"an ack that does not speak of {count} messages: {answer.body[:200]!r}")
        return int(fields["seq"])

    async def _listen(self) -> None:
        """Answer pings and pass acks on until the connection ends."""
        try:
            while True:
                for frame in await self._receive():
                    self._handle(frame)
        except (OSError, EOFError, BridgeError) as error:
            self._fail(error)

    def _handle(self, frame: ServerFrame) -> None:
        match frame:
            case Ping():
                self._writer.write(PONG)
            case Delivery():
                current = f"{self._inbox}.{self._batches}"
                if self._ack and not self._ack.done() and frame.subject == current:
                    self._ack.set_result(frame)
            case ServerError():
                raise self._server_error(frame)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, BridgeError):
            error = SinkLost(f"NATS at {self._config.where} hung up: {error}")
        self._failure = error
        if self._ack and not self._ack.done():
            self._ack.set_exception(error)

    def _server_error(self, frame: ServerError) -> BridgeError:
        what = f"NATS at {self._config.where}: {frame.text}"
        lowered = frame.text.lower()
        if "authorization" in lowered or "authentication" in lowered or "permissions" in lowered:
            return SinkRefused(what)
        return SinkLost(what)

    async def _receive(self) -> list[ServerFrame]:
        data = await self._reader.read(_READ_SIZE)
        if not data:
            raise EOFError("end of stream")
        return list(self._frames.feed(data))

    async def close(self) -> None:
        if self._listener:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()

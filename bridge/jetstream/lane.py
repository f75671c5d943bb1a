"""The publish lane: a connection of its own over which changes reach the stream in order.

The server refuses whatever comes behind a message it refused, so nothing can be stored behind its
successor. Messages go in batches (`batch`), one open at a time, or as one chain (`chain`) where the
lane has the stream of a single server to itself. Any error ends the lane; whoever holds it then
asks the stream how far it really is. Everything but this hot path goes through nats-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

from bridge.config import NatsConfig
from bridge.errors import BridgeError, SinkLost, SinkRefused, reason_of
from bridge.jetstream.batch import Batch
from bridge.jetstream.chain import Chain
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
    connect_frame,
    subscribe_frame,
)
from bridge.jetstream.identity import (
    connect_fields,
    is_refusal,
    refused,
    tls_context,
    translate_tls,
    wants_tls,
)
from bridge.jetstream.refusals import NO_LEADER
from bridge.outbox import Message

CONNECT_TIMEOUT_SECONDS = 5
OLDEST_SERVER = (2, 14)
"""The first with fast-ingest batches."""

_READ_SIZE = 1 << 16

Expected = TypeVar("Expected", Info, Pong)


class Lane:
    """A connection that sends one chain, or batches one after the other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        config: NatsConfig,
        ack_timeout: timedelta,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._config = config
        self._ack_timeout = ack_timeout.total_seconds()
        self._frames = ServerReader()
        self._name = secrets.token_hex(11)
        self._inbox = f"_INBOX.{self._name}"
        self._batches = 0
        self._open: Batch | Chain | None = None
        self._behind: int | None = None
        self._fence = ""
        self._beginning = asyncio.Lock()
        """Held while the next batch begins, or the condition for that changes."""

        self._on_stored: Callable[[int], None] = lambda _: None
        self._answered = asyncio.Event()
        self._failed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._failure: BridgeError | None = None
        self.max_payload = 0
        self.last_sequence = 0

    @classmethod
    async def open(cls, config: NatsConfig, ack_timeout: timedelta) -> Lane:
        """Connect to the first server that lets us, introduce ourselves, subscribe to our acks."""
        failures: list[SinkLost] = []
        for host, port in config.servers:
            try:
                lane = await cls._open_one(config, host, port, ack_timeout)
            except SinkLost as error:
                failures.append(error)
                continue
            lane._listener = asyncio.create_task(lane._listen(), name="lane")
            return lane
        raise failures[0]

    @classmethod
    async def _open_one(
        cls, config: NatsConfig, host: str, port: int, ack_timeout: timedelta
    ) -> Lane:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                lane = cls(reader, writer, config, ack_timeout)
                try:
                    await lane._introduce(host)
                except BaseException:
                    writer.close()
                    raise
        except ssl.SSLError as error:
            raise translate_tls(error, config) from error
        except (OSError, EOFError, TimeoutError) as error:
            raise SinkLost(
                f"NATS at {config.where} cannot be reached: {reason_of(error)}"
            ) from error
        return lane

    async def _introduce(self, host: str) -> None:
        greeting = (await self._expect(Info)).fields
        _demand_version(str(greeting.get("version", "")), self._config)
        self.max_payload = int(greeting["max_payload"])
        if wants_tls(self._config, greeting):
            context = tls_context(self._config)
            await self._writer.start_tls(context, server_hostname=host)
            # Whatever else came before the handshake could be anybody's.
            self._frames = ServerReader()
        options = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "1",
            "name": "walbridge-lane",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            **connect_fields(self._config, greeting),
        }
        self._write([connect_frame(options), subscribe_frame(f"{self._inbox}.>", 1), PING])
        await self._expect(Pong)

    async def _expect(self, kind: type[Expected]) -> Expected:
        """Wait for one kind of frame during the introduction."""
        while True:
            for frame in await self._receive():
                if isinstance(frame, ServerError):
                    raise self._server_error(frame)
                if isinstance(frame, kind):
                    return frame

    def chain(self, stream: str, *, behind: int) -> None:
        """Chain all that is sent, the first message to the one with that sequence.

        For a stream that nobody else writes to; whoever does breaks the chain.
        """
        self._open = Chain(self._inbox, stream, behind=behind)

    def follow(self, *, behind: int) -> None:
        """Let every message follow the one before it, the first one the message of that sequence.

        For a stream that nobody else writes to, in a cluster too.
        """
        self._behind = behind

    def fence(self, condition: str) -> None:
        """Let every batch begin only while these headers hold."""
        self._fence = condition

    async def renew_fence(self, renew: Callable[[], Awaitable[str]]) -> None:
        """Replace the condition; no batch begins until the new one is there."""
        async with self._beginning:
            self._fence = await renew()

    async def send(
        self,
        messages: Sequence[Message],
        content_type: str,
        *,
        close: bool,
        on_stored: Callable[[int], None],
    ) -> None:
        """Send messages in order, and wait for room, or with `close` until all are stored."""
        if self._failure is not None:
            raise self._failure
        if self._open is None:
            async with self._beginning:
                self._open = self._next_batch()
        sending, self._on_stored = self._open, on_stored
        self._write(sending.frames(messages, content_type, close=close))
        while not (sending.is_complete if close else sending.has_room):
            await self._progress()
        if close:
            self._close(sending)

    def _next_batch(self) -> Batch:
        self._batches += 1
        # The stream knows batches by id alone, also those of other bridges and of our past.
        batch_id = f"{self._name}-{self._batches}"
        return Batch(self._inbox, batch_id, behind=self._behind, fence=self._fence)

    def _write(self, frames: Iterable[bytes]) -> None:
        try:
            self._writer.writelines(frames)
        except RuntimeError as error:
            # Of uvloop, where the connection ended and the listener has not heard of it yet.
            raise SinkLost(f"NATS at {self._config.where} hung up: {error}") from error

    def _close(self, sending: Batch | Chain) -> None:
        """Leave behind what takes no more."""
        self._open = sending if sending.goes_on else None
        if self._behind is not None and not sending.goes_on:
            self._behind += sending.sent

    async def settle(self) -> None:
        """Wait until what a cancelled sender had closed is stored, or refused.

        What is on its way would else be stored behind whatever is done about it next.
        """
        if self._open is None:
            return
        while not self._open.is_complete:
            if self._failure is not None:
                raise self._failure
            await self._progress()
        self._close(self._open)

    async def watch(self) -> None:
        """Wait for the connection to fail, and raise why."""
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure

    async def _progress(self) -> None:
        """Wait for the next answer; a server that says nothing at all is as good as gone."""
        self._answered.clear()
        try:
            async with asyncio.timeout(self._ack_timeout):
                await self._answered.wait()
        except TimeoutError:
            raise SinkLost(
                f"no ack from NATS at {self._config.where} within {self._ack_timeout:g} s",
                advice=NO_LEADER,
            ) from None
        if self._failure is not None:
            raise self._failure

    async def _listen(self) -> None:
        """Answer pings and pass acks on until the connection ends."""
        try:
            while True:
                for frame in await self._receive():
                    self._handle(frame)
        except (OSError, EOFError, ValueError, BridgeError) as error:
            self._fail(error)

    def _handle(self, frame: ServerFrame) -> None:
        match frame:
            case Ping():
                self._write([PONG])
            case Delivery():
                if self._open and self._open.owns(frame):
                    stored = self._open.answer(frame)
                    self.last_sequence = self._open.last_sequence or self.last_sequence
                    self._on_stored(stored)
                    self._answered.set()
            case ServerError():
                raise self._server_error(frame)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, BridgeError):
            error = SinkLost(f"NATS at {self._config.where} hung up: {error}")
        self._failure = error
        self._failed.set()
        self._answered.set()

    def _server_error(self, frame: ServerError) -> BridgeError:
        what = f"NATS at {self._config.where}: {frame.text}"
        if is_refusal(frame.text):
            return refused(self._config, frame.text)
        if "permissions" in frame.text.lower():
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


def _demand_version(version: str, config: NatsConfig) -> None:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_SERVER:
        raise SinkRefused(
            f"NATS at {config.where} is version {version or 'unknown'}, which cannot keep a batch"
            " in order when one of its messages is refused",
            advice=f"Use nats-server {'.'.join(map(str, OLDEST_SERVER))} or newer.",
        )

"""The loop: from the WAL to JetStream, and the confirmation back.

This file reads like the promises. A change is queued in commit order, published in that order, and
PostgreSQL hears of its transaction only when JetStream has stored it. What the stream already holds
is skipped. Whatever breaks ends the session with nothing confirmed that is not stored; the next
session begins again at the slot's confirmed position.

The bridge has messages of its own: what DDL did to tables. They are queued between transactions, at
a place that no commit can have, and behind every transaction that was read before.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from bridge.config import PublishLimits
from bridge.errors import MalformedWal
from bridge.history import Meeting, StoredEnd, Witness
from bridge.hotpath import HotPath
from bridge.lag import moment_of
from bridge.outbox import Message, Outbox, outgoing
from bridge.ports import Oversize, Shapes, Sink, Source
from bridge.pressing import ChangePresses
from bridge.progress import Progress
from bridge.protocol.decoder import decode_message
from bridge.protocol.framing import Keepalive, decode_frame
from bridge.protocol.messages import Begin, Relation, WalMessage
from bridge.protocol.messages import Message as LogicalDecodingMessage
from bridge.relations import Encoder
from bridge.rowparts import PackedRow
from bridge.status import Status
from bridge.tasks import end, until_first
from bridge.transactions import KINDS, Assembler, EmptiedTable, Placed, RowMessage, TransactionEnd
from schemas.codecs import OVERSIZE, Codec
from schemas.ddl import DdlEvent, DdlKind, format_ddl, parse_ddl
from schemas.events import Event, LogicalMessage, Place, ShapeChange, iso_timestamp
from schemas.names import TableName
from schemas.shapes import TableShape
from schemas.subjects import DDL_PREFIX, sql_prefix

CONFIRM_EVERY_SECONDS = 0.5
STATUS_EVERY_SECONDS = 10.0
"""PostgreSQL gives a silent walsender up after wal_sender_timeout, 60 seconds by default."""

MANY_MESSAGES = 100
LINGER_SECONDS = 0.005
"""How long the last of many messages waits for its successor."""

_HEADERS_AT_MOST = 1_024

_EVERYTHING = (1 << 64) - 1

REACHED_EVERY_SECONDS = 0.25

Insertion = Callable[[Place], Event]
"""Makes a message of the bridge's own for the place that it gets."""


class Pipeline:
    """One session of one slot."""

    def __init__(
        self,
        *,
        source: Source,
        sink: Sink,
        shapes: Shapes,
        oversize: Oversize,
        source_id: str,
        progress: Progress,
        stored: StoredEnd,
        codec: Codec,
        limits: PublishLimits,
        status: Status,
        presses: ChangePresses | None = None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._shapes = shapes
        self._oversize = oversize
        self._source_id = source_id
        self._progress = progress
        self._stored = stored.position
        self._meeting = Meeting(stored.witness, progress.read_lsn)
        self._codec = codec
        self._limits = limits
        self._status = status
        self._presses = presses
        self._assembler = Assembler()
        self._outbox = Outbox(limits.max_bytes, codec.ends, limits.chunk_messages)
        self._relations: dict[int, Relation] = {}
        self._encoders: dict[int, Encoder] = {}
        self._announced: dict[TableName, str | None] = {}
        self._hot = HotPath(self._assembler, self._outbox, progress, status, _EVERYTHING)
        self._insertions: deque[Insertion] = deque()
        self._alone = stored.position
        """The last position outside any transaction that is, or may be, taken."""

        self.learning = asyncio.Lock()
        """Held while a table's shape is looked up, registered and announced."""

        self.is_proven = asyncio.Event()
        """Set once the WAL is known to contain what the stream holds; nothing is sent before."""

        self._note_proof()

    async def run(self, stop: asyncio.Event) -> None:
        """Stream until `stop` is set, then publish and confirm every whole transaction read."""
        reader = asyncio.create_task(self._read(), name="reader")
        publisher = asyncio.create_task(self._publish(), name="publisher")
        confirmer = asyncio.create_task(self._confirm(), name="confirmer")
        lookout = asyncio.create_task(self._sink.watch(), name="lookout")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        crew = {reader, publisher, confirmer, lookout, stopped}
        try:
            await until_first(crew)
            await end({reader})
            self._outbox.close()
            await until_first({publisher, confirmer, lookout})
        finally:
            await end(crew)
        self._tell()

    async def _read(self) -> None:
        outbox, hot = self._outbox, self._hot
        while True:
            frames = await self._source.read()
            started = time.perf_counter()
            at, count = 0, len(frames)
            while (at := at if self._must_end() else hot.take(frames, at)) < count:
                await self._take(frames[at])
                at += 1
                if self._insertions:
                    self._insert()
                if outbox.is_full:
                    await outbox.room()
            self._status.last_processing_us = int(
                (time.perf_counter() - started) / count * 1_000_000
            )
            # There may be more to read at once; the publisher has its turn first.
            await asyncio.sleep(0)
            if outbox.is_full:
                await outbox.room()

    async def _take(self, frame: bytes) -> None:
        """Queue what one frame of the WAL means, the long way."""
        data = decode_frame(frame)
        if isinstance(data, Keepalive):
            return self._follow(data)
        self._status.wal_messages += 1
        message = decode_message(data.payload)
        if isinstance(message, Relation):
            return self._adopt(message)
        if not self._meeting.is_over:
            self._prove(message)
        for part in self._assembler.feed(data.start, message):
            if isinstance(part, TransactionEnd) and not self._meeting.is_over:
                # Confirmed with the first transaction that proves this history, or never.
                continue
            if isinstance(part, TransactionEnd):
                self._outbox.end_transaction()
                self._progress.transaction_ended(part.end_lsn, time.monotonic())
                # A message outside any transaction may be the first thing a session reads.
                if self._assembler.commit_ts:
                    self._status.last_commit_ts = self._assembler.commit_ts
            elif part.place.position <= self._stored:
                self._status.skipped += 1
            else:
                await self._queue(part)
        return None

    def _prove(self, message: WalMessage) -> None:
        """Look for the stream's last transaction among those that are read again."""
        match message:
            case Begin():
                ts = iso_timestamp(message.commit_time)
                self._meeting.take(Witness(message.commit_lsn, message.xid, ts))
            case LogicalDecodingMessage(transactional=False):
                self._meeting.take(Witness(message.lsn - 1, 0, None))
        self._note_proof()
        if self._meeting.is_over:
            self._progress.trust_stored(time.monotonic())

    def _note_proof(self) -> None:
        if self._meeting.is_over:
            self.is_proven.set()
            self._hot.skip_until(self._stored.commit_lsn)

    def _must_end(self) -> bool:
        """Whether to go frame by frame, not to miss the end of the transaction that is open."""
        return bool(self._insertions) and self._assembler.in_transaction

    @property
    def is_inserting(self) -> bool:
        """Whether messages of the bridge's own wait for a place."""
        return bool(self._insertions)

    @property
    def read_lsn(self) -> int:
        return self._progress.read_lsn

    @property
    def sent(self) -> int:
        return self._progress.total_sent

    @property
    def safe(self) -> int:
        """How many of the messages sent are safe, by the mark that the slot is confirmed by."""
        return self._progress.total_safe(time.monotonic())

    async def reached(self, lsn: int) -> None:
        """Wait until everything that was committed before a position has been read.

        PostgreSQL says nothing by itself where there is nothing to send and all is confirmed.
        """
        while self._progress.read_lsn < lsn:
            self._tell(ask=True)
            await asyncio.sleep(REACHED_EVERY_SECONDS)

    def insert(self, *insertions: Insertion) -> None:
        """Queue messages of the bridge's own, as soon as no transaction is open."""
        self._insertions.extend(insertions)
        self._insert()

    def _insert(self) -> None:
        while self._insertions and (place := self._place_between()):
            event = self._insertions.popleft()(place)
            self._alone = place.position
            if isinstance(event, ShapeChange):
                self._announced[event.shape.name] = event.shape.fingerprint
            self._progress.sent()
            # It says itself that it is the last, so it is not held back.
            self._outbox.extend([self._packed(event)], hold=False)

    def _place_between(self) -> Place | None:
        """Find a place behind all that was read; None while there is none.

        Everything committed before `read_lsn` has been read, and a commit that follows begins
        there or later: the byte before it is free. Only messages outside transactions stand there.
        """
        lsn = self._progress.read_lsn - 1
        if self._assembler.in_transaction or lsn < self._alone.commit_lsn:
            return None
        if not self._meeting.is_over:
            return None
        seq = self._alone.ordinal + 1 if lsn == self._alone.commit_lsn else 0
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return Place(lsn=lsn, commit_lsn=lsn, commit_ts=now, xid=0, seq=seq, last=True)

    def _adopt(self, relation: Relation) -> None:
        """Forget what was known: PostgreSQL repeats a relation when it may have changed."""
        self._relations[relation.relation_id] = relation
        self._encoders.pop(relation.relation_id, None)
        self._hot.forget(relation.relation_id)
        self._shapes.described(relation.relation_id)

    def _follow(self, keepalive: Keepalive) -> None:
        if not self._assembler.in_transaction and not self._meeting.is_over:
            self._meeting.pass_idle(keepalive.wal_end)
        elif not self._assembler.in_transaction:
            self._progress.idle_at(keepalive.wal_end, time.monotonic())
        if keepalive.reply_requested:
            self._tell()

    async def _queue(self, placed: Placed) -> None:
        message = placed.message
        if isinstance(message, LogicalDecodingMessage):
            if not message.transactional:
                self._alone = placed.place.position
            elif message.prefix == DDL_PREFIX and (events := parse_ddl(message.content)):
                return await self._heed(message, events, placed.place)
            return self._send(self._logical_message(message, placed.place))
        if isinstance(message, EmptiedTable):
            self._shapes.truncated(message.relation_id, placed.place.xid)
        encoder = self._encoders.get(message.relation_id)
        if encoder is None:
            encoder = await self._learn(message, placed.place)
        if self._codec.format == "msgpack":
            self._hot.learn(KINDS[type(message)], encoder.shape, encoder.schema_revision)
        return self._send(encoder.encode(placed))

    async def _learn(self, message: RowMessage, place: Place) -> Encoder:
        """Settle a relation's shape before its first change, and announce it if it is new."""
        relation = self._relations.get(message.relation_id)
        if relation is None:
            raise MalformedWal(f"a change of relation {message.relation_id}, never described")
        async with self.learning:
            shape = await self._shapes.shape(relation, place)
            revision = await self._shapes.register(shape, place.lsn)
            await self._announce(shape, revision, place)
        if self._presses is not None:
            await self._presses.learn(shape)
        encoder = Encoder(shape, revision, self._codec.format)
        self._encoders[message.relation_id] = encoder
        return encoder

    async def _heed(
        self, message: LogicalDecodingMessage, events: Sequence[DdlEvent], place: Place
    ) -> None:
        """Announce what DDL did to tables, at its place.

        Any role can write such a message, so it only says where to look: the catalog has the facts.
        What it does not confirm is not passed on as the bridge's word.
        """
        kinds = defaultdict[int, set[DdlKind]](set)
        for event in events:
            kinds[event.relation_id].add(event.kind)
        for relation_id in sorted(kinds):
            await self._look_at(relation_id, place, kinds[relation_id])
        if known := await self._shapes.confirmed(events, place):
            # Written anew: what is no event to us may be one to a reader that is less strict.
            told = replace(message, content=format_ddl(known).encode())
            self._send(self._logical_message(told, place, DDL_PREFIX))
        else:
            self._send(self._logical_message(message, place))

    async def _look_at(self, relation_id: int, place: Place, kinds: Collection[DdlKind]) -> None:
        async with self.learning:
            shape = await self._shapes.altered(relation_id, place, kinds)
            if shape is None:
                return
            revision = await self._shapes.register(shape, place.lsn)
            await self._announce(shape, revision, place)
        self._encoders.pop(relation_id, None)
        self._hot.forget(relation_id)

    async def _announce(self, shape: TableShape, revision: int, place: Place) -> None:
        """Put a shape into the stream unless it is the last one there, or on its way there."""
        if shape.name not in self._announced:
            self._announced[shape.name] = await self._shapes.announced(shape.name)
        if self._announced[shape.name] != shape.fingerprint or shape.rewritten:
            self._announced[shape.name] = shape.fingerprint
            source = self._source_id
            self._send(
                ShapeChange(shape=shape, place=place, schema_revision=revision, source=source)
            )
        self._shapes.told(shape)

    def _logical_message(
        self, message: LogicalDecodingMessage, place: Place, prefix: str | None = None
    ) -> LogicalMessage:
        # JSON has no bytes; PostgreSQL's own notation for them does.
        is_json = self._codec.format == "json"
        content = f"\\x{message.content.hex()}" if is_json else message.content
        return LogicalMessage(
            prefix=prefix or sql_prefix(message.prefix),
            content=content,
            transactional=message.transactional,
            place=place,
            source=self._source_id,
        )

    def _send(self, event: Event) -> None:
        self._progress.sent()
        self._outbox.add(self._packed(event))

    def _packed(self, event: Event) -> PackedRow:
        body = self._codec.encode(event.to_map())
        return event.subject.encode(), event.msg_id.encode(), body

    async def _publish(self) -> None:
        """Send what is queued, and ask for everything to be stored whenever no more comes.

        A batch ends with a message, and the next one waits until all of it is stored. That is as it
        should be for a few changes. Behind many there are more to come in a moment: then the last
        one is kept for that moment, so that it can end the batch if it was the last indeed.
        """
        outbox, kept = self._outbox, list[Message]()
        while chunk := await outbox.take():
            messages = [*kept, *await self._prepare(chunk.give(), chunk.largest)]
            kept = messages[-1:] if chunk.count >= MANY_MESSAGES else []
            if kept and await self._send_on(messages[:-1]):
                continue
            await self._ship(kept or messages, close=outbox.is_empty)
            kept = []

    async def _send_on(self, messages: Sequence[Message]) -> bool:
        """Send all but the last of many messages, and say whether more follow it."""
        await self._ship(messages, close=False)
        return not self._outbox.is_empty or await self._outbox.more_within(LINGER_SECONDS)

    async def _ship(self, messages: Sequence[Message], *, close: bool) -> None:
        await self._sink.send(
            messages, self._codec.content_type, close=close, on_stored=self._on_stored
        )

    async def _prepare(self, rows: Sequence[PackedRow], largest: int) -> Sequence[Message]:
        """Compress bodies where asked to, and set aside those that no message can carry."""
        most = self._sink.max_payload - _HEADERS_AT_MOST
        if self._presses is None and largest <= most:
            return rows
        messages = [outgoing(row) for row in rows]
        if self._presses is not None:
            await self._presses.press(messages)
        for message in messages:
            if len(message.body) > most:
                await self._oversize.put(message.msg_id, message.body)
                message.body = b""
                message.headers += f"{OVERSIZE}: {message.msg_id}\r\n"
        return messages

    def _on_stored(self, count: int) -> None:
        self._progress.acknowledged(count, time.monotonic())
        status = self._status
        status.last_sequence = self._sink.last_sequence
        for chunk in self._outbox.release(count):
            status.published.update(chunk.subjects)
            status.published_bytes += chunk.size

    async def _confirm(self) -> None:
        """Tell PostgreSQL how far it is, whenever that moved and often enough to stay connected."""
        told_at = 0.0
        while True:
            now = time.monotonic()
            self._show(self._progress.safe_lsn(now))
            moved = self._status.safe_lsn > self._status.confirmed_lsn
            if moved or now - told_at >= STATUS_EVERY_SECONDS:
                self._tell()
                told_at = now
            await asyncio.sleep(CONFIRM_EVERY_SECONDS)

    def _tell(self, *, ask: bool = False) -> None:
        safe = self._progress.safe_lsn(time.monotonic())
        self._source.confirm(safe, ask=ask)
        self._status.confirmed_lsn = safe
        self._show(safe)

    def _show(self, safe: int) -> None:
        status = self._status
        status.safe_lsn = safe
        status.acked_lsn = self._progress.acked_lsn
        if status.last_commit_ts is not None:
            status.lag.read(self._progress.newest_end, moment_of(status.last_commit_ts))
        status.lag.stored(status.acked_lsn)
        status.in_flight_messages = self._progress.in_flight
        status.in_flight_bytes = self._outbox.bytes_held

"""What is already there: shapes in KV `schemas`, and how far the CDC stream reaches.

The stream itself is the authority on what was stored. After any interruption the bridge asks it for
the last message of each of its tables, and goes on behind the furthest of them.

A KV entry says since when, at the latest, its table looked so (`lsn`). When changes are read that
are older than the catalog, the entries tell what the table looked like then.

What the catalog said of a table's storage when the bridge last told consumers everything is in the
KV bucket `storage`, apart from the schema history. Earlier bridges kept it in the entries, where it
is still found. It is never ahead of what consumers know, so it is written before the entry. A table
that is gone has a delete marker, which names the source, so that its messages are still found.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.kv import KeyValue

from bridge.errors import SinkRefused, reason_of
from bridge.history import EndFinder, StoredEnd, StoredFork
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.oversize import OversizeStore
from bridge.jetstream.refusals import WRONG_LAST, refusal
from bridge.storage import TableStorage
from schemas.codecs import (
    CONTENT_TYPE,
    MESSAGE_ID,
    BadPayload,
    Codec,
    codec_for,
    decode_entry,
)
from schemas.events import LogicalMessage, Place
from schemas.forks import parse_fork
from schemas.names import TableName
from schemas.shapes import TableShape
from schemas.streams import CDC_STREAM, SCHEMAS_BUCKET, STORAGE_BUCKET
from schemas.subjects import (
    FORK_PREFIX,
    is_session_subject,
    message_filter,
    message_subject,
    schema_filter,
    schema_subject,
    session_subject,
    table_filter,
)

_SCHEMAS_STREAM = f"KV_{SCHEMAS_BUCKET.name}"
_SCHEMAS_PREFIX = f"$KV.{SCHEMAS_BUCKET.name}."
_STORAGE_STREAM = f"KV_{STORAGE_BUCKET.name}"
_STORAGE_PREFIX = f"$KV.{STORAGE_BUCKET.name}."
_KV_OPERATION = "KV-Operation"
_SOURCE = "Bridge-Source"
"""Header of a delete marker: which slot's table it was."""


def _nothing() -> None:
    """Do nothing between requests."""


@dataclass(frozen=True, slots=True)
class ShapeEntry:
    """One revision of a table's entry; `source` names the slot that wrote it.

    `storage` is what is remembered beside it, or what an earlier bridge kept in it.
    """

    revision: int
    lsn: int
    source: str
    shape: TableShape
    storage: TableStorage | None = None


def latest_at(entries: Iterable[ShapeEntry], lsn: int) -> ShapeEntry | None:
    """Find the entry that was the latest when the WAL was there."""
    older = [entry for entry in entries if entry.lsn <= lsn]
    return max(older, key=lambda entry: (entry.lsn, entry.revision), default=None)


class Registry:
    """Reads and writes shapes, and reads the stream's end, on behalf of one slot.

    Several bridges may share stream and bucket; `source` says which entries and messages are ours.
    """

    def __init__(
        self,
        js: JetStreamContext,
        codec: Codec,
        oversize: OversizeStore,
        dictionaries: DictionaryStore,
        source: str,
    ) -> None:
        self._js = js
        self._codec = codec
        self._oversize = oversize
        self._dictionaries = dictionaries
        self.source = source
        self._current: dict[str, ShapeEntry] = {}
        self._newest: dict[str, ShapeEntry] = {}
        self._storage: dict[str, TableStorage] = {}
        self._kept: dict[str, tuple[int, TableStorage]] = {}
        self.forgotten: set[TableName] = set()
        """Tables of ours whose entries were deleted, when `latest_entries` last looked."""

        self.last_fork: StoredFork | None = None
        """The last fork of this source in the stream, when `stored_end` last looked."""

        self._bucket: KeyValue | None = None
        self._announcing: set[str] | None = None

    async def register_current(
        self, shape: TableShape, lsn: int, latest: ShapeEntry | None
    ) -> None:
        """Make the shape that the catalog has now the latest entry of its table."""
        if latest is None or not self._describes(latest, shape):
            latest = await self._put(shape, lsn)
        else:
            await self._keep(shape.name, shape.relation_id)
        self._current[shape.name.token] = latest

    def recall(self, table: TableName, storage: TableStorage) -> None:
        """Let this storage be remembered with the next entry of a table."""
        self._storage[table.token] = storage

    async def remember(self, table: TableName, relation_id: int, storage: TableStorage) -> None:
        """Store what the catalog says of a table's storage; consumers know what it means."""
        self.recall(table, storage)
        await self._keep(table, relation_id)

    async def _keep(self, table: TableName, relation_id: int) -> None:
        storage = self._storage.get(table.token)
        if storage is None or self._kept.get(table.token) == (relation_id, storage):
            return
        fields = {"source": self.source, "relation_id": relation_id, "storage": storage.to_map()}
        subject = f"{_STORAGE_PREFIX}{table.token}"
        await self._js.publish(subject, self._codec.encode(fields), stream=_STORAGE_STREAM)
        self._kept[table.token] = relation_id, storage

    async def remembered_entries(self) -> dict[TableName, ShapeEntry]:
        """Give the latest entry of every table, ours with what is remembered of their storage."""
        entries = await self.latest_entries()
        for table, entry in entries.items():
            if entry.source == self.source and (storage := await self._remembered(entry)):
                self._kept[table.token] = entry.shape.relation_id, storage
                entries[table] = replace(entry, storage=storage)
        return entries

    async def _remembered(self, entry: ShapeEntry) -> TableStorage | None:
        subject = f"{_STORAGE_PREFIX}{entry.shape.name.token}"
        try:
            found = await self._js.get_last_msg(_STORAGE_STREAM, subject)
        except nats.js.errors.NotFoundError:
            return None
        return _read_storage(found.data, self.source, entry.shape.relation_id)

    def newest(self, table: TableName) -> TableShape | None:
        """Give the shape in a table's entry that was written last, by us as far as we know."""
        entry = self._newest.get(table.token)
        return entry.shape if entry and entry.source == self.source else None

    async def owner(self, table: TableName) -> str | None:
        """Say which slot a table's entry comes from."""
        entry = await self._latest(table.token)
        return entry.source if entry else None

    async def forget(self, table: TableName) -> None:
        """Delete the entry of a table that is gone; its earlier revisions stay."""
        headers = {_KV_OPERATION: "DEL", _SOURCE: self.source}
        for prefix in (_SCHEMAS_PREFIX, _STORAGE_PREFIX):
            await self._js.publish(f"{prefix}{table.token}", headers=headers)
        for known in (self._current, self._newest, self._storage, self._kept):
            known.pop(table.token, None)

    async def register(self, shape: TableShape, lsn: int) -> int:
        """Give the revision of an entry for a shape that the WAL has at `lsn`; idempotent."""
        token = shape.name.token
        if shape.rewritten:
            # Consumers act on it once per revision, so it has one of its own.
            return (await self._put(shape, lsn)).revision
        newest = self._newest.get(token)
        if newest is not None and self._describes(newest, shape):
            return newest.revision
        latest = await self._latest(token)
        if latest is not None and self._describes(latest, shape):
            return latest.revision
        if latest is None or latest.lsn <= lsn or latest.source != self.source:
            return (await self._put(shape, lsn)).revision
        entries = await self._entries(token)
        alike = [entry for entry in entries if self._describes(entry, shape)]
        if known := latest_at(alike, lsn):
            return known.revision
        revision = (await self._put(shape, lsn)).revision
        current = self._current.get(token)
        if current and current.revision == latest.revision:
            # What is current stays the latest, also if no change ever comes that would say so.
            shown = replace(current.shape, rewritten=False)
            self._current[token] = await self._put(shown, current.lsn)
        return revision

    async def shape_before(self, relation_id: int, name: TableName, lsn: int) -> TableShape | None:
        """Say what a relation looked like the last time that anybody looked before `lsn`."""
        # Its entries are under its name; under any other only if it was renamed in between.
        for keys in (name.token, ">"):
            ours = [
                entry
                for entry in await self._entries(keys)
                if (entry.source, entry.shape.relation_id) == (self.source, relation_id)
            ]
            if found := latest_at(ours, lsn):
                return found.shape
        return None

    def _as_known(self, table: TableName, read: ShapeEntry) -> ShapeEntry:
        """Give an entry that was just read as we have it: its shape has a fingerprint already."""
        current = self._current.get(table.token)
        return current if current and current.revision == read.revision else read

    def _describes(self, entry: ShapeEntry, shape: TableShape) -> bool:
        return (entry.source, entry.shape.fingerprint) == (self.source, shape.fingerprint)

    async def _schemas(self) -> KeyValue:
        # Kept, because nats-py asks the server about the bucket each time.
        if self._bucket is None:
            self._bucket = await self._js.key_value(SCHEMAS_BUCKET.name)
        return self._bucket

    async def _latest(self, token: str) -> ShapeEntry | None:
        bucket = await self._schemas()
        try:
            entry = await bucket.get(token)
        except nats.js.errors.KeyNotFoundError:
            return None
        return _read_entry(entry.revision or 0, entry.value)

    async def _entries(self, keys: str) -> list[ShapeEntry]:
        """Read every revision of some keys.

        One by one, because nats-py's watchers now and then miss what was already there.
        """
        entries: list[ShapeEntry] = []
        sequence = 0
        while True:
            try:
                found = await self._js.get_msg(
                    _SCHEMAS_STREAM, seq=sequence + 1, subject=f"{_SCHEMAS_PREFIX}{keys}", next=True
                )
            except nats.js.errors.NotFoundError:
                return entries
            sequence = found.seq or 0
            if entry := _read_entry(sequence, found.data):
                entries.append(entry)

    async def _put(self, shape: TableShape, lsn: int) -> ShapeEntry:
        await self._keep(shape.name, shape.relation_id)
        bucket = await self._schemas()
        token = shape.name.token
        revision = await bucket.put(token, self._codec.encode(self.describe(shape, lsn)))
        entry = ShapeEntry(revision, lsn, self.source, shape)
        self._newest[token] = entry
        return entry

    def describe(self, shape: TableShape, lsn: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return shape.to_map(timestamp=now, lsn=lsn, source=self.source)

    async def publish(
        self, message: LogicalMessage, condition: Mapping[str, str] | None = None
    ) -> None:
        """Store a message of the bridge's own in the CDC stream, before any change is sent.

        With a condition, as headers, it is stored only if that holds; else the chain is broken.
        """
        headers = {MESSAGE_ID: message.msg_id, CONTENT_TYPE: self.content_type, **(condition or {})}
        body = self.encode(message)
        try:
            await self._js.publish(message.subject, body, stream=CDC_STREAM.name, headers=headers)
        except nats.js.errors.APIError as error:
            if error.err_code not in WRONG_LAST:
                raise
            raise refusal(error.err_code, str(error.description)) from error

    @property
    def slot(self) -> str:
        return self.source.rpartition("/")[2]

    @property
    def content_type(self) -> str:
        return self._codec.content_type

    def encode(self, message: LogicalMessage) -> bytes:
        return self._codec.encode(message.to_map())

    async def announced(self, table: TableName) -> str | None:
        """Give the fingerprint of the shape that the stream's end is in."""
        if self._announcing is None:
            # All at once: a new stream has none, and asking for each of many tables takes long.
            self._announcing = set(await self._subjects(schema_filter()))
        subject = schema_subject(table)
        message = await self._last(subject) if subject in self._announcing else None
        if message is not None and self.last_fork and self.last_fork.comes_after(message.seq or 0):
            # What it says may never have happened, and consumers begin again at the fork.
            return None
        return None if message is None else str((await self._fields(message)).get("fingerprint"))

    async def chain_end(self) -> tuple[int, bool]:
        """Give the stream's last sequence, and whether it is in a cluster.

        In a cluster every replica compares ids by itself, behind the leader's back: one that knows
        another last id, or a message that is refused, would stop the stream for all.
        """
        info = await self._js.stream_info(CDC_STREAM.name)
        return info.state.last_seq, info.cluster is not None and bool(info.cluster.name)

    async def end_and_leader(self) -> tuple[int, str]:
        """Give the stream's last sequence, and which server leads it since when."""
        info = await self._js.stream_info(CDC_STREAM.name)
        cluster = info.cluster
        return info.state.last_seq, f"{cluster.leader} {cluster.leader_since}" if cluster else ""

    async def max_age(self) -> timedelta:
        """Say how long the stream keeps messages; 0 is for ever."""
        info = await self._js.stream_info(CDC_STREAM.name)
        return timedelta(seconds=info.config.max_age or 0)

    async def duplicate_window(self) -> timedelta:
        """Say how long the stream remembers message ids."""
        info = await self._js.stream_info(CDC_STREAM.name)
        return timedelta(seconds=info.config.duplicate_window or 0)

    async def stored_end(
        self, tables: Iterable[TableName], meanwhile: Callable[[], None] = _nothing
    ) -> StoredEnd:
        """Find the furthest of this slot's changes and messages that the stream holds.

        What a fork has declared invalid does not count. `meanwhile` is called between requests.
        """
        self.last_fork = await self._find_fork()
        finder = EndFinder(self.last_fork)
        ours = await self.slot_tables(tables, meanwhile)
        async for message in self._last_messages(ours, meanwhile):
            finder.add(*await self._placed(message))
        return finder.end

    async def slot_tables(
        self, tables: Iterable[TableName], meanwhile: Callable[[], None] = _nothing
    ) -> set[TableName]:
        """Give every table under whose subjects the stream may hold changes of this slot.

        Besides the tables published now those that were: the WAL still holds the changes of a table
        that was renamed, or left the publication, since.
        """
        entries = await self.latest_entries(meanwhile)
        # The slot is ours by now: nobody else writes entries of our tables from here on.
        self._newest = {table.token: self._as_known(table, read) for table, read in entries.items()}
        before = {table for table, entry in entries.items() if entry.source == self.source}
        return {*tables, *before, *self.forgotten}

    async def last_place(
        self, tables: Iterable[TableName], meanwhile: Callable[[], None]
    ) -> Place | None:
        """Give the place of this slot's message that was stored last, whatever it is."""
        found: RawStreamMsg | None = None
        async for message in self._last_messages(tables, meanwhile):
            if found is None or (message.seq or 0) > (found.seq or 0):
                found = message
        return None if found is None else (await self._placed(found))[2]

    async def stored_behind(
        self, sequence: int, tables: Iterable[TableName], meanwhile: Callable[[], None]
    ) -> RawStreamMsg | None:
        """Find a change or message of this slot that is stored behind a sequence."""
        for table in tables:
            meanwhile()
            if message := await self._next(table_filter(table), sequence + 1):
                return message
        while message := await self._next(message_filter(), sequence + 1):
            meanwhile()
            if await self._is_ours(message):
                return message
            sequence = message.seq or 0
        return None

    async def _last_messages(
        self, tables: Iterable[TableName], meanwhile: Callable[[], None]
    ) -> AsyncIterator[RawStreamMsg]:
        """Give this slot's last message of each table, and on each subject of logical messages."""
        for table in tables:
            meanwhile()
            if message := await self._last(table_filter(table)):
                yield message
        for subject in await self._subjects(message_filter()):
            meanwhile()
            message = await self._last(subject)
            if message and await self._is_ours(message):
                yield message

    async def _is_ours(self, message: RawStreamMsg) -> bool:
        """Whether a logical message tells of this slot's WAL; those that open sessions do not."""
        if is_session_subject(str(message.subject)):
            return False
        return (await self._fields(message)).get("source") == self.source

    async def _find_fork(self) -> StoredFork | None:
        """Find the last fork of this source; there are few, and other sources have theirs."""
        found, sequence, subject = None, 0, message_subject(FORK_PREFIX)
        while message := await self._next(subject, sequence + 1):
            sequence = message.seq or 0
            fields = await self._fields(message)
            fork = parse_fork(fields.get("content"))
            if fork is not None and fields.get("source") == self.source:
                found = StoredFork(fork, sequence, message.time)
        return found

    async def _next(self, subject: str, sequence: int) -> RawStreamMsg | None:
        try:
            return await self._js.get_msg(CDC_STREAM.name, seq=sequence, subject=subject, next=True)
        except nats.js.errors.NotFoundError:
            return None

    async def latest_entries(
        self, meanwhile: Callable[[], None] = _nothing
    ) -> dict[TableName, ShapeEntry]:
        """Give the latest entry of every table in the bucket, whoever's it is."""
        # Not bucket.keys(), a watcher that now and then misses what was already there: a table
        # of ours that it missed would be stored twice.
        info = await self._js.stream_info(_SCHEMAS_STREAM, subjects_filter=f"{_SCHEMAS_PREFIX}>")
        entries: dict[TableName, ShapeEntry] = {}
        self.forgotten = set()
        for subject in info.state.subjects or {}:
            meanwhile()
            found = await self._js.get_last_msg(_SCHEMAS_STREAM, subject)
            headers = found.headers or {}
            if _KV_OPERATION not in headers:
                if entry := _read_entry(found.seq or 0, found.data):
                    entries[entry.shape.name] = entry
            elif headers.get(_SOURCE) == self.source:
                self.forgotten.add(TableName.from_token(subject.removeprefix(_SCHEMAS_PREFIX)))
        return entries

    async def _subjects(self, filter: str) -> list[str]:
        """Give every subject that the stream holds something on."""
        info = await self._js.stream_info(CDC_STREAM.name, subjects_filter=filter)
        return list(info.state.subjects or {})

    async def _last(self, subject: str) -> RawStreamMsg | None:
        # Not a direct get: those may be answered by a replica that is behind, and what it has not
        # heard of yet would be stored twice.
        try:
            return await self._js.get_last_msg(CDC_STREAM.name, subject)
        except nats.js.errors.NotFoundError:
            return None

    async def _placed(self, message: RawStreamMsg) -> tuple[str, int, Place]:
        fields = await self._fields(message)
        try:
            return str(message.subject), message.seq or 0, Place.from_map(fields)
        except (KeyError, TypeError) as error:
            raise _unreadable(message, error) from error

    async def session_message(self) -> tuple[int, dict[str, Any] | None]:
        """Give the sequence and the fields of the last message that opened a session of this slot.

        Sequence 0 if there is none; no fields if there is none, or none that can be read.
        """
        message = await self._last(session_subject(self.source))
        if message is None:
            return 0, None
        try:
            return message.seq or 0, await self._fields(message)
        except SinkRefused:
            return message.seq or 0, None

    async def fields_of(self, message: RawStreamMsg) -> dict[str, Any]:
        """Read a message of the stream."""
        return await self._fields(message)

    async def _fields(self, message: RawStreamMsg) -> dict[str, Any]:
        try:
            body = await self._dictionaries.expand(message, await self._oversize.body_of(message))
            return codec_for(message.headers).decode(body)
        except (BadPayload, nats.js.errors.ObjectNotFoundError) as error:
            raise _unreadable(message, error) from error


def _unreadable(message: RawStreamMsg, error: Exception) -> SinkRefused:
    """Say which message of the stream hides how far it is."""
    return SinkRefused(
        f"the last message on {message.subject}, sequence {message.seq} of stream"
        f" {CDC_STREAM.name}, is none of the contract's: {reason_of(error)}",
        advice="Find out who stored it; then remove it with"
        f" `nats stream rmm {CDC_STREAM.name} {message.seq}`, or use the bridge that wrote it.",
    )


def _read_entry(revision: int, body: bytes | None) -> ShapeEntry | None:
    """Read an entry; one that no reader could use counts as none, and the next one mends it."""
    try:
        fields = decode_entry(body or b"")
        shape = TableShape.from_map(fields)
        storage = TableStorage.from_map(fields.get("storage"))
        return ShapeEntry(revision, fields["lsn"], fields["source"], shape, storage)
    except (BadPayload, KeyError, TypeError, ValueError):
        return None


def _read_storage(body: bytes | None, source: str, relation_id: int) -> TableStorage | None:
    """Read what is remembered of a table; what is another's, or of another table, is nothing."""
    try:
        fields = decode_entry(body or b"")
    except BadPayload:
        return None
    if (fields.get("source"), fields.get("relation_id")) != (source, relation_id):
        return None
    return TableStorage.from_map(fields.get("storage"))

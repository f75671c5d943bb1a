"""What is already there: shapes in KV `schemas`, and how far the CDC stream reaches.

The stream itself is the authority on what was stored. After any interruption the bridge asks it for
the last message of each of its tables, and goes on behind the furthest of them.

A KV entry says since when, at the latest, its table looked so (`lsn`). When changes are read that
are older than the catalog, the entries tell what the table looked like then.

An entry also holds what the catalog said of the table's storage when the bridge last told consumers
everything (`storage`); every new revision carries it on, until `remember` replaces it. A table that
is gone has a delete marker, which names the source, so that its messages are still found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.kv import KeyValue

from bridge.errors import SinkRefused, reason_of
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.oversize import OversizeStore
from bridge.protocol.messages import Relation
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
from schemas.names import TableName
from schemas.positions import ORIGIN, Position
from schemas.shapes import TableShape
from schemas.streams import CDC_STREAM, SCHEMAS_BUCKET
from schemas.subjects import message_filter, schema_filter, schema_subject, table_filter

_SCHEMAS_STREAM = f"KV_{SCHEMAS_BUCKET.name}"
_SCHEMAS_PREFIX = f"$KV.{SCHEMAS_BUCKET.name}."
_KV_OPERATION = "KV-Operation"
_SOURCE = "Bridge-Source"
"""Header of a delete marker: which slot's table it was."""


@dataclass(frozen=True, slots=True)
class ShapeEntry:
    """One revision of a table's entry; `source` names the slot that wrote it."""

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
        self.forgotten: set[TableName] = set()
        """Tables of ours whose entries were deleted, when `latest_entries` last looked."""

        self._bucket: KeyValue | None = None
        self._announcing: set[str] | None = None

    async def register_current(
        self, shape: TableShape, lsn: int, latest: ShapeEntry | None
    ) -> None:
        """Make the shape that the catalog has now the latest entry of its table."""
        token = shape.name.token
        if latest is None or not self._describes(latest, shape) or self._is_news(latest):
            latest = await self._put(shape, lsn)
        self._current[token] = latest

    def _is_news(self, latest: ShapeEntry) -> bool:
        """Whether more is known of a table's storage than its entry says."""
        known = self._storage.get(latest.shape.name.token)
        return known is not None and known != latest.storage

    def recall(self, table: TableName, storage: TableStorage) -> None:
        """Let every entry of a table that is written from now on carry this storage."""
        self._storage[table.token] = storage

    async def remember(self, table: TableName, storage: TableStorage) -> None:
        """Store what the catalog says of a table's storage; consumers know what it means."""
        self.recall(table, storage)
        latest = await self._latest(table.token)
        if latest is None or latest.source != self.source or not self._is_news(latest):
            return
        current = self._current.get(table.token)
        entry = await self._put(replace(latest.shape, rewritten=False), latest.lsn)
        if current and current.revision == latest.revision:
            self._current[table.token] = entry

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
        await self._js.publish(f"{_SCHEMAS_PREFIX}{table.token}", headers=headers)
        for known in (self._current, self._newest, self._storage):
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
            self._current[token] = await self._put(current.shape, current.lsn)
        return revision

    async def shape_before(self, relation: Relation, lsn: int) -> TableShape | None:
        """Say what a relation looked like the last time that anybody looked before `lsn`."""
        # Its entries are under its name; under any other only if it was renamed in between.
        for keys in (TableName(relation.schema, relation.table).token, ">"):
            ours = [
                entry
                for entry in await self._entries(keys)
                if (entry.source, entry.shape.relation_id) == (self.source, relation.relation_id)
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
        bucket = await self._schemas()
        token = shape.name.token
        storage = self._storage.get(token)
        if storage is None and (latest := await self._latest(token)):
            storage = latest.storage if latest.source == self.source else None
        fields = self.describe(shape, lsn)
        if storage is not None:
            fields["storage"] = storage.to_map()
        revision = await bucket.put(token, self._codec.encode(fields))
        entry = ShapeEntry(revision, lsn, self.source, shape, storage)
        self._newest[token] = entry
        return entry

    def describe(self, shape: TableShape, lsn: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return shape.to_map(timestamp=now, lsn=lsn, source=self.source)

    async def publish(self, message: LogicalMessage) -> None:
        """Store a message of the bridge's own in the CDC stream, before any change is sent."""
        headers = {MESSAGE_ID: message.msg_id, CONTENT_TYPE: self._codec.content_type}
        body = self._codec.encode(message.to_map())
        await self._js.publish(message.subject, body, stream=CDC_STREAM.name, headers=headers)

    async def announced(self, table: TableName) -> str | None:
        """Give the fingerprint of the shape that the stream's end is in."""
        if self._announcing is None:
            # All at once: a new stream has none, and asking for each of many tables takes long.
            self._announcing = set(await self._subjects(schema_filter()))
        subject = schema_subject(table)
        message = await self._last(subject) if subject in self._announcing else None
        return None if message is None else str((await self._fields(message)).get("fingerprint"))

    async def chain_end(self) -> int | None:
        """Give the stream's last sequence, for a chain to begin behind; None where none may.

        In a cluster every replica compares ids by itself, behind the leader's back: one that knows
        another last id, or a message that is refused, would stop the stream for all.
        """
        info = await self._js.stream_info(CDC_STREAM.name)
        is_clustered = info.cluster is not None and bool(info.cluster.name)
        return None if is_clustered else info.state.last_seq

    async def stored_position(self, tables: Iterable[TableName]) -> Position:
        """Find the furthest of this slot's changes and messages that the stream holds.

        Besides the tables published now it asks for those that were: the WAL still holds the
        changes of a table that was renamed, or left the publication, since.
        """
        furthest = ORIGIN
        entries = await self.latest_entries()
        # The slot is ours by now: nobody else writes entries of our tables from here on.
        self._newest = {table.token: self._as_known(table, read) for table, read in entries.items()}
        before = [table for table, entry in entries.items() if entry.source == self.source]
        for table in {*tables, *before, *self.forgotten}:
            message = await self._last(table_filter(table))
            if message is not None:
                furthest = max(furthest, await self._position(message))
        for subject in await self._subjects(message_filter()):
            message = await self._last(subject)
            if message and (await self._fields(message)).get("source") == self.source:
                furthest = max(furthest, await self._position(message))
        return furthest

    async def latest_entries(self) -> dict[TableName, ShapeEntry]:
        """Give the latest entry of every table in the bucket, whoever's it is."""
        # Not bucket.keys(), a watcher that now and then misses what was already there: a table
        # of ours that it missed would be stored twice.
        info = await self._js.stream_info(_SCHEMAS_STREAM, subjects_filter=f"{_SCHEMAS_PREFIX}>")
        entries: dict[TableName, ShapeEntry] = {}
        self.forgotten = set()
        for subject in info.state.subjects or {}:
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

    async def _position(self, message: RawStreamMsg) -> Position:
        fields = await self._fields(message)
        try:
            position = Place.from_map(fields).position
        except (KeyError, TypeError) as error:
            raise _unreadable(message, error) from error
        if str(message.subject).endswith(".schema") and not fields.get("last"):
            # A shape shares its place with the change behind it, which may not be stored yet.
            return Position(position.commit_lsn, position.ordinal - 1)
        return position

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

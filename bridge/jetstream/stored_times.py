"""Reads when the stream's last messages were stored; `bridge/ages.py` says what that proves.

A search by halves finds the last message that is older than the hold, and a few more are read
between it and the stream's end: about forty requests, however long the stream is. Messages of other
sources are passed over; what cannot be read makes the answer more careful, never wrong.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from bridge.ages import Sample, StoredSince, stored_since
from bridge.errors import SinkRefused
from bridge.jetstream.control import REQUEST_TIMEOUT_SECONDS, stream_info
from bridge.jetstream.registry import Registry
from schemas.names import TableName
from schemas.positions import ORIGIN, Position
from schemas.streams import CDC_STREAM
from schemas.subjects import is_session_subject, table_filter

SAMPLES = 16
"""How many messages are read that are younger than the hold."""

TRIES = 8
"""How many messages in a row are looked at for one of ours."""


async def read_stored_since(
    client: Client,
    registry: Registry,
    tables: Collection[TableName],
    stored: Position,
    hold: timedelta,
    *,
    meanwhile: Callable[[], None],
) -> StoredSince:
    """Find out since when the stream holds what it holds, up to the position `stored`.

    `meanwhile` is called between requests.
    """
    if not hold or stored == ORIGIN:
        return StoredSince()
    info = await stream_info(client, CDC_STREAM.name)
    if info is None or "ts" not in info:
        return stored_since([], stored.commit_lsn, datetime.min, time.monotonic())
    # The answer was given before it arrived: the moment of arrival makes nothing look older.
    read_at, now = time.monotonic(), datetime.fromisoformat(info["ts"])
    js = client.jetstream(timeout=REQUEST_TIMEOUT_SECONDS)
    reader = _Reader(js, registry, {*tables, *registry.forgotten}, meanwhile)
    first, last = int(info["state"]["first_seq"]), int(info["state"]["last_seq"])
    aged = await last_older(reader.time_of, first, last, now - hold)
    samples = [each for at in sample_points(aged, last) async for each in reader.from_(at)]
    if stored.commit_lsn not in {each.commit_lsn for each in samples}:
        # Another source has stored something since.
        samples += [each async for each in reader.last_of_tables()]
    return stored_since(samples, stored.commit_lsn, now, read_at)


async def last_older(
    time_of: Callable[[int], Awaitable[datetime | None]], first: int, last: int, limit: datetime
) -> int:
    """Give the sequence of the last message stored before a moment; `first - 1` for none."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        moment = await time_of(middle)
        if moment is not None and moment <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def sample_points(aged: int, last: int) -> list[int]:
    """Choose which messages to read, from the last aged one to the last of all."""
    return sorted({aged + (last - aged) * step // SAMPLES for step in range(SAMPLES + 1)} - {0})


class _Reader:
    """Reads single messages of the stream from its leader."""

    def __init__(
        self,
        js: JetStreamContext,
        registry: Registry,
        tables: Collection[TableName],
        meanwhile: Callable[[], None],
    ) -> None:
        self._js = js
        self._meanwhile = meanwhile
        self._registry = registry
        self._tables = tables

    async def time_of(self, sequence: int) -> datetime | None:
        message = await self._next(sequence)
        return message.time if message else None

    async def from_(self, sequence: int) -> AsyncIterator[Sample]:
        """Read the first message of ours from a sequence on, unless it takes too many tries."""
        for _ in range(TRIES):
            message = await self._next(sequence)
            if message is None:
                return
            if sample := await self._sample(message):
                yield sample
                return
            sequence = (message.seq or sequence) + 1

    async def last_of_tables(self) -> AsyncIterator[Sample]:
        for table in self._tables:
            self._meanwhile()
            with contextlib.suppress(nats.js.errors.NotFoundError):
                message = await self._js.get_last_msg(CDC_STREAM.name, table_filter(table))
                if sample := await self._sample(message):
                    yield sample

    async def _next(self, sequence: int) -> RawStreamMsg | None:
        """Give the message with that sequence, or the one after it where it was removed."""
        everything = CDC_STREAM.subjects[0]
        self._meanwhile()
        try:
            return await self._js.get_msg(CDC_STREAM.name, sequence, everything, next=True)
        except nats.js.errors.NotFoundError:
            return None

    async def _sample(self, message: RawStreamMsg) -> Sample | None:
        """Read a message, unless it is another source's, another history's or repeats a place."""
        fork = self._registry.last_fork
        is_void = fork is not None and fork.comes_after(message.seq or 0)
        if message.time is None or is_void or is_session_subject(str(message.subject)):
            return None
        try:
            fields = await self._registry.fields_of(message)
            commit_lsn = int(fields["commit_lsn"])
        except (SinkRefused, KeyError, TypeError, ValueError):
            return None
        return Sample(commit_lsn, message.time) if self._is_ours(fields) else None

    def _is_ours(self, fields: Mapping[str, Any]) -> bool:
        if source := fields.get("source"):
            return bool(source == self._registry.source)
        return TableName(str(fields.get("schema")), str(fields.get("table"))) in self._tables

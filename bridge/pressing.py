"""Changes on their way out, compressed table by table (`--zstd=all`).

A table begins with the newest dictionary that KV has of it. Where that was trained for another
shape or codec, or there is none, the first changes are collected, a dictionary is trained from them
and stored, and only then named. Nothing else of a message changes: not its id, nor its place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bridge.compression import Press, Samples
from bridge.errors import PublishRefused, SinkRefused
from bridge.outbox import Outgoing
from bridge.ports import Dictionaries
from schemas.compression import Dictionary
from schemas.shapes import TableShape
from schemas.subjects import OPERATIONS, change_subject

COLLECTED_AT_MOST_BYTES = 16 << 20
"""What all tables may collect together; a table that passes it makes do with what it has."""

LARGE_BYTES = 1 << 20
"""A body above this is compressed beside the event loop."""

_log = logging.getLogger("bridge.zstd")


@dataclass(slots=True)
class TablePress:
    """One table's press, the one that takes its place at `ready`, and samples for another."""

    shape: TableShape
    press: Press
    next: Press | None = None
    ready: float = 0.0
    samples: Samples | None = None

    def current(self, now: float) -> Press:
        if self.next is not None and now >= self.ready:
            self.press, self.next = self.next, None
        return self.press


class ChangePresses:
    """The presses of all tables.

    `hold` is how long a dictionary must have been stored before a change may depend on it: under
    durability `synced`, a power loss must not take a dictionary from changes that survive it.
    """

    def __init__(self, store: Dictionaries, content_type: str, hold: timedelta) -> None:
        self._store = store
        self._content_type = content_type
        self._hold = hold
        self._tables: dict[str, TablePress] = {}
        self._collected = 0

    async def learn(self, shape: TableShape) -> None:
        """Find a table's dictionary, and begin to collect for one that fits its shape."""
        before = self._tables.get(change_subject(shape.name, "INSERT"))
        if before is not None:
            if before.shape.fingerprint == shape.fingerprint:
                return
            self._collected -= before.samples.size if before.samples else 0
        table = TablePress(shape, Press())
        found = await self._store.newest(shape.name)
        if found is not None:
            self._install(table, found.dictionary, found.wait(datetime.now(UTC), self._hold))
        if found is None or not found.fits(shape.fingerprint, self._content_type):
            table.samples = Samples()
        for operation in OPERATIONS:
            self._tables[change_subject(shape.name, operation)] = table

    @staticmethod
    def _install(table: TablePress, dictionary: Dictionary, wait: timedelta) -> None:
        table.next, table.ready = Press(dictionary), time.monotonic() + wait.total_seconds()

    async def press(self, messages: Sequence[Outgoing]) -> None:
        """Compress what is a row's change; shapes and logical messages stay as they are."""
        now = time.monotonic()
        for message in messages:
            table = self._tables.get(message.subject)
            if table is None:
                continue
            if table.samples is not None:
                await self._collect(table, table.samples, message.body)
            press = table.current(now).press
            if len(message.body) > LARGE_BYTES:
                message.body, message.headers = await asyncio.to_thread(press, message.body)
            else:
                message.body, message.headers = press(message.body)

    async def _collect(self, table: TablePress, samples: Samples, body: bytes) -> None:
        before = samples.size
        samples.add(body)
        self._collected += samples.size - before
        if not samples.are_enough and self._collected < COLLECTED_AT_MOST_BYTES:
            return
        self._collected -= samples.size
        table.samples = None
        dictionary = await train_dictionary(self._store, table.shape, samples, self._content_type)
        if dictionary is not None:
            self._install(table, dictionary, self._hold)


async def train_dictionary(
    store: Dictionaries, shape: TableShape, samples: Samples, content_type: str
) -> Dictionary | None:
    """Train and store a dictionary; without one, compression is less and nothing else."""
    dictionary = await asyncio.to_thread(samples.train)
    if dictionary is None:
        _log.info("%s has too little to train a dictionary from", shape.name)
        return None
    fingerprint = shape.fingerprint
    try:
        await store.put(shape.name, dictionary, fingerprint=fingerprint, content_type=content_type)
    except (SinkRefused, PublishRefused) as error:
        _log.warning("no dictionary for %s: %s; %s", shape.name, error, error.advice)
        return None
    _log.info("dictionary %s of %s: %d bytes, trained from %d messages",
              dictionary.id, shape.name, len(dictionary.content), len(samples))  # fmt: skip
    return dictionary

"""A watch that cannot look says so, and one with a bug ends the session."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.catalogwatch import CatalogWatch
from bridge.errors import SourceNotReady
from bridge.jetstream.registry import ShapeEntry
from bridge.postgres import connection
from bridge.postgres.storage import Reading, StoredTable
from bridge.sources import SourceId
from bridge.status import Status
from bridge.storage import TableStorage
from bridge.tablememory import TableMemory
from schemas.names import TableName
from schemas.positions import Lsn
from tests.unit.bridge.test_storage import BEFORE
from tests.unit.bridge.test_tablememory import REWRITTEN
from tests.unit.schemas.samples import SHAPE

OURS = SourceId("1", 5, "s")


def a_watch(status: Status) -> CatalogWatch:
    config: Any = SimpleNamespace(catalog_poll=timedelta(0), postgres=None)
    nothing: Any = None
    return CatalogWatch(config, nothing, TableMemory(), OURS, status)


async def test_a_failing_watch_warns_once_with_advice_and_shows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At debug level nobody would learn that DDL is reported no more."""
    tries, enough = 0, asyncio.Event()

    async def refuse(_: object) -> None:
        nonlocal tries
        tries += 1
        if tries >= 3:
            enough.set()
        raise SourceNotReady("no such function")

    monkeypatch.setattr(connection, "connect", refuse)
    status, nothing = Status("s", "p"), SimpleNamespace()
    with caplog.at_level(logging.WARNING, "bridge"):
        running = asyncio.create_task(a_watch(status).run(nothing))  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await enough.wait()
        running.cancel()

    assert [(r.levelname, SourceNotReady.advice in r.getMessage()) for r in caplog.records] == [
        ("WARNING", True)
    ]
    assert status.to_map()["catalog_error"] == "no such function"


async def test_a_bug_in_the_watch_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the task, and with it the session, which says why."""

    async def stumble(_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(connection, "connect", stumble)
    with pytest.raises(KeyError):
        await a_watch(Status("s", "p")).run(SimpleNamespace())  # type: ignore[arg-type]


class MemoryRegistry:
    """Keeps what KV would remember."""

    def __init__(self) -> None:
        self.remembered: list[TableName] = []
        self.recalled: dict[TableName, TableStorage] = {}

    def recall(self, name: TableName, storage: TableStorage) -> None:
        self.recalled[name] = storage

    async def remember(self, name: TableName, *_: object) -> None:
        self.remembered.append(name)


def a_memory_watch(memory: TableMemory, registry: MemoryRegistry) -> CatalogWatch:
    config, status = SimpleNamespace(nats=None), Status("s", "p")
    return CatalogWatch(config, registry, memory, OURS, status)  # type: ignore[arg-type]


def test_a_rewrite_behind_a_rename_that_was_not_finished_is_found() -> None:
    """The entry under the new name has no storage yet; the one under the old name has."""
    memory, registry = TableMemory(), MemoryRegistry()
    now = replace(SHAPE, name=TableName("public", "renamed"))
    old = ShapeEntry(1, 10, str(OURS), SHAPE, BEFORE)
    entries = {SHAPE.name: old, now.name: ShapeEntry(2, 20, str(OURS), now)}
    reading = Reading({now.relation_id: StoredTable(now.name, REWRITTEN)}, Lsn(30))

    a_memory_watch(memory, registry).begin({now.relation_id: now}, reading, entries)

    assert memory.dress(now).rewritten
    assert registry.recalled == {now.name: BEFORE}


async def test_kv_remembers_what_is_safe_and_not_what_is_acknowledged() -> None:
    """A server that loses power forgets acknowledged messages, and the WAL has no mark in it."""
    memory, registry = TableMemory(), MemoryRegistry()
    watch = a_memory_watch(memory, registry)
    pipeline: Any = SimpleNamespace(
        learning=asyncio.Lock(), is_inserting=False, sent=3, acknowledged=3, safe=2
    )
    memory.assess(SHAPE, BEFORE, is_watched=True)

    await watch.settle(pipeline)
    assert registry.remembered == []
    pipeline.safe = 3
    await watch.settle(pipeline)
    assert registry.remembered == [SHAPE.name]

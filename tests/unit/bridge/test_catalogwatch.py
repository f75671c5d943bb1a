"""A watch that cannot look says so, and one with a bug ends the session."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.catalogwatch import CatalogWatch
from bridge.errors import SourceNotReady
from bridge.postgres import connection
from bridge.sources import SourceId
from bridge.status import Status
from bridge.tablememory import TableMemory


def a_watch(status: Status) -> CatalogWatch:
    config: Any = SimpleNamespace(catalog_poll=timedelta(0), postgres=None)
    nothing: Any = None
    return CatalogWatch(config, nothing, TableMemory(), SourceId("1", 5, "s"), status)


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

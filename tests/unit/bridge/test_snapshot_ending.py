"""How a snapshot ends when its session ends at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.errors import SourceLost, SourceNotReady
from bridge.snapshot.requests import Rejected, SnapshotRequest
from bridge.snapshot.service import UNFORESEEN_AT_MOST, Outcome, Running, SnapshotService
from bridge.status import Status
from schemas.names import TableName


class SlowInit:
    """An INIT stream that notes what it is told, and takes its time over a meta."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def completed(self, _: TableName, __: Mapping[str, Any]) -> None:
        await asyncio.sleep(0.05)
        self.told.append("meta")

    async def failed(self, _: TableName, __: Mapping[str, Any]) -> None:
        self.told.append("error")


def serving(kind: type[SnapshotService], init: object) -> SnapshotService:
    means = SimpleNamespace(limits=SimpleNamespace(side_by_side=1))
    status = Status(slot="s", publication="p")
    return kind(cast("Any", means), cast("Any", None), cast("Any", init), status)


class Ending(SnapshotService):
    """Goes straight to the meta, and then hangs over its connections."""

    async def _take(self, running: Running) -> None:
        await self._complete(running, {})
        await asyncio.sleep(3600)


@pytest.mark.parametrize("seconds", [0.01, 0.1], ids=["during the meta", "behind the meta"])
async def test_a_session_that_ends_calls_no_stored_snapshot_failed(seconds: float) -> None:
    """A meta that is stored stays, so its chunks must stay as well."""
    init = SlowInit()
    service = serving(Ending, init)
    running = service._begin_or_join(SnapshotRequest(table=TableName("public", "users")), tell=True)

    await asyncio.sleep(seconds)
    while not running.ended.done():
        assert running.task is not None
        running.task.cancel()
        await asyncio.sleep(0.01)

    assert init.told == ["meta"]
    assert running.ended.result() is Outcome.SETTLED


class Failing(SnapshotService):
    """Fails as it is told."""

    error: Exception

    async def _take(self, _: Running) -> None:
        raise self.error


class Stored:
    """A stored request that notes what becomes of it."""

    token, body = "users", b""

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.became = ""

    async def working(self) -> None:
        await asyncio.sleep(3600)

    async def done(self) -> None:
        self.became = "done"

    async def again(self) -> None:
        self.became = "again"


@pytest.mark.parametrize(
    ("error", "tries", "became"),
    [
        (SourceLost("gone"), 100, "again"),
        (SourceNotReady("not there"), 1, "done"),
        (Rejected("no such table"), 1, "done"),
        (KeyError("a fault of ours"), 1, "again"),
        (KeyError("a fault of ours"), UNFORESEEN_AT_MOST, "done"),
    ],
)
async def test_a_stored_request_is_given_up_only_where_trying_again_does_not_help(
    error: Exception, tries: int, became: str
) -> None:
    service, stored = serving(Failing, SlowInit()), Stored(tries)
    cast("Failing", service).error = error

    await service._serve_stored(cast("Any", stored))

    assert stored.became == became

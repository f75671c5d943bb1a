"""How a snapshot ends when its session ends at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.snapshot.requests import SnapshotRequest
from bridge.snapshot.service import Outcome, Running, SnapshotService
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


class Ending(SnapshotService):
    """Goes straight to the meta, and then hangs over its connections."""

    async def _take(self, running: Running) -> None:
        await self._complete(running, {})
        await asyncio.sleep(3600)


@pytest.mark.parametrize("seconds", [0.01, 0.1], ids=["during the meta", "behind the meta"])
async def test_a_session_that_ends_calls_no_stored_snapshot_failed(seconds: float) -> None:
    """A meta that is stored stays, so its chunks must stay as well."""
    init = SlowInit()
    means = SimpleNamespace(limits=SimpleNamespace(side_by_side=1))
    status = Status(slot="s", publication="p")
    service = Ending(cast("Any", means), cast("Any", None), cast("Any", init), status)
    running = service._begin_or_join(SnapshotRequest(table=TableName("public", "users")), tell=True)

    await asyncio.sleep(seconds)
    while not running.ended.done():
        assert running.task is not None
        running.task.cancel()
        await asyncio.sleep(0.01)

    assert init.told == ["meta"]
    assert running.ended.result() is Outcome.SETTLED

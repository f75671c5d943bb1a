"""Warnings about the slot: early enough, and not more often than they help."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge import app
from bridge.errors import SlotLost, SourceLost, SourceRefused
from bridge.postgres import connection
from bridge.postgres.slot import Slot
from bridge.postgres.slotwatch import SlotWatcher, WalRate, seconds_left
from bridge.status import Status
from schemas.positions import Lsn
from tests.unit.bridge.test_plans import SLOT

GIB = 1 << 30


def test_a_healthy_slot_is_not_worth_a_word() -> None:
    assert SlotWatcher().judge(SLOT) == []


def test_a_growing_slot_is_told_of_at_each_doubling() -> None:
    watcher = SlotWatcher()
    sizes = [GIB // 2, GIB, GIB + 1, 2 * GIB, 3 * GIB, 9 * GIB, 0, GIB]
    told = [len(watcher.judge(dataclasses.replace(SLOT, retained_bytes=n))) for n in sizes]
    assert told == [0, 1, 0, 1, 0, 1, 0, 1]


def test_the_remedy_depends_on_who_reads() -> None:
    nobody = dataclasses.replace(SLOT, retained_bytes=GIB)
    somebody = dataclasses.replace(nobody, active_pid=1)
    assert "drop the slot" in SlotWatcher().judge(nobody)[0]
    assert "JetStream" in SlotWatcher().judge(somebody)[0]


def test_a_slot_near_its_end_names_the_setting() -> None:
    watcher, near = SlotWatcher(), dataclasses.replace(SLOT, safe_wal_size=GIB // 4)
    (warning,) = watcher.judge(near)
    assert "256 MiB" in warning
    assert "max_slot_wal_keep_size" in warning
    assert watcher.judge(near) == []


@pytest.mark.parametrize("status", ["extended", "unreserved"])
def test_a_change_of_wal_status_is_told_once(status: str) -> None:
    watcher, worse = SlotWatcher(), dataclasses.replace(SLOT, wal_status=status)
    assert [len(watcher.judge(slot)) for slot in (worse, worse, SLOT, worse)] == [1, 0, 0, 1]


def test_a_lost_slot_is_named() -> None:
    with pytest.raises(SlotLost, match="lost"):
        SlotWatcher().judge(dataclasses.replace(SLOT, wal_status="lost"))


def test_the_rate_of_the_wal_follows_what_is_written_now() -> None:
    """Bytes left mean little without how fast they go."""
    rate = WalRate()
    for second in range(0, 600, 5):
        rate.add(1_000 * second, float(second))
    assert rate.bytes_per_second == pytest.approx(1_000, rel=0.01)

    for second in range(600, 1_200, 5):
        rate.add(600_000, float(second))
    assert rate.bytes_per_second < 1

    before = rate.bytes_per_second
    rate.add(5, 1_200.0)
    assert rate.bytes_per_second == before, "another server, whose WAL begins elsewhere"


def test_the_time_left_is_what_is_left_at_this_rate() -> None:
    assert seconds_left(1_000, 10.0) == 100
    assert seconds_left(1_000, 0.0) == float("inf")
    assert seconds_left(-5, 10.0) == 0
    assert seconds_left(None, 10.0) is None


async def test_the_slot_is_looked_at_between_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """While NATS is down no session streams, WAL piles up, and somebody must be able to see it."""
    seen = [dataclasses.replace(SLOT, safe_wal_size=n, wal_end=Lsn(n)) for n in (GIB, 5)]
    seen.append(dataclasses.replace(SLOT, wal_status="lost"))

    class Connection:
        async def __aenter__(self) -> Connection:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    async def connect(_: object) -> Connection:
        return Connection()

    async def find_slot(*_: object) -> Slot:
        return seen.pop(0) if len(seen) > 1 else seen[0]

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(app, "find_slot", find_slot)
    monkeypatch.setattr(app, "WATCH_EVERY_SECONDS", 0)
    config = SimpleNamespace(format="json", postgres=None, slot="s", nats=None)
    bridge = app.Bridge(cast("Any", config), Status("s", "p"), asyncio.Event())
    bridge.status.state = "streaming"
    watching = asyncio.create_task(bridge._watch_between_sessions())
    for _ in range(20):
        await asyncio.sleep(0)
    assert bridge.status.watch.looked_at is None, "a session looks for itself"

    bridge.status.state = "reconnecting"
    while bridge.status.watch.wal_status != "lost":
        await asyncio.sleep(0)

    assert not watching.done(), "what is lost is for the next session to say"
    watching.cancel()


@pytest.mark.parametrize("error", [SourceLost("gone"), SourceRefused("a password was changed")])
async def test_a_look_that_fails_ends_no_bridge_that_streams(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whoever reads the WAL will hear of it, if it matters there."""
    looked = 0

    async def connect(_: object) -> None:
        nonlocal looked
        looked += 1
        raise error

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(app, "WATCH_EVERY_SECONDS", 0)
    config = SimpleNamespace(format="json", postgres=None, nats=None)
    bridge = app.Bridge(cast("Any", config), Status("s", "p"), asyncio.Event())
    watching = asyncio.create_task(bridge._watch())
    while looked < 3 and not watching.done():
        await asyncio.sleep(0)

    assert not watching.done()
    watching.cancel()

"""Warnings about the slot: early enough, and not more often than they help."""

from __future__ import annotations

import dataclasses

import pytest

from bridge.errors import SlotLost
from bridge.postgres.slotwatch import SlotWatcher
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

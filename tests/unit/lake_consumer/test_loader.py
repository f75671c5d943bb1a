from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lake_consumer.errors import NoSnapshot
from lake_consumer.loader import Loader
from lake_consumer.tablestates import loading
from schemas.names import TableName

USERS = TableName("public", "users")


class Init:
    """An INIT stream that grows while a bridge is at work."""

    def __init__(self, ends: list[int]) -> None:
        self._ends = ends

    def end(self) -> int:
        return self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]


def waiting(ends: list[int], patience: float, under_way: object = ()) -> Loader:
    states = SimpleNamespace(loading=lambda: {USERS: loading("why", 0)}, read_all=list)
    lake: Any = SimpleNamespace(states=states, loads=SimpleNamespace(under_way=under_way))
    stream: Any = SimpleNamespace(snapshots=Init(ends))
    return Loader(cast("Any", stream), cast("Any", lake), patience_seconds=patience)


def test_a_snapshot_nobody_works_on_is_not_waited_for_without_end() -> None:
    """Without a bridge `drain` would hang for ever and say nothing."""
    loader = waiting([7], patience=0.0)

    loader.wait()
    with pytest.raises(NoSnapshot, match=r"nobody has worked on a snapshot of public\.users"):
        loader.wait()


def test_a_bridge_at_work_is_waited_for() -> None:
    """A large table takes as long as it takes, as long as chunks arrive."""
    loader = waiting([1, 2, 3, 4], patience=0.0)

    for _ in range(4):
        loader.wait()


def test_a_load_under_way_is_waited_for_without_a_bridge() -> None:
    """All chunks are stored already: nobody has to work on them but the lake itself."""
    loader = waiting([7], patience=0.0, under_way={USERS: "a load"})

    for _ in range(3):
        loader.wait()

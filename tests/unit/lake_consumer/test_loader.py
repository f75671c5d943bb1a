from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lake_consumer.errors import NoSnapshot
from lake_consumer.loader import Loader
from lake_consumer.tablestates import loading
from lake_consumer.watermark import Watermark
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


class Seeing:
    """A lake that takes tables from KV `schemas`, and the KV itself."""

    def __init__(self, **tables: tuple[int, int]) -> None:
        self.kv = {TableName("public", name): at for name, at in tables.items()}
        self.seen: dict[TableName, int] = {}
        self.forgotten: list[TableName] = []
        states = SimpleNamespace(first_sight="snapshot", position=0, read_all=lambda: self.seen)
        states.loading = dict
        loads = SimpleNamespace(see=self._see, under_way={}, drop_stale=dict)
        loads.worker = SimpleNamespace(position=0)
        loads.take_failed = dict
        self.lake = SimpleNamespace(
            states=states, loads=loads, is_renamed=self._is_renamed,
            take_forgets=lambda _: self.forgotten, take_resyncs=lambda *_: [],
            finish_loads=lambda _: [],
        )  # fmt: skip
        self.stream = SimpleNamespace(
            state=lambda: SimpleNamespace(last=70),
            tables=lambda: {table: revision for table, (_, revision) in self.kv.items()},
            snapshots=SimpleNamespace(end=lambda: 0),
        )

    def _see(self, table: TableName, revision: int, end: int) -> None:
        assert (revision, end) == (self.kv[table][1], 70)
        self.seen[table] = self.kv[table][0]

    def _is_renamed(self, table: TableName, _: int) -> bool:
        return self.kv[table][0] in self.seen.values()


def test_a_table_that_kv_has_by_two_names_is_taken_by_the_newer_one() -> None:
    """The bridge removes the key of the old name only after it has written that of the new."""
    seeing = Seeing(a=(1, 3), b=(1, 9), c=(2, 5))

    Loader(cast("Any", seeing.stream), cast("Any", seeing.lake)).see_tables(0)

    assert [table.table for table in seeing.seen] == ["b", "c"]


def test_a_purged_table_that_is_still_published_is_taken_again() -> None:
    seeing = Seeing(users=(1, 3))
    loader = Loader(cast("Any", seeing.stream), cast("Any", seeing.lake), clock=lambda: 0.0)
    loader.see_tables(0)
    seeing.seen.clear()
    loader.see_tables(0)
    assert not seeing.seen, "KV is as it was, so nothing is looked at twice"

    seeing.forgotten = [USERS]
    loader.step(Watermark(0, 1))
    loader.see_tables(0)

    assert USERS in seeing.seen

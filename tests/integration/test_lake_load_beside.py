"""Loads run concurrently with batches: a load is held in the middle, and the lake goes on.

The load is held deterministically, before or after the executors have read its chunks. PostgreSQL
judges every mirror at the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer import initial_load
from lake_consumer.app import Follower
from lake_consumer.formats import FORMAT_SETTING
from lake_consumer.iceberg import load_tail
from lake_consumer.iceberg.chunk_files import ChunkPlan, UnitDone
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.load_worker import LoadWorker
from lake_consumer.iceberg.snapshot_load import SnapshotLoads
from lake_consumer.initial_load import Unit
from tests.conftest import Connection
from tests.integration.test_lake_loading import assert_equal, settle
from tests.support.bridge import wait_for
from tests.support.lake import LakeRig, reach_end
from tests.support.rig import Rig

SMALL_TABLES = int(os.environ.get("LOADED_TABLES", "20"))

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


class HeldWorker(LoadWorker):
    """Reads no chunk of a load before the test lets it; says when it is held."""

    gate: ClassVar[threading.Event] = threading.Event()
    held: ClassVar[threading.Event] = threading.Event()
    spoil: ClassVar[Callable[[list[UnitDone]], list[UnitDone]]] = staticmethod(lambda done: done)

    def read_round(
        self, lanes: Sequence[Sequence[Unit]], plans: Mapping[str, ChunkPlan]
    ) -> list[UnitDone]:
        done = super().read_round(lanes, plans)
        self.held.set()
        assert self.gate.wait(240), "the test never let the load go on"
        return type(self).spoil(done)


class HeldLoads(SnapshotLoads):
    worker_class = HeldWorker


class HeldLake(Lake):
    loads_class = HeldLoads


@pytest.fixture(autouse=True)
def gate() -> Iterator[threading.Event]:
    HeldWorker.gate.clear()
    HeldWorker.held.clear()
    HeldWorker.spoil = staticmethod(lambda done: done)
    yield HeldWorker.gate
    HeldWorker.gate.set()


@pytest.fixture
def bridge(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Rig]:
    with Rig(connection, postgres, nats, tmp_path) as rig:
        yield rig


@contextmanager
def following_held(rig: LakeRig) -> Iterator[Follower]:
    """Follow with loads that are held; whatever happens, they are let go at the end."""
    with rig.following(lake_class=HeldLake) as follower:
        try:
            yield follower
        finally:
            HeldWorker.gate.set()


def begin_held(follower: Follower) -> None:
    """Let the lake go on until a load is held."""

    def turn() -> bool:
        follower.load()
        follower.step(None)
        return HeldWorker.held.is_set()

    wait_for(turn, "a load that is held")


def apply_all(bridge: Rig, follower: Follower) -> None:
    """Apply all that was committed, while loads stay held."""
    end = settle(bridge)
    while follower.applied < end:
        follower.load()
        follower.step(None)


@contextmanager
def let_go(rig: LakeRig, follower: Follower) -> Iterator[None]:
    HeldWorker.gate.set()
    reach_end(follower, rig.nats)
    yield


_TABLES = (
    "CREATE TABLE big (id int PRIMARY KEY, n int, body text)",
    "ALTER TABLE big ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO big SELECT g, g, 'row ' || g FROM generate_series(1, 400) g",
    "INSERT INTO big SELECT g, g, repeat('long' || g, 2000) FROM generate_series(401, 410) g",
    "CREATE TABLE other (id int PRIMARY KEY, n int)",
    "CREATE PUBLICATION pub FOR ALL TABLES",
)
_CHANGES = {
    "rows": (
        "UPDATE big SET n = n + 1000 WHERE id % 3 = 0 AND id <= 400",
        "DELETE FROM big WHERE id % 7 = 0",
        "INSERT INTO big SELECT g, g, 'new' FROM generate_series(1001, 1050) g",
        "UPDATE big SET n = 0 WHERE id = 1001",
        "DELETE FROM big WHERE id = 1002",
    ),
    "keys": (
        "UPDATE big SET id = id + 5000 WHERE id BETWEEN 10 AND 20",
        "INSERT INTO big SELECT g, 1, 'again' FROM generate_series(10, 12) g",
        "UPDATE big SET id = id + 1 WHERE id = 5020",
    ),
    "toast": (
        "UPDATE big SET n = -1 WHERE id > 400",
        "UPDATE big SET id = 9000 WHERE id = 405",
    ),
    "truncate": (
        "UPDATE big SET n = 5 WHERE id = 1",
        "TRUNCATE big",
        "INSERT INTO big VALUES (1, 1, 'after')",
    ),
    "columns": (
        "ALTER TABLE big ADD COLUMN note text",
        "ALTER TABLE big RENAME n TO m",
        "UPDATE big SET note = 'x', m = 3 WHERE id = 2",
        "ALTER TABLE big ALTER m TYPE bigint",
        "DELETE FROM big WHERE id = 3",
    ),
    "none": (),
}


@pytest.fixture(params=["short", "long"])
def tail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail that the driver folds in the finish, or one that is folded beside batches first."""
    if request.param == "long":
        monkeypatch.setattr(initial_load, "SHORT_TAIL", 4)
        monkeypatch.setattr(load_tail, "SHORT_TAIL", 4)


@pytest.mark.usefixtures("tail")
@pytest.mark.parametrize("kind", _CHANGES)
def test_a_table_that_changes_during_its_load_ends_equal(
    kind: str, bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """What is committed between the read of the snapshot and the finish is in the change log."""
    bridge.execute(*_TABLES)
    bridge.start()
    with following_held(rig) as follower:
        begin_held(follower)
        bridge.execute(*_CHANGES[kind], "INSERT INTO other VALUES (1, 1)")
        apply_all(bridge, follower)

        assert "loading" in rig.notes()["public__changes.big"]
        assert [row["new"]["id"] for row in rig.log("other")] == [1], "a load holds a batch up"
        with let_go(rig, follower):
            assert_equal(rig, connection, "big")
            assert_equal(rig, connection, "other")

        bridge.execute("DELETE FROM big WHERE id % 2 = 0", "UPDATE big SET body = 'late'")
        apply_all(bridge, follower)
        assert_equal(rig, connection, "big")

        HeldWorker.gate.clear()
        HeldWorker.held.clear()
        rig.resync("big")
        begin_held(follower)
        bridge.execute("UPDATE big SET body = 'later' WHERE id < 100")
        apply_all(bridge, follower)
        with let_go(rig, follower):
            assert_equal(rig, connection, "big")
        assert not rig.notes()


@pytest.mark.parametrize("kinds", [("rows", "keys", "toast", "columns"), ("truncate",)])
def test_spark_brings_the_tail_over_a_load_that_is_copied_on_write(
    kinds: tuple[str, ...], bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """The format that every reader understands has no deletion vectors."""
    rig.spark.conf.set(FORMAT_SETTING, "v2-cow")
    bridge.execute(*_TABLES)
    bridge.start()
    with following_held(rig) as follower:
        begin_held(follower)
        bridge.execute(*(statement for kind in kinds for statement in _CHANGES[kind]))
        apply_all(bridge, follower)

        with let_go(rig, follower):
            assert_equal(rig, connection, "big")
        assert not rig.notes()


def test_a_load_that_became_useless_is_discarded(
    bridge: Rig, rig: LakeRig, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its snapshot is of a table that is gone; nothing of it may become visible."""
    bridge.execute(*_TABLES)
    bridge.start()
    with following_held(rig) as follower:
        begin_held(follower)
        bridge.execute(
            "DROP TABLE big",
            "CREATE TABLE big (id text PRIMARY KEY, n text)",
            "INSERT INTO big VALUES ('a', 'b')",
        )
        apply_all(bridge, follower)
        follower.load()
        assert "load discarded" in capsys.readouterr().out

        with let_go(rig, follower):
            assert_equal(rig, connection, "big")


def test_a_resync_during_a_load_discards_it(
    bridge: Rig, rig: LakeRig, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who asks for a resync wants a snapshot that begins afterwards."""
    bridge.execute(*_TABLES)
    bridge.start()
    with following_held(rig) as follower:
        begin_held(follower)
        bridge.execute("INSERT INTO other VALUES (1, 1)")
        apply_all(bridge, follower)
        rig.resync("big")
        follower.load()
        assert "load discarded" in capsys.readouterr().out

        with let_go(rig, follower):
            assert_equal(rig, connection, "big")


def test_a_snapshot_that_is_not_what_was_stored_never_becomes_visible(
    bridge: Rig, rig: LakeRig, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digests of chunks are compared before any table names a file."""
    bridge.execute(*_TABLES)
    bridge.start()
    spoiled: list[str] = []

    def spoil(done: list[UnitDone]) -> list[UnitDone]:
        if spoiled:
            return done
        spoiled.extend(unit.snapshot_id for unit in done)
        return [unit._replace(digests=bytes(32)) for unit in done]

    HeldWorker.spoil = staticmethod(spoil)
    HeldWorker.gate.set()
    with following_held(rig) as follower:
        reach_end(follower, rig.nats)

    assert spoiled
    assert "is not what was stored" in capsys.readouterr().out
    assert_equal(rig, connection, "big")
    assert_equal(rig, connection, "other")


def test_many_small_tables_and_a_larger_one_load_together(
    bridge: Rig, rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units of several snapshots share a task, and a snapshot of several chunks has several."""
    monkeypatch.setattr(initial_load, "UNIT_CHUNKS", 2)
    names = [f"small_{number}" for number in range(SMALL_TABLES)]
    bridge.execute(
        "CREATE TABLE large (id int PRIMARY KEY, n int)",
        "INSERT INTO large SELECT g, g FROM generate_series(1, 55000) g",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in names),
        *(f"INSERT INTO {name} VALUES (1, '{name}'), (2, NULL)" for name in names),
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    bridge.start()
    rig.catch_up()

    assert not rig.notes()
    for name in names:
        assert [(row["id"], row["v"]) for row in rig.mirror(name)] == [(1, name), (2, None)]
    counted = rig.spark.sql("SELECT count(*), sum(n), max(id) FROM lake.public.large").collect()
    assert tuple(counted[0]) == (55000, 55000 * 55001 // 2, 55000)

"""Tables that come, go and get other names under a real bridge, held against PostgreSQL.

The message that an event trigger writes is written by hand, in the transaction of the statement.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.iceberg.following import ShapeFollower
from lake_consumer.iceberg.reading import LakeReader
from schemas.ddl import DdlEvent, DdlKind, format_ddl
from schemas.names import TableName
from tests.conftest import Connection
from tests.integration.test_lake_loading import assert_equal, follow, settle
from tests.support.bridge import wait_for
from tests.support.lake import LakeRig, reach_end
from tests.support.rig import Rig
from tests.support.stream import read_stream

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


@pytest.fixture
def bridge(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Rig]:
    with Rig(connection, postgres, nats, tmp_path) as rig:
        yield rig


def begin(bridge: Rig, *tables: str) -> None:
    for table in tables:
        bridge.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT g, '{table}' || g FROM generate_series(1, 20) g",
        )
    bridge.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    bridge.start()


def oid(connection: Connection, table: str) -> int:
    [(found,)] = connection.execute("SELECT %s::regclass::oid::text", [table]).fetchall()
    return int(str(found))


def tell(
    connection: Connection, kind: DdlKind, relation: int, name: str, new: str | None = None
) -> None:
    """What the event trigger writes."""
    event = DdlEvent(
        kind, relation, TableName.parse(name), None if new is None else TableName.parse(new)
    )
    connection.execute(
        "SELECT pg_logical_emit_message(true, 'bridge-ddl', %s)", [format_ddl([event])]
    )


def rename(connection: Connection, before: str, after: str) -> None:
    tell(connection, "rename", oid(connection, before), before, after)
    connection.execute(f"ALTER TABLE {before} RENAME TO {after}")


def states(rig: LakeRig) -> dict[str, str]:
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        return {str(table): state.kind for table, state in lake.states().items()}


def test_a_rename_while_loading_is_loaded_under_the_new_name(
    bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """The snapshot that was requested under the old name is never going to come."""
    begin(bridge, "a")
    with rig.following() as follower:
        settle(bridge)
        assert states(rig) == {"public.a": "loading"}
        with connection.transaction():
            connection.execute("UPDATE a SET v = 'before' WHERE id = 1")
            rename(connection, "a", "b")
            connection.execute("UPDATE b SET v = 'after' WHERE id = 2")
        settle(bridge)
        reach_end(follower, rig.nats)

    assert states(rig) == {"public.b": "live"}
    assert_equal(rig, connection, "b")


class Naming:
    """The lock of a load that creates its mirror, which lets it go on if somebody wants it."""

    def __init__(self, held: threading.Event, gate: threading.Event) -> None:
        self._held = held
        self._gate = gate
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._held.is_set():
            self._gate.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_rename_while_a_load_creates_the_mirror_leaves_no_mirror_of_the_old_name(
    bridge: Rig, rig: LakeRig, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have no change log, so nothing would say that it is empty and follows nothing."""
    begin(bridge, "a")
    held, gate = threading.Event(), threading.Event()
    create = ShapeFollower.rebuild_mirror

    def hold(*arguments: Any) -> Any:
        held.set()
        assert gate.wait(240), "the test never let the load go on"
        return create(*arguments)

    monkeypatch.setattr(ShapeFollower, "rebuild_mirror", hold)
    with rig.following() as follower:
        follower._lake.loads.worker.naming = cast("Any", Naming(held, gate))

        def turn() -> bool:
            follower.load()
            follower.step(None)
            return held.is_set()

        wait_for(turn, "a load that is about to create its mirror")
        with connection.transaction():
            rename(connection, "a", "b")
        settle(bridge)
        while follower.step(None):
            pass
        gate.set()
        reach_end(follower, rig.nats)

    assert_equal(rig, connection, "b")
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        assert not [name for name in lake.names() if name.name == "a"]


def test_tables_swap_names_are_dropped_and_created_again_in_one_batch(
    bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """Each mirror equals PostgreSQL's table of the same name; what PostgreSQL lacks is gone."""
    begin(bridge, "a", "b", "c", "d")
    follow(bridge, rig)
    with connection.transaction():
        connection.execute("UPDATE a SET v = 'first' WHERE id < 5")
        rename(connection, "a", "tmp")
        rename(connection, "b", "a")
        rename(connection, "tmp", "b")
        connection.execute("UPDATE a SET v = 'second' WHERE id < 7")
        connection.execute("UPDATE b SET id = id + 100 WHERE id < 3")
    with connection.transaction():
        for table in ("c", "d"):
            connection.execute(f"UPDATE {table} SET v = 'last'")
            tell(connection, "drop", oid(connection, table), table)
            connection.execute(f"DROP TABLE {table}")
    bridge.execute(
        "CREATE TABLE c (id int PRIMARY KEY, n numeric(10, 2), v text)",
        "INSERT INTO c SELECT g, g / 3.0, 'new' FROM generate_series(1, 9) g",
    )
    follow(bridge, rig)

    assert states(rig) == {
        "public.a": "live", "public.b": "live", "public.c": "live", "public.d": "gone",
    }  # fmt: skip
    for table in ("a", "b", "c"):
        assert_equal(rig, connection, table)


def swap(connection: Connection, *more: str) -> None:
    """Swap a and b in one transaction, as a person would; only the catalog tells of it."""
    with connection.transaction():
        for statement in (
            "ALTER TABLE a RENAME TO tmp_",
            "ALTER TABLE b RENAME TO a",
            "ALTER TABLE tmp_ RENAME TO b",
            *more,
        ):
            connection.execute(statement)


def await_renames(bridge: Rig, count: int) -> None:
    """Wait until the bridge has told of so many renames."""
    wait_for(
        lambda: (
            sum(
                str(m.fields.get("content")).count("rename")
                for m in read_stream(bridge.nats.url)
                if m.subject == "cdc._message.bridge-ddl"
            )
            >= count
        ),
        f"{count} renames",
    )


def test_tables_that_swap_names_again_and_again_are_followed(
    bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """Each log has been each relation before; what comes next belongs to its present columns."""
    begin(bridge, "a", "b")
    follow(bridge, rig)
    inserts = [
        [f"INSERT INTO {table} VALUES ({100 + turn}, 'swap {turn}')" for table in tables]
        for turn, tables in enumerate(("ab", "ab", "b", ""))
    ]
    for turn, changes in enumerate(inserts):
        swap(connection, *changes)
        await_renames(bridge, 2 * (turn + 1))
        follow(bridge, rig)
        assert states(rig) == {"public.a": "live", "public.b": "live"}, turn
        with connection.transaction():
            for table in "ab":
                connection.execute(f"UPDATE {table} SET v = 'next {turn}' WHERE id % 2 = 0")
                connection.execute(f"INSERT INTO {table} VALUES ({200 + turn}, 'new')")
        follow(bridge, rig)
        assert states(rig) == {"public.a": "live", "public.b": "live"}, turn
        for table in "ab":
            assert_equal(rig, connection, table)


def test_a_table_created_anew_renamed_and_replaced_before_the_lake_looks(
    bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """KV names b, and the stream still tells of it as a: b is loaded, and not called gone."""
    begin(bridge, "a")
    follow(bridge, rig)
    with connection.transaction():
        connection.execute("DROP TABLE a")
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, v int)")
        connection.execute("INSERT INTO a VALUES (1, 1)")
    with connection.transaction():
        connection.execute("ALTER TABLE a RENAME TO b")
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO a VALUES (2, 'third')")
        connection.execute("INSERT INTO b VALUES (3, 3)")
    wait_for(
        lambda: any(m.subject == "cdc._message.bridge-ddl" for m in read_stream(bridge.nats.url)),
        "what the catalog tells",
    )
    follow(bridge, rig)
    bridge.execute("UPDATE a SET v = 'next'", "UPDATE b SET v = v + 1")
    follow(bridge, rig)

    assert states(rig) == {"public.a": "live", "public.b": "live"}
    for table in "ab":
        assert_equal(rig, connection, table)


@pytest.mark.parametrize("told", [True, False], ids=["event trigger", "catalog alone"])
def test_tables_that_are_renamed_twice_while_the_bridge_is_down_have_their_last_name(
    bridge: Rig, rig: LakeRig, connection: Connection, told: bool
) -> None:
    """Changes in between carry the middle name, which the catalog never shows to the bridge."""
    chains = {"there": ("a", "b", "c"), "back": ("d", "e", "d"), "quiet": ("f", "g", "f")}
    begin(bridge, *(names[0] for names in chains.values()))
    with rig.following() as follower:
        settle(bridge)
        reach_end(follower, rig.nats)
        bridge.stop()
        for kind, (first, middle, last) in chains.items():
            for before, after in ((first, middle), (middle, last)):
                with connection.transaction():
                    if told:
                        rename(connection, before, after)
                    else:
                        connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
                if kind != "quiet" or after == middle:
                    connection.execute(f"UPDATE {after} SET v = '{after}' WHERE id = 1")
        bridge.start()
        settle(bridge)
        wanted = {f"public.{names[-1]}": "live" for names in chains.values()}

        def follows() -> bool:
            reach_end(follower, rig.nats)
            return states(rig) == wanted

        wait_for(follows, "the last names")
        for names in chains.values():
            connection.execute(f"INSERT INTO {names[-1]} VALUES (100, 'later')")
        settle(bridge)
        reach_end(follower, rig.nats)

    assert states(rig) == wanted
    for names in chains.values():
        assert_equal(rig, connection, names[-1])

"""Tables that come, go and get other names under a real bridge, held against PostgreSQL.

The message that an event trigger writes is written by hand, in the transaction of the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.iceberg.reading import LakeReader
from schemas.ddl import DdlEvent, DdlKind, format_ddl
from schemas.names import TableName
from tests.conftest import Connection
from tests.integration.test_lake_loading import assert_equal, follow, settle
from tests.support.lake import LakeRig, reach_end
from tests.support.rig import Rig

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

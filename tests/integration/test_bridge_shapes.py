"""A table's shape in order with its changes, whatever is done to the table, and whenever.

Each case is done twice: live, and while the bridge is down with changes before, between and after.
Positions are PostgreSQL's attnums, which is how a consumer knows a renamed column from a new one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from bridge.jetstream.provision import stream_config
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.shapes import TableShape
from schemas.streams import CDC_STREAM
from tests.conftest import Connection
from tests.support.bridge import wait_for
from tests.support.rig import Rig, announced, changes_of, story_of
from tests.support.stream import administer, read_stream


@pytest.fixture
def rig(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Rig]:
    connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    with Rig(connection, postgres, nats, tmp_path) as rig:
        yield rig


Attnums = dict[str, int]


@dataclass(frozen=True)
class Case:
    """Statements on a table, and the attnums that each shape in its story must have."""

    name: str
    make: str
    steps: tuple[str, ...]
    shapes: tuple[Attnums, ...]

    @property
    def table(self) -> str:
        return f"t_{self.name}"

    def sql(self, statement: str) -> str:
        return statement.replace("$t", self.table)


def _case(name: str, make: str, *steps: str, shapes: tuple[Attnums, ...]) -> Case:
    return Case(name, f"CREATE TABLE $t ({make})", steps, shapes)


# Every table has lost a column before anybody looked, so that an ordinal is never an attnum.
CASES = (
    _case(
        "add",
        "id int PRIMARY KEY, gone int, a text",
        "ALTER TABLE $t ADD b int NOT NULL DEFAULT 7",
        "INSERT INTO $t VALUES (2, 'x', 2)",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 3, "b": 4}),
    ),
    _case(
        "drop",
        "id int PRIMARY KEY, gone int, a text, b text",
        "ALTER TABLE $t DROP a",
        "INSERT INTO $t VALUES (2, 'x')",
        shapes=({"id": 1, "a": 3, "b": 4}, {"id": 1, "b": 4}),
    ),
    _case(
        "rename",
        "id int PRIMARY KEY, gone int, a text",
        "ALTER TABLE $t RENAME a TO b",
        "INSERT INTO $t VALUES (2, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "b": 3}),
    ),
    _case(
        "rename_twice",
        "id int PRIMARY KEY, gone int, a text",
        "ALTER TABLE $t RENAME a TO b",
        "INSERT INTO $t VALUES (2, 'x')",
        "ALTER TABLE $t RENAME b TO c",
        "INSERT INTO $t VALUES (3, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "b": 3}, {"id": 1, "c": 3}),
    ),
    _case(
        "rename_key",
        "id int PRIMARY KEY, gone int, a text",
        "ALTER TABLE $t REPLICA IDENTITY FULL",
        "INSERT INTO $t VALUES (2, 'x')",
        "ALTER TABLE $t RENAME id TO uid",
        "INSERT INTO $t VALUES (3, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 3}, {"uid": 1, "a": 3}),
    ),
    _case(
        "swap_names",
        "id int PRIMARY KEY, gone int, a text, b text",
        "BEGIN; ALTER TABLE $t RENAME a TO c; ALTER TABLE $t RENAME b TO a;"
        " ALTER TABLE $t RENAME c TO b; COMMIT",
        "INSERT INTO $t VALUES (2, 'x', 'y')",
        shapes=({"id": 1, "a": 3, "b": 4}, {"id": 1, "b": 3, "a": 4}),
    ),
    _case(
        "name_taken_again",
        "id int PRIMARY KEY, gone int, a text",
        "ALTER TABLE $t DROP a, ADD a text",
        "INSERT INTO $t VALUES (2, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 4}),
    ),
    _case(
        "name_of_a_renamed",
        "id int PRIMARY KEY, gone int, a text",
        "BEGIN; ALTER TABLE $t RENAME a TO b; ALTER TABLE $t ADD a text; COMMIT",
        "INSERT INTO $t VALUES (2, 'x', 'y')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "b": 3, "a": 4}),
    ),
    _case(
        "passing",
        "id int PRIMARY KEY, gone int, a text",
        "ALTER TABLE $t ADD b int",
        "INSERT INTO $t VALUES (2, 'x', 1)",
        "ALTER TABLE $t DROP b",
        "INSERT INTO $t VALUES (3, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 3, "b": 4}, {"id": 1, "a": 3}),
    ),
    _case(
        "retype",
        "id int PRIMARY KEY, gone int, a int",
        "ALTER TABLE $t ALTER a TYPE numeric(10,2)",
        "INSERT INTO $t VALUES (2, 1.5)",
        "ALTER TABLE $t ALTER a TYPE text",
        "INSERT INTO $t VALUES (3, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 3}, {"id": 1, "a": 3}),
    ),
    _case(
        "not_null",
        "id int PRIMARY KEY, gone int, a text",
        "INSERT INTO $t VALUES (2, NULL)",
        "UPDATE $t SET a = 'x'",
        "ALTER TABLE $t ALTER a SET NOT NULL",
        "INSERT INTO $t VALUES (3, 'x')",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 3}),
    ),
    _case(
        "other_key",
        "id int PRIMARY KEY, gone int, a int NOT NULL",
        "ALTER TABLE $t DROP CONSTRAINT $t_pkey, ADD PRIMARY KEY (a, id)",
        "INSERT INTO $t VALUES (2, 5)",
        shapes=({"id": 1, "a": 3}, {"id": 1, "a": 3}),
    ),
    _case(
        "identity",
        "id int PRIMARY KEY, gone int, a int NOT NULL UNIQUE",
        "ALTER TABLE $t REPLICA IDENTITY FULL",
        "INSERT INTO $t VALUES (2, 5)",
        "ALTER TABLE $t REPLICA IDENTITY USING INDEX $t_a_key",
        "INSERT INTO $t VALUES (3, 6)",
        "ALTER TABLE $t REPLICA IDENTITY DEFAULT",
        "INSERT INTO $t VALUES (4, 7)",
        shapes=({"id": 1, "a": 3},) * 4,
    ),
    _case(
        "types_of_a_dropped",
        "id int PRIMARY KEY, gone int, a whole, b mood[]",
        "ALTER TABLE $t DROP a, DROP b",
        "INSERT INTO $t VALUES (2)",
        shapes=({"id": 1, "a": 3, "b": 4}, {"id": 1}),
    ),
)
FIRST_ROWS = {
    "retype": "(1, 1)",
    "drop": "(1, 'x', 'y')",
    "swap_names": "(1, 'x', 'y')",
    "other_key": "(1, 1)",
    "identity": "(1, 1)",
    "types_of_a_dropped": "(1, 1, '{sad,NULL}')",
}


# What follows in each shape of a table, beside its attnums.
KEYS = {
    "rename_key": [["id"], ["id"], ["uid"]],
    "other_key": [["id"], ["a", "id"]],
    "identity": [["id"], ["id"], ["a"], ["id"]],
}
LAST_TYPES = {
    "retype": [("int32", "integer"), ("decimal(10,2)", "numeric(10,2)"), ("text", "text")],
    "types_of_a_dropped": [("list<text>", "public.mood[]"), ("int32", "integer")],
}
LAST_NULLABLE = {"not_null": [True, False], "add": [True, False]}


def _make_tables(rig: Rig) -> None:
    rig.execute("CREATE DOMAIN whole AS int", "CREATE TYPE mood AS ENUM ('sad')")
    for case in CASES:
        rig.execute(case.sql(case.make), case.sql("ALTER TABLE $t DROP gone"))


def _insert_first(rig: Rig) -> None:
    for case in CASES:
        rig.execute(case.sql(f"INSERT INTO $t VALUES {FIRST_ROWS.get(case.name, '(1, NULL)')}"))


def _attnums(shape: TableShape) -> Attnums:
    return {column.name: column.position for column in shape.columns}


def _assert_told(rig: Rig) -> None:
    stored = rig.stream()
    told = {case.name: announced(stored, case.table) for case in CASES}

    assert {name: [_attnums(shape) for shape in shapes] for name, shapes in told.items()} == {
        case.name: list(case.shapes) for case in CASES
    }
    assert {name: [[c.name for c in shape.key] for shape in told[name]] for name in KEYS} == KEYS
    last = {name: [shape.columns[-1] for shape in shapes] for name, shapes in told.items()}
    assert {
        name: [(str(column.type), column.data_type) for column in last[name]] for name in LAST_TYPES
    } == LAST_TYPES
    assert {
        name: [column.is_nullable for column in last[name]] for name in LAST_NULLABLE
    } == LAST_NULLABLE
    current = {case.name: _attnums(rig.shapes(case.table)[-1]) for case in CASES}
    assert current == {case.name: rig.attnums(case.table) for case in CASES}


def test_live_changes_of_shape_are_told_in_order(rig: Rig) -> None:
    """One step, then its change, then the next: the catalog is never ahead of the stream."""
    _make_tables(rig)
    rig.start()
    _insert_first(rig)
    rig.stream()

    for number in range(max(len(case.steps) for case in CASES)):
        for case in CASES:
            if number < len(case.steps):
                rig.execute(case.sql(case.steps[number]))
        rig.stream()

    _assert_told(rig)


def test_changes_of_shape_while_the_bridge_was_down_are_told_in_order(rig: Rig) -> None:
    """The catalog only knows how it ended; what was known before tells the columns apart."""
    _make_tables(rig)
    rig.start()
    _insert_first(rig)
    rig.stream()
    rig.stop()
    for case in CASES:
        rig.execute(case.sql("UPDATE $t SET id = 100"))
        for step in case.steps:
            rig.execute(case.sql(step))

    rig.start()

    _assert_told(rig)


def test_an_older_shape_does_not_hide_the_current_one(rig: Rig) -> None:
    """Nothing was written since the last change of shape: the latest entry is the catalog's."""
    rig.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    rig.start()
    rig.stop()
    rig.execute(
        "ALTER TABLE t ADD b int",
        "INSERT INTO t VALUES (1, 'x', 2)",
        "ALTER TABLE t DROP a, ADD c int",
    )

    rig.start()

    wait_for(lambda: len(announced(read_stream(rig.nats.url), "t")) == 2, "the column c")
    assert [_attnums(shape) for shape in announced(rig.stream(), "t")] == [
        {"id": 1, "a": 2, "b": 3},
        {"id": 1, "b": 3, "c": 4},
    ]
    assert _attnums(rig.shapes("t")[-1]) == {"id": 1, "b": 3, "c": 4}


def test_whole_tables_come_and_go(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> None:
    """Renamed, dropped and made anew, added: once while the bridge looks, once while it is down."""

    def rename(before: str, after: str) -> tuple[str, ...]:
        return (
            f"INSERT INTO {before} VALUES (nextval('ids'), 'x')",
            f"ALTER TABLE {before} RENAME TO {after}",
            f"ALTER TABLE {after} RENAME a TO {after}_a",
            f"INSERT INTO {after} VALUES (nextval('ids'), 'x')",
        )

    def make_anew() -> tuple[str, ...]:
        return (
            "INSERT INTO anew VALUES (nextval('ids'), 'x')",
            "DROP TABLE anew",
            "CREATE TABLE anew (b text, gone int, id int NOT NULL PRIMARY KEY, a text)",
            "ALTER TABLE anew DROP gone",
            "ALTER PUBLICATION pub ADD TABLE anew",
            "INSERT INTO anew (id, a) VALUES (nextval('ids'), 'x')",
            "ALTER TABLE anew DROP b",
        )

    def add(name: str) -> tuple[str, ...]:
        return (
            f"CREATE TABLE {name} (id int PRIMARY KEY)",
            f"INSERT INTO {name} VALUES (1)",
            f"ALTER PUBLICATION pub ADD TABLE {name}",
            f"INSERT INTO {name} VALUES (2)",
        )

    with Rig(connection, postgres, nats, tmp_path) as rig:
        rig.execute("CREATE SEQUENCE ids")
        for name in ("one", "anew"):
            rig.execute(f"CREATE TABLE {name} (gone int, id int PRIMARY KEY, a text)")
            rig.execute(f"ALTER TABLE {name} DROP gone")
        rig.execute("CREATE PUBLICATION pub FOR TABLE one, anew")
        rig.start()
        for statement in (*rename("one", "two"), *make_anew(), *add("early")):
            rig.execute(statement)
            rig.stream()
        rig.stop()
        rig.execute("ALTER TABLE two RENAME two_a TO a", *rename("two", "three"))
        rig.execute(*make_anew(), *add("late"))

        rig.start()

        stored = rig.stream()
        one = {"id": 2, "a": 3}
        told = {
            name: [_attnums(shape) for shape in announced(stored, name)]
            for name in ("one", "two", "three", "anew", "early", "late")
        }
        assert told == {
            "one": [one],
            "two": [{"id": 2, "two_a": 3}, one],
            "three": [{"id": 2, "three_a": 3}],
            "anew": [
                one,
                {"b": 1, "id": 3, "a": 4},
                {"id": 3, "a": 4},
                {"b": 1, "id": 3, "a": 4},
            ],
            "early": [{"id": 1}],
            "late": [{"id": 1}],
        }
        assert [s.relation_id for s in announced(stored, "one")] == [
            s.relation_id for s in announced(stored, "three")
        ]
        assert len({s.relation_id for s in announced(stored, "anew")}) == 3
        assert [c["data"] for c in changes_of(stored, "early")] == [{"id": 2}]
        assert [c["data"] for c in changes_of(stored, "late")] == [{"id": 2}]
        assert set(rig.bridge.status()["tables"]) >= {"public.three", "public.anew", "public.late"}


def test_shape_and_changes_of_one_transaction_stay_together(rig: Rig) -> None:
    """A transaction sees its own ALTERs: the shape changes between two of its rows."""
    rig.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    rig.start()

    rig.together(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t RENAME a TO b",
        "INSERT INTO t VALUES (2, 'x')",
        "ALTER TABLE t ADD c int NOT NULL DEFAULT 3",
        "UPDATE t SET c = 4",
    )

    stored = rig.stream()
    assert story_of(stored, "t") == ["schema", "insert"] * 2 + ["schema", "update", "update"]
    assert [_attnums(shape) for shape in announced(stored, "t")] == [
        {"id": 1, "a": 2},
        {"id": 1, "b": 2},
        {"id": 1, "b": 2, "c": 3},
    ]
    assert len({change["xid"] for change in changes_of(stored, "t")}) == 1


def test_a_locked_table_holds_nobody_up(rig: Rig, postgres: EmbeddedPostgres) -> None:
    """VACUUM FULL may hold its lock for hours; the catalog's questions must not wait for it."""
    rig.execute("CREATE TABLE locked (id int PRIMARY KEY DEFAULT 7)", "CREATE TABLE free (id int)")
    rig.start()
    rig.bridge.process.send_signal(signal.SIGSTOP)
    rig.execute("INSERT INTO locked DEFAULT VALUES", "INSERT INTO free VALUES (1)")

    with psycopg.connect(postgres.dsn(rig.connection.info.dbname)) as other:
        other.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        rig.bridge.process.send_signal(signal.SIGCONT)
        stored = rig.stream()

    assert story_of(stored, "free") == ["schema", "insert"]
    assert changes_of(stored, "locked")[0]["data"] == {"id": 7}


def test_a_table_that_is_gone_by_now_is_not_stored_twice(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> None:
    """Stored and not confirmed, then renamed, dropped, unpublished: who asks for it by name?"""
    asyncio.run(_make_stream_without_duplicate_window(nats.url))
    unconfirmed = ("--durability", "synced", "--sync-interval", "3600")
    with Rig(connection, postgres, nats, tmp_path, *unconfirmed) as rig:
        names = ("stays", "renamed", "dropped", "unpublished")
        rig.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
        rig.execute(f"CREATE PUBLICATION pub FOR TABLE {', '.join(names)}")
        rig.start()
        for name in names:
            rig.execute(f"INSERT INTO {name} SELECT generate_series(1, 3)")
        rig.stream()
        rig.kill()
        rig.execute(
            "ALTER TABLE renamed RENAME TO other",
            "INSERT INTO other VALUES (4)",
            "INSERT INTO dropped VALUES (4)",
            "DROP TABLE dropped",
            "ALTER PUBLICATION pub DROP TABLE unpublished",
        )

        rig.start()

        stored = rig.stream()
        assert {name: len(changes_of(stored, name)) for name in (*names, "other")} == {
            "stays": 3,
            "renamed": 3,
            "dropped": 4,
            "unpublished": 3,
            "other": 1,
        }


async def _make_stream_without_duplicate_window(url: str) -> None:
    """Let ids absorb nothing: what is stored once must be known to be stored."""
    async with administer(url) as js:
        config = stream_config(CDC_STREAM)
        config.duplicate_window = 0.1
        await js.add_stream(config)

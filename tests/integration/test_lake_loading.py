"""First sight, hand-over, gaps: mirrors from snapshots, by a real bridge, held against PostgreSQL.

What the lake shows is compared with what PostgreSQL holds, value by value; at every cut on the way
money that is moved between two tables must be neither lost nor made.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.batches import Batch
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.table import Cut
from lake_consumer.jetstream.connection import connect
from schemas.codecs import MSGPACK
from schemas.streams import CDC_STREAM
from schemas.subjects import GAP_PREFIX
from tests.conftest import Connection
from tests.support.bridge import wait_for
from tests.support.lake import LakeRig, logical_message, reach_end
from tests.support.rig import Rig
from tests.support.stream import StoredMessage, read_stream

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

ACCOUNTS = 40
TOTAL = 2 * ACCOUNTS * 100
_marks = itertools.count()

_TABLES = f"""
    CREATE TABLE checking (id int PRIMARY KEY, amount int);
    CREATE TABLE savings (id int PRIMARY KEY, amount int);
    INSERT INTO checking SELECT g, 100 FROM generate_series(1, {ACCOUNTS}) g;
    INSERT INTO savings SELECT g, 100 FROM generate_series(1, {ACCOUNTS}) g;
    CREATE TABLE wide (id int, part text, n int, price numeric(12, 2), day date, at timestamptz,
        body text, tags text[], doc jsonb, who uuid, PRIMARY KEY (part, id));
    ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;
    INSERT INTO wide SELECT g, 'p' || g % 3, g, g / 7.0, date '2020-01-01' + g,
        timestamptz '2020-01-01 00:00:00.000001+00' + g * interval '1 s', repeat('é' || g, 5000),
        ARRAY['a', NULL, g::text], jsonb_build_object('g', g), gen_random_uuid()
        FROM generate_series(1, 30) g;
    UPDATE wide SET day = 'infinity', price = 'NaN' WHERE id = 7;
    CREATE TABLE quiet (id int PRIMARY KEY, name text);
    INSERT INTO quiet VALUES (1, 'never changes'), (2, NULL);
    CREATE TABLE void (id int PRIMARY KEY);
    CREATE PUBLICATION pub FOR ALL TABLES;
"""


@pytest.fixture
def bridge(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Rig]:
    with Rig(connection, postgres, nats, tmp_path) as rig:
        yield rig


class Mover:
    """Moves money between two tables, and touches rows of a third in every way there is."""

    def __init__(self, dsn: str, seed: int = 7) -> None:
        self._dsn = dsn
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next = 1_000

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.is_set():
                with connection.transaction():
                    self._transaction(connection)
                self._stop.wait(0.05)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        source, target = chance.sample(("checking", "savings"), 2)
        for table, sign in ((source, -1), (target, 1)):
            connection.execute(
                f"UPDATE {table} SET amount = amount + %s WHERE id = %s",
                [sign * 7, chance.randint(1, ACCOUNTS)],
            )
        key, self._next = chance.randint(1, 30), self._next + 1
        connection.execute(*chance.choice((
            ("UPDATE wide SET n = n + 1 WHERE id = %s", [key]),
            ("UPDATE wide SET id = %s WHERE id = %s AND id > 20", [self._next, key]),
            ("UPDATE wide SET body = 'short' WHERE id = %s", [key]),
            ("DELETE FROM wide WHERE id = %s AND id < 5", [key]),
            ("INSERT INTO wide (part, id, body) VALUES ('new', %s, repeat('x', 9000))",
             [self._next]),
        )))  # fmt: skip

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a writer hangs"


class DiesBeforeTheCut(Lake):
    """Has loaded its mirrors, and is gone before any cut says so."""

    def _cut(self, batch: Batch, cuts: list[Cut]) -> None:
        if batch.first > batch.last:
            raise ConnectionAbortedError
        super()._cut(batch, cuts)


def test_tables_begin_with_a_snapshot_while_they_are_written(
    bridge: Rig, rig: LakeRig, postgres: EmbeddedPostgres, connection: Connection
) -> None:
    """No gap and no overlap, a kill in the middle, and every cut is a state the database was in."""
    bridge.execute(*filter(str.strip, _TABLES.split(";")))
    bridge.start()
    with Mover(postgres.dsn(connection.info.dbname)):
        with pytest.raises(ConnectionAbortedError):
            rig.catch_up(lake_class=DiesBeforeTheCut)
        assert not list(rig.at_cuts("public.checking")), "a mirror is shown that no cut names"

        with rig.following() as follower:
            reach_end(follower, rig.nats)
            rig.resync("savings")
            follower.load()
            follower.step(None)
            reach_end(follower, rig.nats)

    follow(bridge, rig)

    for table in ("checking", "savings", "wide", "quiet", "void"):
        assert_equal(rig, connection, table)
    shown = [found["public.quiet"] for _, found in rig.at_cuts("public.quiet", "public.void")]
    assert shown, "a table that never changes was loaded, and no cut says so"
    assert sorted(row["id"] for row in shown[-1]) == [1, 2]
    sums = [
        sum(row["amount"] for rows in found.values() for row in rows)
        for _, found in rig.at_cuts("public.checking", "public.savings")
    ]
    assert len(sums) >= 3, "too few cuts to prove anything"
    assert set(sums) == {TOTAL}
    unreadable = [
        row
        for row in rig.cuts()
        if row["table_name"] == "public.savings" and not row["snapshot_id"]
    ]
    assert unreadable, "savings was never being loaded while others went on"


def test_a_gap_is_said_loudly_and_healed_by_new_snapshots(
    bridge: Rig, rig: LakeRig, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expired, deleted inside, and marked by the bridge: each time the mirrors are right again."""
    bridge.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text)",
        "INSERT INTO users VALUES (1, 'ann')",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    bridge.start()
    bridge.execute("INSERT INTO users VALUES (2, 'bob')")
    settle(bridge)
    rig.catch_up()
    assert_equal(rig, connection, "users")
    readable = rig.cuts()[-1]["stream_seq"]

    bridge.execute("DELETE FROM users WHERE id = 1", "INSERT INTO users VALUES (3, 'cy')")
    settle(bridge)
    with _js(rig) as run:
        run("purge_stream", CDC_STREAM.name)
    rig.catch_up()

    assert_equal(rig, connection, "users")
    said = capsys.readouterr().out
    assert "changes are missing from the stream" in said
    assert f"sequences={readable + 1}-" in said
    assert f"lacks stream sequence {readable + 1}-" in rig.notes()["public__changes.users"]

    bridge.execute(*(f"INSERT INTO users VALUES ({key}, 'x')" for key in range(10, 15)))
    end = settle(bridge)
    with _js(rig) as run:
        run("delete_msg", CDC_STREAM.name, end - 2)
    bridge.execute("UPDATE users SET name = 'z' WHERE id = 12")
    settle(bridge)
    rig.catch_up()

    assert_equal(rig, connection, "users")
    assert f"sequences={end - 2}" in capsys.readouterr().out
    logged = [row["new"]["id"] for row in rig.log("users") if row["stream_seq"] > readable]
    assert logged == [10, 11, 13, 14, 12]

    bridge.stop()
    mark = logical_message(GAP_PREFIX)
    with _js(rig) as run:
        run("publish", mark.subject, MSGPACK.encode(mark.to_map()))
    bridge.start()
    bridge.execute("DELETE FROM users WHERE id = 13")
    settle(bridge)
    rig.catch_up()

    assert_equal(rig, connection, "users")
    assert "PostgreSQL dropped changes before they were read" in capsys.readouterr().out


def test_shapes_change_and_the_mirror_stays_postgresqls(
    bridge: Rig, rig: LakeRig, connection: Connection
) -> None:
    """In place if Iceberg can, else by a snapshot that is requested without anyone's help."""
    bridge.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text, n numeric(10, 2), v text)",
        "INSERT INTO users VALUES (1, 'ann', 1.5, '1'), (2, 'bob', 2.5, '2')",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    bridge.start()
    bridge.execute("INSERT INTO users VALUES (3, 'cy', 3.5, '3')")
    follow(bridge, rig)
    before = rig.cuts()[-1]["snapshot_id"]
    bridge.execute(
        "ALTER TABLE users ALTER n TYPE numeric(14, 2), ALTER name SET NOT NULL",
        "ALTER TABLE users RENAME name TO title",
        "ALTER TABLE users ADD COLUMN note text",
        "INSERT INTO users VALUES (5, 'dee', 123456789012.25, '4', 'in place')",
        "ALTER TABLE users ALTER title DROP NOT NULL",
        "UPDATE users SET title = NULL WHERE id = 2",
    )
    with rig.following() as follower:
        settle(bridge)
        follower.step(None)
        assert not rig.notes(), "what Iceberg can do in place needs no snapshot"
        assert_equal(rig, connection, "users")

        # PostgreSQL rewrites the table, and the catalog does not show whether USING was there.
        bridge.execute(
            "ALTER TABLE users ALTER id TYPE bigint",
            "INSERT INTO users VALUES (5000000000, 'eve', 1, '5')",
        )
        settle(bridge)
        reach_end(follower, rig.nats)
        assert not rig.notes()
        assert_equal(rig, connection, "users")

        bridge.execute(
            "ALTER TABLE users ADD COLUMN rank int NOT NULL DEFAULT 7",
            "ALTER TABLE users ALTER rank DROP DEFAULT",
            "UPDATE users SET title = 'ann 2' WHERE id = 1",
        )
        settle(bridge)
        reach_end(follower, rig.nats)
        assert_equal(rig, connection, "users")

        bridge.execute(
            "ALTER TABLE users DROP COLUMN note",
            "ALTER TABLE users ALTER v TYPE int USING v::int",
            "UPDATE users SET v = 40 WHERE id = 1",
            "INSERT INTO others VALUES (1)",
            "CREATE TABLE added (id int PRIMARY KEY, w text)",
            "INSERT INTO added VALUES (1, 'new')",
        )
        settle(bridge)
        follower.step(None)
        assert "loading: column v changed from text to" in rig.notes()["public__changes.users"]
        reach_end(follower, rig.nats)

        assert not rig.notes()
        assert_equal(rig, connection, "users")
        assert_equal(rig, connection, "others")
        assert_equal(rig, connection, "added")
        logged = [(row["new"]["v__4"], row["new"]["v"]) for row in rig.log("users")]
        assert logged[-2:] == [("1", None), (None, 40)]

        assert "built anew" in rig.resync("users")
        follower.load()
        assert "resync was asked for" in rig.notes()["public__changes.users"]
        reach_end(follower, rig.nats)
    assert not rig.notes()
    assert_equal(rig, connection, "users")
    old = {row["id"]: (row["name"], row["v"]) for row in rig.mirror_at("users", before)}
    assert old == {1: ("ann", "1"), 2: ("bob", "2"), 3: ("cy", "3")}

    bridge.execute(
        "ALTER TABLE users DROP CONSTRAINT users_pkey",
        "ALTER TABLE users ADD PRIMARY KEY (rank, id)",
        "DELETE FROM users WHERE id = 3",
        "DROP TABLE others",
        "CREATE TABLE others (name text PRIMARY KEY, id text)",
        "INSERT INTO others VALUES ('x', 'y')",
    )
    follow(bridge, rig)

    assert_equal(rig, connection, "users")
    assert_equal(rig, connection, "others")


def follow(bridge: Rig, rig: LakeRig) -> None:
    """Bring all that was committed into the lake."""
    settle(bridge)
    rig.catch_up()


def settle(bridge: Rig) -> int:
    """Wait until all that was committed is stored; gives the sequence of the last change.

    Not by `bridge.stream`: a stream that lost its beginning describes itself no more.
    """
    mark = f"settled{next(_marks)}"
    bridge.connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [mark])
    url = bridge.nats.url

    def stored() -> list[StoredMessage] | None:
        # What the bridge finds by itself, by a look at the catalog, may follow the mark.
        messages = read_stream(url)
        return messages if any(m.subject.endswith(f".{mark}") for m in messages) else None

    return max((m.sequence for m in wait_for(stored, mark) if m.is_change), default=0)


@contextmanager
def _js(rig: LakeRig) -> Iterator[Any]:
    """Do one thing to the stream, as an administrator would."""

    async def run(method: str, *args: Any) -> None:
        client = await connect(rig.nats)
        await getattr(client.jetstream(), method)(*args)
        await client.close()

    yield lambda method, *args: asyncio.run(run(method, *args))


def assert_equal(rig: LakeRig, connection: Connection, table: str) -> None:
    """Let PostgreSQL write every value of both sides as text, and compare."""
    schema, _, name = table.rpartition(".")
    cursor = connection.execute(f'SELECT * FROM {schema or "public"}."{name}"')
    names = [column.name for column in cursor.description or ()]
    expected = sorted(map(repr, (tuple(map(str, row)) for row in _texts(connection, table, names))))
    shown = sorted(
        map(repr, (_told(connection, table, row, names) for row in rig.unordered(table)))
    )
    assert shown == expected, table


def _texts(connection: Connection, table: str, names: list[str]) -> list[tuple[Any, ...]]:
    cells = ", ".join(f'"{name}"::text' for name in names)
    return connection.execute(f"SELECT {cells} FROM {table}").fetchall()


def _told(
    connection: Connection, table: str, row: dict[str, Any], names: list[str]
) -> tuple[str, ...]:
    """What PostgreSQL makes of a row of the mirror when it reads it back."""
    assert set(row) == {*names, "_bridge_text"}, f"{table}: {sorted(row)}"
    texts = row["_bridge_text"] or {}
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        [table],
    )
    types = {str(name): str(kind) for name, kind in found}
    cells = [f"%s::{types[name]}::text" for name in names]
    values = [texts.get(name, row[name]) for name in names]
    told = connection.execute(f"SELECT {', '.join(cells)}", values).fetchone()
    return tuple(map(str, told or ()))

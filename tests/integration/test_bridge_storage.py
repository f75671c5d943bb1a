"""What the bridge reads of published tables: the same tables as PostgreSQL says, at any number."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from bridge.postgres import storage
from bridge.postgres.catalog import before_header
from bridge.storage import TableStorage, compare
from examples.embedded import EmbeddedPostgres
from schemas.positions import Lsn
from tests.conftest import Connection

TABLES = (
    "CREATE SCHEMA s",
    "CREATE SCHEMA s2",
    "CREATE TABLE plain (id int PRIMARY KEY, v text)",
    "CREATE TABLE s.plain (id int PRIMARY KEY)",
    "CREATE TABLE heir () INHERITS (plain)",
    "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE s.low PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE mid PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    "CREATE TABLE s2.leaf PARTITION OF mid FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE s.root2 (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE leaf2 PARTITION OF s.root2 FOR VALUES FROM (0) TO (10)",
)
PUBLICATIONS = (
    "FOR ALL TABLES",
    "FOR TABLES IN SCHEMA s",
    "FOR TABLES IN SCHEMA s, s2, public",
    "FOR TABLE plain, root",
    "FOR TABLE mid, s2.leaf, root",
    "FOR TABLE mid, TABLES IN SCHEMA s2",
    "FOR TABLE s.root2, s2.leaf, ONLY plain, TABLES IN SCHEMA s",
    "",
)


def test_the_published_tables_are_those_that_postgres_lists(
    connection: Connection, postgres: EmbeddedPostgres
) -> None:
    """One query for all and one for each, beside PostgreSQL's own list."""
    for statement in TABLES:
        connection.execute(statement)
    names = []
    for at, what in enumerate(PUBLICATIONS):
        for root in ("true", "false"):
            names.append(f"pub_{at}_{root}")
            connection.execute(
                f"CREATE PUBLICATION {names[-1]} {what} WITH (publish_via_partition_root = {root})"
            )
    relations = [
        int(str(oid))
        for (oid,) in connection.execute("SELECT oid::bigint FROM pg_class WHERE oid >= 16384")
    ]

    async def read() -> None:
        async with await psycopg.AsyncConnection.connect(
            postgres.dsn(connection.info.dbname), autocommit=True, row_factory=dict_row
        ) as source:
            for name in names:
                listed = {
                    row[0]
                    for row in connection.execute(
                        "SELECT relid::bigint FROM pg_get_publication_tables(%s)", [name]
                    )
                }
                reading = await storage.read_storage(source, name)
                states = await storage.relation_states(source, name, relations)
                assert set(reading.tables) == listed, name
                assert {one for one, state in states.items() if state.is_published} == listed, name
                for one in relations:
                    alone = await storage.read_storage(source, name, [one])
                    assert alone.tables == {
                        found: table for found, table in reading.tables.items() if found == one
                    }

    asyncio.run(read())


UNSEEN = "UPDATE s.plain SET v = 'unseen' WHERE id = 1"
FLICKERS = {
    "operations": ("ALTER PUBLICATION pub SET (publish = 'insert')", UNSEEN,
                   "ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')"),
    "name": ("ALTER PUBLICATION pub RENAME TO other", UNSEEN,
             "ALTER PUBLICATION other RENAME TO pub"),
    "via root": ("ALTER PUBLICATION pub SET (publish_via_partition_root = true)", UNSEEN,
                 "ALTER PUBLICATION pub SET (publish_via_partition_root = false)"),
    "created again": ("DROP PUBLICATION pub", UNSEEN, "CREATE PUBLICATION pub {}"),
}  # fmt: skip
"""What leaves a change out and is undone in the same transaction."""

BY_TABLE = {
    "membership": ("ALTER PUBLICATION pub DROP TABLE s.plain", UNSEEN,
                   "ALTER PUBLICATION pub ADD TABLE s.plain"),
    "row filter": ("ALTER PUBLICATION pub SET TABLE s.plain WHERE (false)", UNSEEN,
                   "ALTER PUBLICATION pub SET TABLE s.plain"),
}  # fmt: skip
BY_SCHEMA = {
    "schema": ("ALTER TABLE s.plain SET SCHEMA s2", UNSEEN.replace("s.", "s2."),
               "ALTER TABLE s2.plain SET SCHEMA s"),
    "membership": ("ALTER PUBLICATION pub DROP TABLES IN SCHEMA s", UNSEEN,
                   "ALTER PUBLICATION pub ADD TABLES IN SCHEMA s"),
}  # fmt: skip
HARMLESS = (
    "VACUUM FULL s.plain", "ANALYZE s.plain", "GRANT SELECT ON s.plain TO PUBLIC",
    "COMMENT ON PUBLICATION pub IS 'ours'", "CREATE INDEX ON s.plain (v)",
    "VACUUM FREEZE pg_publication", "CREATE TABLE s2.other (id int PRIMARY KEY)",
    "ALTER TABLE s.plain RENAME TO name", "ALTER TABLE s.name RENAME TO plain",
)  # fmt: skip


@pytest.mark.parametrize(
    ("what", "flickers"),
    [
        ("FOR TABLE s.plain", FLICKERS | BY_TABLE),
        ("FOR TABLES IN SCHEMA s", FLICKERS | BY_SCHEMA),
        ("FOR ALL TABLES", FLICKERS),
    ],
)
def test_what_was_changed_and_changed_back_between_two_looks_leaves_a_trace(
    connection: Connection, postgres: EmbeddedPostgres, what: str, flickers: dict[str, Any]
) -> None:
    """PostgreSQL sends no change that the publication does not cover at that moment."""
    for statement in ("CREATE SCHEMA s", "CREATE SCHEMA s2", f"CREATE PUBLICATION pub {what}"):
        if "PUBLICATION" in statement:
            connection.execute("CREATE TABLE s.plain (id int PRIMARY KEY, v text)")
            connection.execute("INSERT INTO s.plain VALUES (1, 'seen')")
        connection.execute(statement)

    async def look() -> TableStorage:
        async with await psycopg.AsyncConnection.connect(
            postgres.dsn(connection.info.dbname), autocommit=True, row_factory=dict_row
        ) as source:
            (table,) = (
                table.storage
                for table in (await storage.read_storage(source, "pub")).tables.values()
                if str(table.name) == "s.plain"
            )
            return table

    def traces(*statements: str) -> tuple[str, ...]:
        before = asyncio.run(look())
        for statement in statements:
            connection.execute(statement)
        return compare(before, asyncio.run(look()), is_watched=True, truncated_by=())

    assert traces(*HARMLESS) == ()
    for name, statements in flickers.items():
        assert traces("BEGIN", *(one.format(what) for one in statements), "COMMIT"), name


def test_a_look_reaches_as_far_as_the_transactions_that_it_sees(
    connection: Connection, postgres: EmbeddedPostgres
) -> None:
    """Their WAL may be unwritten; acting on the look before it is read would overtake changes."""
    connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    connection.execute("SET synchronous_commit = off")

    async def look() -> None:
        async with await psycopg.AsyncConnection.connect(
            postgres.dsn(connection.info.dbname), autocommit=True, row_factory=dict_row
        ) as source:
            for number in range(30):
                connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                reading = await storage.read_storage(source, "pub")
                assert len(reading.tables) == number + 1
                assert reading.seen_at >= before_header(Lsn.parse(str(row[0])))

    asyncio.run(look())


@pytest.mark.parametrize(
    ("position", "end"),
    [("0/2000018", "0/2000000"), ("0/1002018", "0/1002000"), ("1/1000028", "1/1000000"),
     ("0/1002028", "0/1002028"), ("0/1002020", "0/1002020"), ("0/1000040", "0/1000040")],
)  # fmt: skip
def test_a_page_that_only_has_its_header_ends_where_it_begins(position: str, end: str) -> None:
    """No record ends behind a header, so a reader would never come there."""
    assert before_header(Lsn.parse(position)) == Lsn.parse(end)


@pytest.mark.parametrize("listed", [False, True])
def test_the_effort_grows_with_the_tables_and_not_with_their_square(
    connection: Connection, listed: bool
) -> None:
    """The list of 5,000 tables took 25 seconds, and it is read every three."""

    def pages(upto: int) -> int:
        connection.execute(
            f"DO $$ BEGIN FOR i IN {upto // 4}..{upto - 1} LOOP EXECUTE"
            " format('CREATE TABLE s.t%s (id int)', i); END LOOP; END $$"
        )
        if listed:
            names = ", ".join(f"s.t{at}" for at in range(upto // 4, upto))
            connection.execute(f"ALTER PUBLICATION pub ADD TABLE {names}")
        connection.execute("ANALYZE")
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {storage._TABLES}"
        asked = {"publication": "pub", "only": None}
        found: Any = psycopg.ClientCursor(connection).execute(query, asked).fetchone()
        plan = found[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    connection.execute("CREATE SCHEMA s")
    connection.execute(f"CREATE PUBLICATION pub {'' if listed else 'FOR TABLES IN SCHEMA s'}")

    few = pages(400)
    many = pages(1_600)

    assert many < few * 8

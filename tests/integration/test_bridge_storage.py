"""What the bridge reads of published tables: the same tables as PostgreSQL says, at any number."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from bridge.postgres import storage
from examples.embedded import EmbeddedPostgres
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

"""All tables of `ddlcases` in one database, published, and altered while a writer is at work."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats
import psycopg
from nats.js.errors import NotFoundError
from psycopg import sql

from schemas.names import TableName
from schemas.streams import CDC_STREAM
from tests.support.bridge import wait_for
from tests.support.ddlcases import CASES, Case
from tests.support.rig import Rig

SEED = 20_260_101


@dataclass(frozen=True, slots=True)
class Placed:
    """A case with the schema it lives in."""

    case: Case
    schema: str

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.case.table)

    def place(self, statement: str) -> sql.SQL:
        return sql.SQL(statement.replace("{schema}", self.schema))


def place(cases: Iterable[Case] = CASES) -> tuple[Placed, ...]:
    return tuple(Placed(case, f"c{number:03d}") for number, case in enumerate(cases))


class Writer:
    """Changes rows 1 and 2 of every table, and those from 100 on, until it is told to stop."""

    def __init__(self, dsn: str, tables: Sequence[TableName], seed: int = SEED) -> None:
        self._dsn = dsn
        self._tables = tables
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next = 100

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the writer hangs"

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '200ms'")
            while not self._stop.is_set():
                for table in self._tables:
                    # The table may be gone, locked, or of another shape by now.
                    with suppress(psycopg.Error):
                        self._change(connection, table)
                    if self._stop.is_set():
                        return

    def _change(self, connection: psycopg.Connection[Any], table: TableName) -> None:
        self._next += 1
        name = sql.Identifier(table.schema, table.table)
        statement, key = self._chance.choice((
            ("INSERT INTO {} (id) VALUES (%s)", self._next),
            ("UPDATE {} SET id = id WHERE id = %s", self._chance.choice((1, 2))),
            ("DELETE FROM {} WHERE id = %s", self._next - 2 * len(self._tables)),
        ))  # fmt: skip
        connection.execute(sql.SQL(statement).format(name), [key])


class DdlPipeline:
    """A database with all tables, and the bridge that follows it."""

    def __init__(self, bridge: Rig, dsn: str, placed: Sequence[Placed]) -> None:
        self.bridge = bridge
        self.dsn = dsn
        self.placed = placed
        self._looks = 0

    def begin(self) -> None:
        """Create and publish every table, start the bridge, and send the rows through it."""
        execute = self.bridge.connection.execute
        published = []
        for one in self.placed:
            execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(one.schema)))
            self._run(one, one.case.create)
            published += [f"{one.schema}.{table}" for table in one.case.published]
        self.bridge.execute(
            f"CREATE PUBLICATION pub FOR TABLE {', '.join(published)}"
            " WITH (publish_via_partition_root = true)"
        )
        self.bridge.start()
        for one in self.placed:
            self._run(one, one.case.rows)

    def alter(self) -> None:
        """Run the statements of all cases, while a writer is at work."""
        with Writer(self.dsn, [one.table for one in self.placed]):
            for one in self.placed:
                self._run(one, one.case.statements)

    def _run(self, placed: Placed, statements: Sequence[str]) -> None:
        connection = self.bridge.connection
        connection.execute(
            sql.SQL("SET search_path = {}, public").format(sql.Identifier(placed.schema))
        )
        for statement in statements:
            try:
                connection.execute(placed.place(statement), prepare=False)
            except psycopg.Error as error:
                raise AssertionError(f"{placed.case.id}: {statement}: {error}") from error

    def settle(self) -> None:
        """Wait until the stream holds all that was committed, and all that the bridge says of it.

        A bridge that learns of DDL by looking at the catalog announces a table that is new there in
        the same look as everything before.
        """
        self._looks += 1
        name = f"look{self._looks}"
        self.bridge.execute(
            f"CREATE TABLE public.{name} (id int PRIMARY KEY)",
            f"ALTER PUBLICATION pub ADD TABLE public.{name}",
        )
        self._await(f"cdc.{name}.schema")
        mark = f"settled{self._looks}"
        self.bridge.connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [mark])
        self._await(f"cdc._message.{mark}")

    def _await(self, subject: str) -> None:
        url = self.bridge.nats.url
        wait_for(lambda: asyncio.run(_is_stored(url, subject)), subject)


async def _is_stored(url: str, subject: str) -> bool:
    client = await nats.connect(url)
    try:
        await client.jetstream().get_last_msg(CDC_STREAM.name, subject)
    except NotFoundError:
        return False
    finally:
        await client.close()
    return True

"""Requests of `forget`, carried out against a lake in memory."""

from __future__ import annotations

from typing import Any

from lake_consumer.iceberg.forgetting import Forgetter
from lake_consumer.requests import FORGET_PREFIX, Identity, Request
from lake_consumer.tablestates import TableState
from schemas.names import TableName

TABLES = [TableName("public", f"t{at}") for at in range(5)]


class MemoryLake:
    """Stands for tables, states and names of a lake, and counts what is read of all tables."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.held = {table: Identity(str(table), at) for at, table in enumerate(TABLES)}
        self.readings = 0
        self.forgotten: list[TableName] = []

    def wishes(self) -> dict[str, str]:
        return {k: v for one in self.requests for k, v in one.to_property(FORGET_PREFIX).items()}

    def identities(self) -> dict[TableName, Identity]:
        self.readings += 1
        return dict(self.held)

    def exists(self, name: object) -> bool:  # noqa: ARG002
        return False

    def get(self, table: TableName) -> TableState:  # noqa: ARG002
        return TableState("live")

    def forget(self, table: TableName) -> None:
        del self.held[table]
        self.forgotten.append(table)

    def forget_names(self, table: TableName) -> None:
        pass


def carry_out(requests: list[Request]) -> tuple[list[TableName | None], MemoryLake]:
    lake: Any = MemoryLake(requests)
    forgetter = Forgetter(lake, lake, lake)
    return [forgetter.forget(request, 7) for request in forgetter.requests()], lake


def test_a_round_reads_the_tables_of_the_lake_once() -> None:
    """Every change log is loaded for that, and no batch is applied meanwhile."""
    purges = [Request(table=table, identity=Identity(str(table), at), purge=True, force=True)
              for at, table in enumerate(TABLES)]  # fmt: skip

    named, lake = carry_out(purges)

    assert named == lake.forgotten == TABLES
    assert lake.readings == 1


def test_a_table_that_the_round_removed_is_not_found_again() -> None:
    """Two names may have been requested for one table, which was renamed in between."""
    meant = Identity(str(TABLES[0]), 0)
    both = [Request(table=table, identity=meant, purge=True, force=True)
            for table in (TABLES[0], TableName("public", "former"))]  # fmt: skip

    named, lake = carry_out(both)

    assert sorted(named, key=str) == [None, TABLES[0]]
    assert lake.forgotten == [TABLES[0]]


def test_without_a_request_nothing_is_read() -> None:
    assert carry_out([])[1].readings == 0

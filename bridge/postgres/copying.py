"""What to COPY of a table, and what has to be known of it before.

Bounds of a key range are session settings that the query reads back, because COPY takes no
parameters and a value never becomes part of a statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from schemas.names import TableName
from schemas.shapes import Column

Connection = psycopg.AsyncConnection[DictRow]

BIG_TABLE_PAGES = 1_024
"""Below this, one reader is as fast as several."""

_RELATION = """
    SELECT c.oid::bigint AS relation_id, c.relkind::text AS kind, c.reltuples::bigint AS estimate,
           pg_relation_size(c.oid) / current_setting('block_size')::int AS pages,
           am.amname AS access_method,
           coalesce((SELECT string_agg(t.relid || '=' || coalesce(pg_relation_filenode(t.relid), 0),
                                       ',' ORDER BY t.relid::oid)
                       FROM pg_partition_tree(c.oid) t),
                    pg_relation_filenode(c.oid)::text) AS files
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_am am ON am.oid = c.relam
     WHERE n.nspname = %s AND c.relname = %s
"""
_ROW_FILTER = """
    SELECT rowfilter FROM pg_publication_tables
     WHERE pubname = %s AND schemaname = %s AND tablename = %s
"""
ROW_FILTERS_SINCE = 150000


@dataclass(frozen=True, slots=True)
class Storage:
    """How PostgreSQL stores a relation; two equal ones saw no rewrite or truncate in between."""

    relation_id: int
    kind: str
    estimate: int
    pages: int
    is_heap: bool
    files: str

    @property
    def is_divisible(self) -> bool:
        """Whether ranges of pages are worth reading side by side."""
        return self.kind == "r" and self.is_heap and self.pages >= BIG_TABLE_PAGES

    def holds_the_same_as(self, other: Storage | None) -> bool:
        return other is not None and (self.relation_id, self.files) == (
            other.relation_id,
            other.files,
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a key range: the first columns of the key, and the setting of each value."""

    columns: tuple[Column, ...]
    values: tuple[str, ...]
    operator: str
    prefix: str

    @property
    def settings(self) -> dict[str, str]:
        return {f"walbridge.{self.prefix}_{n}": value for n, value in enumerate(self.values)}

    @property
    def condition(self) -> str:
        left = ", ".join(quote(column.name) for column in self.columns)
        right = ", ".join(
            f"current_setting('{name}')::{column.data_type}"
            for name, column in zip(self.settings, self.columns, strict=True)
        )
        return f"ROW({left}) {self.operator} ROW({right})"


def key_bounds(
    key: Sequence[Column], from_key: Sequence[str], to_key: Sequence[str]
) -> tuple[Bound, ...]:
    """Say which ends a range has: from inclusive, to exclusive."""
    ends = ((from_key, ">=", "from"), (to_key, "<", "to"))
    return tuple(
        Bound(tuple(key[: len(values)]), tuple(values), operator, prefix)
        for values, operator, prefix in ends
        if values
    )


def copy_query(
    table: TableName,
    columns: Sequence[Column],
    *,
    kind: str = "r",
    row_filter: str | None = None,
    bounds: Sequence[Bound] = (),
    pages: tuple[int, int | None] = (0, None),
) -> str:
    """Write the COPY of a table, or of a part of it."""
    conditions = [f"({row_filter})"] if row_filter else []
    conditions += [bound.condition for bound in bounds]
    first, end = pages
    if first:
        conditions.append(f"ctid >= '({first},0)'::tid")
    if end is not None:
        conditions.append(f"ctid < '({end},0)'::tid")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # Rows of a partition arrive as the root's; rows of a table that merely inherits do not.
    only = "" if kind == "p" else "ONLY "
    names = ", ".join(quote(column.name) for column in columns)
    # Names are quoted, the filter is the catalog's own text, and values are settings.
    return f"COPY (SELECT {names} FROM {only}{qualified(table)}{where}) TO STDOUT"  # noqa: S608


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def qualified(table: TableName) -> str:
    return f"{quote(table.schema)}.{quote(table.table)}"


async def find_storage(clerk: Connection, table: TableName) -> Storage | None:
    row = await (await clerk.execute(_RELATION, [table.schema, table.table])).fetchone()
    if row is None:
        return None
    return Storage(
        relation_id=row["relation_id"],
        kind=row["kind"],
        estimate=max(0, row["estimate"]),
        pages=row["pages"] or 0,
        is_heap=row["access_method"] == "heap",
        files=row["files"] or "",
    )


async def find_row_filter(clerk: Connection, publication: str, table: TableName) -> str | None:
    """Give the publication's WHERE for a table, as the catalog writes it."""
    if clerk.info.server_version < ROW_FILTERS_SINCE:
        return None
    parameters = [publication, table.schema, table.table]
    row = await (await clerk.execute(_ROW_FILTER, parameters)).fetchone()
    return row["rowfilter"] if row else None


async def may_select(clerk: Connection, relation_id: int) -> bool:
    query = "SELECT has_table_privilege(%s::oid, 'SELECT') AS may"
    row = await (await clerk.execute(query, [relation_id])).fetchone()
    return bool(row and row["may"])


async def published_names(clerk: Connection, publication: str) -> list[TableName]:
    query = (
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2"
    )
    rows = await (await clerk.execute(query, [publication])).fetchall()
    return [TableName(row["schemaname"], row["tablename"]) for row in rows]


async def check_bounds(clerk: Connection, bounds: Sequence[Bound]) -> str | None:
    """Let PostgreSQL read every value as its column's type; say what it does not like."""
    for bound in bounds:
        for value, column in zip(bound.values, bound.columns, strict=True):
            query = f"SELECT %s::text::{column.data_type}".encode()
            try:
                await clerk.execute(query, [value])
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                return " ".join(str(error).split())
    return None

"""Are the lake and the database equal? PostgreSQL is the judge.

The lake's rows are copied back into PostgreSQL, into a temporary table of the original's types,
and PostgreSQL compares the text of every value: a digit, a time zone, a NULL or an empty string
more or less is a difference. Only jsonb is compared by PostgreSQL's equality, where 1.0 is 1.00.
Nothing of the pipeline's own code reads a value here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from schemas.names import TableName
from schemas.subjects import Operation

TEXT_COLUMN = "_bridge_text"
"""PostgreSQL's own text of values that their lake column cannot hold, such as an infinite date."""

SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """How one table compares."""

    table: TableName
    database_rows: int
    lake_rows: int
    missing: Sequence[str]
    """Rows of the database that the lake does not have, as PostgreSQL writes them."""
    surplus: Sequence[str]
    """Rows of the lake that the database does not have."""
    written: Mapping[Operation, int]
    logged: Mapping[Operation, int]

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus and self.written == self.logged

    def explain(self) -> Iterable[str]:
        """Say what differs, with a few rows of each kind."""
        found = {"only in PostgreSQL": self.missing, "only in the lake": self.surplus}
        for kind, rows in found.items():
            if rows:
                yield f"{self.table}: {len(rows):,} rows {kind}, such as"
                yield from (f"  {row[:300]}" for row in rows[:SAMPLES])
        if self.written != self.logged:
            yield f"{self.table}: written {self.written}, in the change log {self.logged}"


def judge(
    connection: psycopg.Connection,
    catalog: Catalog,
    table: TableName,
    changes: Counter[tuple[TableName, Operation]],
) -> TableVerdict:
    """Compare a table with its mirror, and what was done to it with its change log."""
    mirror = scan(catalog, table)
    log = scan(catalog, changes_of(table), fields=("operation",))
    missing, surplus = differences(connection, table, mirror)
    return TableVerdict(
        table=table,
        database_rows=_count(connection, table),
        lake_rows=mirror.num_rows,
        missing=missing,
        surplus=surplus,
        written={done: count for (of, done), count in changes.items() if of == table and count},
        logged=dict(Counter(log.column("operation").to_pylist())),
    )


def differences(
    connection: psycopg.Connection, table: TableName, mirror: pa.Table
) -> tuple[list[str], list[str]]:
    """Return the rows that only the database has and those that only the lake has."""
    original = sql.Identifier(table.schema, table.table)
    columns = [name for name in mirror.column_names if name != TEXT_COLUMN]
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL extra_float_digits = 1")
        connection.execute(sql.SQL("CREATE TEMPORARY TABLE from_lake (LIKE {})").format(original))
        names = sql.SQL(", ").join(sql.Identifier(name) for name in columns)
        copy_in = sql.SQL("COPY from_lake ({}) FROM STDIN").format(names)
        with connection.cursor().copy(copy_in) as copy:
            for row in mirror.to_pylist():
                copy.write_row([_cell(row, name) for name in columns])
        lake, values = sql.Identifier("from_lake"), _values(connection, table)
        return (
            _only_in(connection, values, original, lake),
            _only_in(connection, values, lake, original),
        )


def scan(
    catalog: Catalog,
    table: TableName,
    *,
    fields: tuple[str, ...] = ("*",),
    where: BooleanExpression | None = None,
) -> pa.Table:
    found = catalog.load_table((table.schema, table.table))
    scanned: pa.Table = found.scan(where or AlwaysTrue(), selected_fields=fields).to_arrow()
    return scanned


def changes_of(table: TableName) -> TableName:
    return TableName(f"{table.schema}__changes", table.table)


def _values(connection: psycopg.Connection, table: TableName) -> sql.Composed:
    """The expressions by which rows of this table are compared."""
    columns = connection.execute(
        "SELECT attname, atttypid = 'jsonb'::regtype FROM pg_attribute"
        " WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table.schema, table.table),
    )
    cast = {True: sql.SQL(""), False: sql.SQL("::text")}
    return sql.SQL(", ").join(sql.Identifier(name) + cast[jsonb] for name, jsonb in columns)


def _only_in(
    connection: psycopg.Connection, values: sql.Composed, one: sql.Identifier, other: sql.Identifier
) -> list[str]:
    query = sql.SQL(
        "SELECT row::text FROM"
        " (SELECT {values} FROM {one} EXCEPT ALL SELECT {values} FROM {other}) AS row"
    ).format(values=values, one=one, other=other)
    return [row[0] for row in connection.execute(query)]


def _cell(row: Mapping[str, object], name: str) -> object:
    """Give the value as psycopg writes it for COPY; PostgreSQL reads it as its column's type."""
    texts = dict(row.get(TEXT_COLUMN) or ())  # type: ignore[call-overload]
    return texts[name] if name in texts else row[name]


def _count(connection: psycopg.Connection, table: TableName) -> int:
    name = sql.Identifier(table.schema, table.table)
    found = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name)).fetchone()
    return int(found[0]) if found else 0

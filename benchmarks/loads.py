"""Loads: what is committed before, or while, a bridge reads, and how many changes that makes.

A load is written by the server itself, in transactions of a given size, so that writing costs
seconds. Rows are about 150 bytes of seven common types unless the load is about something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg
from psycopg.sql import SQL, Composable, Identifier, Literal

Connection = psycopg.Connection[tuple[object, ...]]
Counts = Mapping[str, int]
"""Committed changes by the subject they are published on."""

PER_TRANSACTION = 100

_COLUMNS = SQL(
    "id bigint PRIMARY KEY, name text NOT NULL, email text, balance numeric(12, 2),"
    " active boolean, created_at timestamptz, note text"
)
_ROW = SQL(
    "n, 'Customer number ' || n, 'customer' || n || '@example.test', n %% 10000 + 0.25, n %% 2 = 0,"
    " timestamptz '2025-01-01 00:00+00' + n * interval '1 second',"
    " 'ordered ' || n %% 97 || ' pieces and wants them delivered by noon'"
)
_TEXTS, _INTEGERS, _AMOUNTS, _MOMENTS = 20, 19, 10, 10


@dataclass(frozen=True, slots=True)
class Load:
    """Makes its tables before the slot exists, then writes about as many changes as asked for."""

    prepare: Callable[[Connection], None]
    write: Callable[[Connection, int], Counts]


def create_table(connection: Connection, table: str) -> None:
    connection.execute(SQL("CREATE TABLE {} ({})").format(Identifier(table), _COLUMNS))


def insert(table: str, first: Composable, last: Composable) -> Composable:
    return SQL("INSERT INTO {} SELECT {} FROM generate_series({}, {}) AS n").format(
        Identifier(table), SQL(_ROW.as_string().replace("%%", "%")), first, last
    )


def in_transactions(connection: Connection, count: int, *statements: Composable) -> None:
    """Run statements in `count` transactions; `i` counts them from 0."""
    connection.execute(
        SQL("DO $do$ BEGIN FOR i IN 0..{} LOOP {}; COMMIT; END LOOP; END $do$").format(
            Literal(count - 1), SQL("; ").join(statements)
        )
    )


def inserts(per_transaction: int | None) -> Load:
    """Rows inserted so many per transaction, or all of them in one."""

    def write(connection: Connection, changes: int) -> Counts:
        size = per_transaction or changes
        transactions = changes // size
        first, last = SQL(f"i * {size} + 1"), SQL(f"(i + 1) * {size}")
        in_transactions(connection, transactions, insert("customers", first, last))
        return {"cdc.customers.insert": transactions * size}

    return Load(lambda connection: create_table(connection, "customers"), write)


def _write_mix(connection: Connection, changes: int) -> Counts:
    """Insert 60 rows, update 30 of them, delete 10 others; all in one transaction."""
    transactions = changes // PER_TRANSACTION
    in_transactions(
        connection,
        transactions,
        insert("customers", SQL("i * 60 + 1"), SQL("i * 60 + 60")),
        SQL(
            "UPDATE customers SET balance = balance + 1, note = 'changed ' || note"
            " WHERE id BETWEEN i * 60 + 1 AND i * 60 + 30"
        ),
        SQL("DELETE FROM customers WHERE id BETWEEN i * 60 + 51 AND i * 60 + 60"),
    )
    return {
        "cdc.customers.insert": transactions * 60,
        "cdc.customers.update": transactions * 30,
        "cdc.customers.delete": transactions * 10,
    }


def _prepare_wide(connection: Connection) -> None:
    kinds = {"t": ("text", _TEXTS), "i": ("int", _INTEGERS), "a": ("numeric(14, 4)", _AMOUNTS),
             "m": ("timestamptz", _MOMENTS)}  # fmt: skip
    columns = [
        SQL(f"{letter}{number} {kind}")
        for letter, (kind, count) in kinds.items()
        for number in range(count)
    ]
    connection.execute(
        SQL("CREATE TABLE wide (id bigint PRIMARY KEY, {})").format(SQL(", ").join(columns))
    )


def _write_wide(connection: Connection, changes: int) -> Counts:
    values = [
        *(f"'text {number} of ' || n" for number in range(_TEXTS)),
        *(f"n % 100000 + {number}" for number in range(_INTEGERS)),
        *(f"n / 8.0 + {number}" for number in range(_AMOUNTS)),
        *(f"timestamptz '2025-01-01 00:00+00' + n * interval '{number + 1} second'"
          for number in range(_MOMENTS)),
    ]  # fmt: skip
    transactions = changes // PER_TRANSACTION
    in_transactions(
        connection,
        transactions,
        SQL("INSERT INTO wide SELECT n, {} FROM generate_series(i * 100 + 1, i * 100 + 100) AS n")
        .format(SQL(", ").join(map(SQL, values))),
    )  # fmt: skip
    return {"cdc.wide.insert": transactions * PER_TRANSACTION}


def over_tables(tables: int) -> Load:
    """Transactions that insert 100 rows into one of many tables, each table in its turn."""

    def prepare(connection: Connection) -> None:
        for number in range(tables):
            create_table(connection, f"customers_{number}")

    def write(connection: Connection, changes: int) -> Counts:
        rounds = max(changes // PER_TRANSACTION // tables, 1)
        for number in range(tables):
            first, last = SQL("i * 100 + 1"), SQL("i * 100 + 100")
            in_transactions(connection, rounds, insert(f"customers_{number}", first, last))
        return {
            f"cdc.customers_{number}.insert": rounds * PER_TRANSACTION for number in range(tables)
        }

    return Load(prepare, write)


MIX = Load(lambda connection: create_table(connection, "customers"), _write_mix)
WIDE = Load(_prepare_wide, _write_wide)

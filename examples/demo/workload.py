"""A shop's day: every kind of change PostgreSQL can make to a row, counted as it is committed.

What is rolled back is not counted, so the counts say what the change log must hold, no more and no
less. Several writers work side by side; beside them one large transaction stays open.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg

from schemas.names import TableName
from schemas.subjects import Operation

CUSTOMERS = TableName("public", "customers")
PRODUCTS = TableName("public", "products")
ORDERS = TableName("public", "orders")
ORDER_ITEMS = TableName("public", "order_items")
MEASUREMENTS = TableName("public", "measurements")
INVOICES = TableName("billing", "invoices")
COUNTRIES = TableName("public", "countries")
TABLES = (CUSTOMERS, PRODUCTS, ORDERS, ORDER_ITEMS, MEASUREMENTS, INVOICES, COUNTRIES)

SHOPPERS = 3
STORY_CUSTOMER = 1
"""The customer whose life the demo tells."""

SCHEMA: LiteralString = """
CREATE TABLE customers (
    id int PRIMARY KEY, name text NOT NULL, email text, balance numeric(12, 2) NOT NULL DEFAULT 0,
    active boolean NOT NULL DEFAULT true, biography text,
    created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE products (
    sku varchar(20) PRIMARY KEY, name text NOT NULL, price numeric(10, 2) NOT NULL, tags text[]);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id int NOT NULL REFERENCES customers, status text NOT NULL,
    note text, placed_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE order_items (
    order_id bigint REFERENCES orders, line smallint, sku text NOT NULL, quantity int NOT NULL,
    price numeric(10, 2), PRIMARY KEY (order_id, line));
CREATE TABLE measurements (
    id int PRIMARY KEY, exact numeric, fixed numeric(20, 6), ratio float8, small float4,
    flag boolean, moment timestamptz, local timestamp, day date, clock time, span interval,
    document jsonb, numbers int[], words text[], key uuid, raw bytea, address inet);
CREATE SCHEMA billing;
CREATE TABLE billing.invoices (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), order_id bigint NOT NULL,
    total numeric(14, 4) NOT NULL, due date NOT NULL, paid_at timestamp);
"""

EARLIER: LiteralString = """
CREATE TABLE countries (code text PRIMARY KEY, name text NOT NULL);
INSERT INTO countries VALUES ('at', 'Österreich'), ('jp', '日本'), ('us', 'United States');
INSERT INTO customers (id, name, biography)
SELECT 1000000 + n, 'customer of old ' || n, repeat('long ago ', n) FROM generate_series(1, 1000) n;
"""
"""What is there before anybody follows; one table never changes at all."""

_MEASURE: LiteralString = """
INSERT INTO measurements
SELECT n, (n * 1.000001) ^ 3, n / 7.0, sqrt(n), n / 3.0::float4, n %% 2 = 0,
       timestamptz '2024-02-29 23:59:59.999999+00' + n * interval '1 second',
       timestamp '1999-12-31 23:59' + n * interval '1 day', date '2000-01-01' + n,
       time '00:00' + n * interval '1 second', n * interval '1 minute',
       jsonb_build_object('n', n, 'half', n / 2.0, 'tags', jsonb_build_array('a', NULL, n)),
       ARRAY[n, NULL, -n], ARRAY['plain', 'with "quotes", commas', E'back\\\\slash', ''],
       md5(n::text)::uuid, decode(md5(n::text), 'hex'), '10.0.0.0'::inet + n
  FROM generate_series(1, %s) AS n"""

_EDGES: Sequence[LiteralString] = (
    "INSERT INTO measurements (id) VALUES (-1)",
    """INSERT INTO measurements VALUES (-2, 'NaN', -0.000001, 'Infinity', 'NaN', false,
       'infinity', '-infinity', 'infinity', '24:00', '-1 mon +2 days -00:00:00.000001',
       'null', '{}', '{NULL,"NULL",""}', '00000000-0000-0000-0000-000000000000', '', '::1')""",
    """INSERT INTO measurements VALUES (-3, 1e100, 12345678901234.567890, -0.0, 1e-45, NULL,
       '0044-03-15 12:00:00+00 BC', '9999-12-31 23:59:59.999999', '0001-01-01', '00:00', '0',
       '{"big": 123456789012345678901234567890, "deep": [[[]]], "é\\u2028": "\\ud83d\\ude00"}',
       '{{1,2},{3,4}}', E'{"\\\\N",tab\\tnewline\\n,🐘}', NULL, '\\x00ff0a5c', '192.168.0.0/16')""",
)


@dataclass(slots=True)
class Done:
    """What has been committed."""

    changes: Counter[tuple[TableName, Operation]] = field(default_factory=Counter)
    transactions: int = 0

    def add(self, other: Done) -> None:
        self.changes += other.changes
        self.transactions += other.transactions


class Writer:
    """One connection, and what it has committed."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._open: Done | None = None
        self.done = Done()

    @contextmanager
    def transaction(self, *, rollback: bool = False) -> Iterator[None]:
        self._open = Done(transactions=1)
        with self._connection.transaction(force_rollback=rollback):
            yield
        if not rollback:
            self.done.add(self._open)

    @contextmanager
    def change_of_mind(self) -> Iterator[None]:
        """Work that a savepoint takes back."""
        counted, self._open = self._open, Done()
        with self._connection.transaction(force_rollback=True):
            yield
        self._open = counted

    def run(
        self, table: TableName, operation: Operation, statement: LiteralString, *values: object
    ) -> None:
        self._count(table, operation, self._connection.execute(statement, values).rowcount)

    def alter(self, statement: LiteralString) -> None:
        """Change a table's shape; no row changes with it."""
        self._connection.execute(statement)

    def copy(self, table: TableName, statement: LiteralString, rows: Iterator[object]) -> None:
        cursor = self._connection.cursor()
        with cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)  # type: ignore[arg-type]
        self._count(table, "INSERT", cursor.rowcount)

    def _count(self, table: TableName, operation: Operation, rows: int) -> None:
        if self._open is None:
            raise RuntimeError("work outside a transaction is not counted")
        self._open.changes[table, operation] += rows


Work = Callable[[Writer], None]


def run_workload(dsn: str, rows: int) -> Done:
    """Write everything, and return what was committed when all of it is."""
    customers = max(rows // 20, 30)
    shoppers = [_shopper(number, customers, orders=rows // 100 + 5) for number in range(SHOPPERS)]
    done = Done()
    _write(dsn, [lambda writer: _open_shop(writer, customers)], done)
    _write(dsn, [*shoppers, lambda writer: _measure(writer, rows)], done)
    _write(dsn, [lambda writer: _close_shop(writer, customers)], done)
    return done


def _write(dsn: str, works: Sequence[Work], done: Done) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for committed in pool.map(lambda work: _work_alone(dsn, work), works):
            done.add(committed)


def _work_alone(dsn: str, work: Work) -> Done:
    with psycopg.connect(dsn, autocommit=True) as connection:
        writer = Writer(connection)
        work(writer)
        return writer.done


def _open_shop(writer: Writer, customers: int) -> None:
    with writer.transaction():
        writer.copy(
            PRODUCTS,
            "COPY products FROM STDIN",
            ((f"sku-{n}", f"Product {n}", f"{n}.90", ["new", None]) for n in range(1, 101)),
        )
    for first in range(1, customers + 1, 100):
        with writer.transaction():
            for number in range(first, min(first + 100, customers + 1)):
                writer.run(
                    CUSTOMERS,
                    "INSERT",
                    "INSERT INTO customers (id, name, email) VALUES (%s, %s, %s)",
                    number,
                    f"Customer {number}",
                    f"c{number}@example.com",
                )


def _shopper(number: int, customers: int, orders: int) -> Work:
    """Place, change and abandon orders; a third of the customers is this shopper's alone."""
    dice = random.Random(number)  # noqa: S311 - the same day every time

    def shop(writer: Writer) -> None:
        for turn in range(orders):
            order = turn * SHOPPERS + number + 1
            customer = dice.randrange(number + 1, customers + 1, SHOPPERS)
            with writer.transaction(rollback=turn % 7 == 3):
                _place_order(writer, dice, order, customer, abandoned=turn % 5 == 2)
            if turn % 7 != 3 and turn % 3 == 0:
                _settle_order(writer, order)

    return shop


def _place_order(
    writer: Writer, dice: random.Random, order: int, customer: int, *, abandoned: bool
) -> None:
    insert: LiteralString = "INSERT INTO orders (id, customer_id, status) VALUES (%s, %s, 'new')"
    item: LiteralString = "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)"
    pay: LiteralString = "UPDATE customers SET balance = balance - %s WHERE id = %s"
    writer.run(ORDERS, "INSERT", insert, order, customer)
    for line in range(dice.randint(1, 4)):
        sku, price = f"sku-{dice.randint(1, 100)}", f"{dice.randint(1, 999)}.99"
        writer.run(ORDER_ITEMS, "INSERT", item, order, line, sku, dice.randint(1, 9), price)
        writer.run(CUSTOMERS, "UPDATE", pay, price, customer)
    if abandoned:
        with writer.change_of_mind():
            writer.run(ORDERS, "DELETE", "DELETE FROM order_items WHERE order_id = %s", order)


def _settle_order(writer: Writer, order: int) -> None:
    with writer.transaction():
        writer.run(
            INVOICES,
            "INSERT",
            "INSERT INTO billing.invoices (order_id, total, due)"
            " SELECT order_id, sum(quantity * price), date '2025-01-01' + order_id::int"
            " FROM order_items WHERE order_id = %s GROUP BY order_id",
            order,
        )
        writer.run(
            ORDERS, "UPDATE", "UPDATE orders SET status = 'paid', note = '' WHERE id = %s", order
        )


def _measure(writer: Writer, rows: int) -> None:
    """The large transaction, open while the shoppers work; then values at the edge of types."""
    with writer.transaction():
        writer.run(MEASUREMENTS, "INSERT", _MEASURE, rows)
        writer.run(
            MEASUREMENTS,
            "UPDATE",
            "UPDATE measurements SET fixed = -fixed, document = NULL, words = NULL"
            " WHERE id %% 10 = 0",
        )
        writer.run(MEASUREMENTS, "DELETE", "DELETE FROM measurements WHERE id %% 50 = 0")
    for edge in _EDGES:
        with writer.transaction():
            writer.run(MEASUREMENTS, "INSERT", edge)


def _close_shop(writer: Writer, customers: int) -> None:
    """Change a table's shape, keys, large values and whole groups of rows."""
    with writer.transaction():
        writer.run(ORDER_ITEMS, "UPDATE", "UPDATE order_items SET price = NULL WHERE quantity > 7")
        writer.run(ORDER_ITEMS, "DELETE", "DELETE FROM order_items WHERE line = 3")
    with writer.transaction():
        writer.run(
            INVOICES,
            "UPDATE",
            "UPDATE billing.invoices SET paid_at = timestamp '2025-02-03 04:05:06.000007'"
            " WHERE order_id %% 2 = 0",
        )
        writer.run(INVOICES, "DELETE", "DELETE FROM billing.invoices WHERE order_id %% 5 = 0")
    with writer.transaction():
        writer.alter("ALTER TABLE products ADD COLUMN weight numeric(8, 3)")
        writer.alter("ALTER TABLE orders RENAME COLUMN note TO remark")
        writer.run(PRODUCTS, "UPDATE", "UPDATE products SET weight = price / 3 WHERE price > 50")
        writer.run(ORDERS, "UPDATE", "UPDATE orders SET remark = 'late' WHERE status = 'new'")
    with writer.transaction():
        # The key changes, and with it the row's identity everywhere downstream.
        writer.run(PRODUCTS, "UPDATE", "UPDATE products SET sku = 'old-' || sku WHERE price < 20")
        writer.run(
            MEASUREMENTS, "UPDATE", "UPDATE measurements SET id = id + 1000000 WHERE id %% 97 = 1"
        )
    _tell_story(writer)
    with writer.transaction():
        writer.run(
            CUSTOMERS, "INSERT", "INSERT INTO customers (id, name) VALUES (%s, '')", customers + 1
        )
        writer.run(CUSTOMERS, "DELETE", "DELETE FROM customers WHERE id = %s", customers + 1)


def _tell_story(writer: Writer) -> None:
    # Text that does not compress is stored out of line, and PostgreSQL does not send it again with
    # later updates: the lake must neither lose it nor make it null.
    biography = random.Random(0).randbytes(20_000).hex()  # noqa: S311 - the same every time
    chapters: Sequence[tuple[LiteralString, Sequence[object]]] = (
        ("UPDATE customers SET email = NULL WHERE id = %s", ()),
        ("UPDATE customers SET biography = %s WHERE id = %s", (biography,)),
        ("UPDATE customers SET name = %s, active = false WHERE id = %s", ("Ada 🐘 \\N",)),
        ("UPDATE customers SET balance = 0.10 WHERE id = %s", ()),
    )
    for statement, values in chapters:
        with writer.transaction():
            writer.run(CUSTOMERS, "UPDATE", statement, *values, STORY_CUSTOMER)

"""What really happened, according to PostgreSQL, to hold the stream against.

Writers change two tables at random while the bridge is being disturbed. A trigger writes every row
change into an audit table, and a second slot with PostgreSQL's own `test_decoding` says in which
order the transactions committed. The stream is right when it holds exactly that: every change once,
with its values, in that order.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from schemas.positions import Lsn
from tests.support.stream import StoredMessage

TABLES = ("accounts", "sales/orders")
PUBLICATION = "truth_pub"

_SET_UP = """
    CREATE SCHEMA sales;
    CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance int);
    CREATE TABLE sales.orders (region text, id int, note text, PRIMARY KEY (region, id));
    CREATE TABLE audit (
        id bigserial PRIMARY KEY, xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
        token text NOT NULL, operation text NOT NULL, old jsonb, new jsonb
    );
    CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit (token, operation, old, new)
        VALUES (TG_ARGV[0], TG_OP,
                CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
                CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON accounts
        FOR EACH ROW EXECUTE FUNCTION note_change('accounts');
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON sales.orders
        FOR EACH ROW EXECUTE FUNCTION note_change('sales/orders');
    CREATE PUBLICATION truth_pub FOR TABLE accounts, sales.orders;
"""

Fact = tuple[str, str, dict[str, Any]]
"""Table token, operation, and the row the contract promises for it."""


class Truth:
    """A database with a history that can be told."""

    def __init__(self, dsn: str, slot: str) -> None:
        self.dsn = dsn
        self.slot = slot
        with self.connect() as connection:
            connection.execute(_SET_UP)
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot]
            )

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn, autocommit=True)

    def commit_order(self) -> list[int]:
        """Give the transactions in the order PostgreSQL decodes them."""
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL,"
                " 'skip-empty-xacts', '1')"
                " WHERE data LIKE 'BEGIN%%'",
                [self.slot],
            ).fetchall()
        found = [re.fullmatch(r"BEGIN (\d+)", row[0]) for row in rows]
        return [int(match[1]) for match in found if match]

    def transactions(self) -> list[tuple[int, list[Fact]]]:
        """Give every transaction that changed a published table, with its changes, in order."""
        facts: dict[int, list[Fact]] = defaultdict(list)
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT xid, token, operation, old, new FROM audit ORDER BY id"
            )
            for xid, token, operation, old, new in rows:
                facts[xid].append((token, operation, new if new is not None else _key(token, old)))
        return [(xid, facts[xid]) for xid in self.commit_order() if xid in facts]

    def wal_end(self) -> Lsn:
        with self.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        return Lsn.parse(row[0] if row else "")

    def confirmed(self, slot: str) -> Lsn:
        """Say how far PostgreSQL believes a slot to be; 0/0 while PostgreSQL is away."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        try:
            with self.connect() as connection:
                row = connection.execute(query, [slot]).fetchone()
        except psycopg.OperationalError:
            return Lsn(0)
        return Lsn.parse(row[0]) if row else Lsn(0)


def _key(token: str, row: dict[str, Any]) -> dict[str, Any]:
    """Reduce a deleted row to what the contract carries of it: its key, the rest null."""
    key = ("id",) if token == "accounts" else ("region", "id")
    return {name: value if name in key else None for name, value in row.items()}


def told(changes: Sequence[StoredMessage]) -> list[tuple[int, list[Fact]]]:
    """Give what the stream tells, in its own order, split where the transaction changes."""
    story: list[tuple[int, list[Fact]]] = []
    for change in changes:
        fields = change.fields
        if not story or story[-1][0] != fields["xid"]:
            story.append((fields["xid"], []))
        _, token, _ = change.subject.split(".")
        story[-1][1].append((token, fields["operation"], fields["data"]))
    return story


def assert_tells_the_truth(changes: Sequence[StoredMessage], truth: Truth) -> None:
    """Hold the stream against PostgreSQL: each change once, exact, in commit order, no gaps."""
    expected, story = truth.transactions(), told(changes)
    assert expected, "nothing was written, so nothing was tested"
    wanted, given = [xid for xid, _ in expected], [xid for xid, _ in story]
    assert len(given) == len(set(given)), f"stored twice or torn apart: {_repeated(given)}"
    assert not set(wanted) - set(given), f"lost: {sorted(set(wanted) - set(given))[:10]}"
    assert given == wanted, "stored in another order than committed"
    for (xid, facts), (_, stored) in zip(expected, story, strict=True):
        assert stored == facts, f"transaction {xid} differs"
    positions = [change.position for change in changes]
    assert positions == sorted(set(positions)), "positions do not grow"
    for before, after in itertools.pairwise(changes):
        is_new = before.fields["xid"] != after.fields["xid"]
        assert before.fields["last"] == is_new, f"`last` is wrong at {before.position}"
        assert after.fields["seq"] == (0 if is_new else before.fields["seq"] + 1)


def _repeated(items: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    return [item for item in items if item in seen or seen.add(item)][:10]  # type: ignore[func-returns-value]


class Writer:
    """Changes the tables at random, in transactions of many sizes, some of them rolled back."""

    def __init__(
        self, truth: Truth, seed: int, largest: int = 60, pause_seconds: float = 0.01
    ) -> None:
        self._truth = truth
        self._pace = 1 / pause_seconds
        self._random = random.Random(seed)
        self._largest = largest
        self._base = seed % 1000 * 1_000_000
        self._next = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{seed}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a writer hangs"

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._truth.connect() as connection:
                    while not self._stop.is_set():
                        self._transaction(connection)
                        self._stop.wait(self._random.expovariate(self._pace))
            except psycopg.OperationalError:
                # PostgreSQL is being restarted: what committed is in the audit, whatever we heard.
                self._stop.wait(0.2)

    def _transaction(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        size = self._random.choice((1, 1, 1, 2, 3, 10, self._largest))
        steps = self._random.choices(_STEPS, weights=[weight for _, weight in _WEIGHTED], k=size)
        with connection.transaction(force_rollback=self._random.random() < 0.1):
            for step in steps:
                step(self, connection)

    def _fresh(self) -> int:
        self._next += 1
        return self._base + self._next

    def _some(self) -> int:
        return self._base + self._random.randint(1, max(1, self._next))

    def insert(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        text = "".join(self._random.choices("aé\n\"'\\\t日", k=self._random.randint(0, 40)))
        connection.execute(
            "INSERT INTO accounts VALUES (%s, %s, %s)",
            [self._fresh(), text, self._random.randint(-1000, 1000)],
        )

    def order(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.execute("INSERT INTO sales.orders VALUES ('eu', %s, NULL)", [self._fresh()])

    def copy(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        with connection.cursor().copy("COPY accounts (id, owner) FROM STDIN") as copy:
            for _ in range(self._random.randint(1, 20)):
                copy.write_row((self._fresh(), "copied"))

    def update(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.execute(
            "UPDATE accounts SET balance = %s WHERE id = %s",
            [self._random.randint(-1000, 1000), self._some()],
        )

    def move(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.execute(
            "UPDATE accounts SET id = %s WHERE id = %s", [self._fresh(), self._some()]
        )

    def delete(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.execute("DELETE FROM accounts WHERE id = %s", [self._some()])
        connection.execute("DELETE FROM sales.orders WHERE id = %s", [self._some()])


Step = Callable[[Writer, psycopg.Connection[tuple[Any, ...]]], None]
_WEIGHTED: tuple[tuple[Step, int], ...] = (
    (Writer.insert, 5),
    (Writer.order, 3),
    (Writer.copy, 1),
    (Writer.update, 5),
    (Writer.move, 1),
    (Writer.delete, 2),
)
_STEPS = [step for step, _ in _WEIGHTED]


@contextmanager
def writing(
    truth: Truth, seed: int, writers: int = 3, *, pause_seconds: float = 0.01
) -> Iterator[None]:
    """Keep several writers busy for as long as the block lasts."""
    busy = [Writer(truth, seed + number, pause_seconds=pause_seconds) for number in range(writers)]
    for writer in busy:
        writer.start()
    try:
        yield
    finally:
        for writer in busy:
            writer.stop()

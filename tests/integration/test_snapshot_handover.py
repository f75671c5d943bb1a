"""The hand-over from snapshot to changes: no gap and no overlap, whatever is being written.

The consumer is the one of `examples/follow_sqlite.py`, which refuses an insert of a row that is
there and an update of one that is not; PostgreSQL says what the file must hold in the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats as nats_py
import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from examples.follow_sqlite import Follower, quote
from tests.support.bridge import BridgeProcess
from tests.support.snapshots import read_snapshots
from tests.support.stream import read_changes
from tests.support.truth import PUBLICATION, TABLES, Truth, writing

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3")) * 2
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000))))
LAST_ID = -1

_READ = {
    "accounts": "SELECT id, owner, balance FROM accounts ORDER BY id",
    "sales/orders": "SELECT region, id, note FROM sales.orders ORDER BY region, id",
}


@pytest.fixture
def truth(postgres: EmbeddedPostgres, database: str) -> Truth:
    return Truth(postgres.dsn(database), f"truth_{database}")


@pytest.fixture
def bridge(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, truth: Truth, tmp_path: Path
) -> Iterator[BridgeProcess]:
    del truth
    environ = {**postgres.env(database), **nats.env()}
    flags = ("--slot", f"slot_{database}", "--pub", PUBLICATION, "--durability", "acked")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as process:
        process.wait_serving()
        yield process


_LONG_STEPS = (
    "INSERT INTO accounts VALUES (%(new)s, %(owner)s)",
    "UPDATE accounts SET balance = %(new)s WHERE id = %(old)s",
    "UPDATE accounts SET id = %(new)s WHERE id = %(old)s",
    "DELETE FROM accounts WHERE id = %(old)s",
)
_SOME = "SELECT id FROM accounts WHERE owner = %s ORDER BY random() LIMIT 1"


class LongWriter(threading.Thread):
    """Keeps transactions open across whatever else happens: each does everything, slowly."""

    def __init__(self, truth: Truth, seed: int, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._truth = truth
        self._chance = random.Random(seed + number)
        self._owner = f"long-{number}"
        self._next = number * 10**8 + 10**9
        self._stopped = stop
        self.committed = 0

    def run(self) -> None:
        with self._truth.connect() as connection:
            while not (self.committed and self._stopped.is_set()):
                gives_up = self.committed > 0 and self._chance.random() < 0.3
                with connection.transaction(force_rollback=gives_up):
                    self._write(connection)
                self.committed += not gives_up

    def _write(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Insert first, so that the transaction is one; then change what others left, and wait."""
        for step in (_LONG_STEPS[0], *self._chance.sample(_LONG_STEPS, len(_LONG_STEPS))):
            self._next += 1
            old = connection.execute(_SOME, [self._owner]).fetchone()
            values = {"new": self._next, "old": old and old[0], "owner": self._owner}
            connection.execute(step, values)
            self._stopped.wait(self._chance.uniform(0, 0.5))


@contextmanager
def long_transactions(truth: Truth, seed: int) -> Iterator[None]:
    """Hold two transactions open all the time."""
    stop = threading.Event()
    writers = [LongWriter(truth, seed, number, stop) for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
    assert all(writer.committed for writer in writers), "no long transaction came to its end"


def held(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    key = "id" if table == "accounts" else "region, id"
    return db.execute(f"SELECT * FROM {quote(table)} ORDER BY {key}").fetchall()


async def follow_until_last(url: str, file: Path, delay: float) -> None:
    """Join at a moment of its own, and follow until the last row anybody wrote is there."""
    await asyncio.sleep(delay)
    client = await nats_py.connect(url)
    async with client:
        follower = Follower(client, str(file), TABLES)
        await follower.load()
        last = f"SELECT 1 FROM accounts WHERE id = {LAST_ID}"
        await follower.follow(lambda: follower.db.execute(last).fetchone() is not None)
        follower.db.close()


async def _follow_all(
    url: str, files: list[Path], chance: random.Random, enough: threading.Event
) -> None:
    async with asyncio.TaskGroup() as group:
        for file in files:
            group.create_task(follow_until_last(url, file, chance.uniform(0, 6)))
        await asyncio.sleep(7)
        enough.set()


def test_snapshot_and_changes_make_the_table_under_any_load(
    bridge: BridgeProcess, truth: Truth, nats: EmbeddedNats, tmp_path: Path
) -> None:
    """Writers, rollbacks, moved keys, transactions open for seconds, and joined at any moment."""
    print(f"CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    files = [tmp_path / f"{number}.db" for number in range(ROUNDS)]
    enough = threading.Event()

    def write() -> None:
        try:
            with writing(truth, SEED), long_transactions(truth, SEED):
                enough.wait(60)
        finally:
            # Whatever went wrong: without it the followers would never end.
            with truth.connect() as connection:
                connection.execute("INSERT INTO accounts VALUES (%s, 'last')", [LAST_ID])

    writers = threading.Thread(target=write)
    writers.start()
    try:
        asyncio.run(_follow_all(nats.url, files, chance, enough))
    finally:
        enough.set()
        writers.join(120)

    assert bridge.process.poll() is None
    with psycopg.connect(truth.dsn) as connection:
        expected = {table: connection.execute(query).fetchall() for table, query in _READ.items()}
    assert len(expected["accounts"]) > 100, "too little was written to prove anything"
    for file in files:
        db = sqlite3.connect(file)
        for table in TABLES:
            assert held(db, table) == expected[table], f"{file.name}: {table} differs"
        db.close()
    changes = read_changes(nats.url)
    metas = [snapshot.meta for snapshot in read_snapshots(nats.url).values() if snapshot.meta]
    assert metas
    for meta in metas:
        inside = [change for change in changes if change.position[0] < meta["lsn"]]
        late = [change.sequence for change in inside if change.sequence > meta["cdc_complete"]]
        assert not late, f"in snapshot {meta['snapshot_id']}, and behind its cdc_complete: {late}"

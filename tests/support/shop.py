"""A shop on servers that fail over: its table, and what the stream holds of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psycopg

from bridge.errors import HistoryForked
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.forks import parse_fork
from schemas.subjects import FORK_PREFIX, GAP_PREFIX, message_subject
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import StoredMessage, read_stream

SLOT = "shop"
FORK = message_subject(FORK_PREFIX)


@dataclass
class Shop:
    """A published table, the servers it may be on, and what the stream holds of it."""

    primary: EmbeddedPostgres
    nats: EmbeddedNats
    log: Path

    def __post_init__(self) -> None:
        self.servers = [self.primary]
        self.execute("CREATE TABLE users (id int PRIMARY KEY)")
        self.execute("CREATE PUBLICATION pub FOR TABLE users")

    def execute(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement on the server that is the newest."""
        with psycopg.connect(self.servers[-1].dsn(), autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def insert(self, first: int, last: int) -> None:
        """Insert rows, one transaction each."""
        with psycopg.connect(self.servers[-1].dsn(), autocommit=True) as connection:
            for number in range(first, last + 1):
                connection.execute("INSERT INTO users VALUES (%s)", [number])

    def rows(self) -> list[object]:
        """What PostgreSQL says, in the order in which it was committed."""
        return [row[0] for row in self.execute("SELECT id FROM users ORDER BY xmin::text::bigint")]

    def bridge(self, *flags: str) -> BridgeProcess:
        """A bridge that knows all servers, and takes the primary among them."""
        ports = ",".join(str(server.port) for server in self.servers)
        environ = {**self.servers[-1].env(), **self.nats.env(), "PG_PORT": ports}
        environ["PG_HOST"] = ",".join(["127.0.0.1"] * len(self.servers))
        known = ("--slot", SLOT, "--pub", "pub", "--durability", "acked")
        return BridgeProcess(environ, *known, *flags, log=self.log)

    def stored(self) -> list[StoredMessage]:
        return read_stream(self.nats.url)

    def wait_stored(self, last: int) -> None:
        """Wait until the stream holds a row."""
        wait_for(lambda: last in ids(self.stored()), f"row {last} in the stream")

    def wait_confirmed(self) -> None:
        """Wait until the slot is where the WAL is now."""
        [(end,)] = self.execute("SELECT pg_current_wal_lsn()::text")
        query = (
            "SELECT 1 FROM pg_replication_slots"
            " WHERE slot_name = %s AND confirmed_flush_lsn >= %s::pg_lsn"
        )
        wait_for(lambda: self.execute(query, SLOT, end), f"slot {SLOT} to reach {end}")

    def confirmed(self) -> list[tuple[object, ...]]:
        return self.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots"
                            " WHERE slot_name = %s", SLOT)  # fmt: skip


def ids(messages: list[StoredMessage]) -> list[int]:
    return [m.fields["data"]["id"] for m in messages if m.subject == "cdc.users.insert"]


def marks(messages: list[StoredMessage]) -> list[str]:
    """Which forks and gaps are marked, in order."""
    prefixes = [str(m.fields.get("prefix")) for m in messages]
    return [prefix for prefix in prefixes if prefix in (FORK_PREFIX, GAP_PREFIX)]


def alive(messages: list[StoredMessage]) -> list[StoredMessage]:
    """What is left of a stream for a consumer that knows what a fork means."""
    for mark in [m for m in messages if m.subject == FORK]:
        fork = parse_fork(mark.fields["content"])
        assert fork is not None
        messages = [
            m for m in messages if m.sequence >= mark.sequence or m.position[0] < fork.switch_lsn
        ]
    return messages


def assert_refused(shop: Shop, *flags: str) -> None:
    """Every start is refused, and none leaves anything behind."""
    before, confirmed = len(shop.stored()), shop.confirmed()
    for _ in range(2):
        with shop.bridge(*flags) as bridge:
            assert bridge.wait() == HistoryForked.exit_code, bridge.said()
            assert "--on-fork mark" in bridge.said()
    assert (len(shop.stored()), shop.confirmed()) == (before, confirmed)


def assert_healed(shop: Shop, last: int) -> None:
    """After the mark the stream is what this PostgreSQL has, each row once and in order."""
    with shop.bridge("--on-fork", "mark") as bridge:
        wait_for(lambda: last in ids(alive(shop.stored())), f"row {last} after the fork")
        found = alive(shop.stored())
        assert ids(found) == shop.rows(), bridge.said()[-3_000:]
        assert found == sorted(found, key=lambda m: m.position)
        assert bridge.terminate() == 0
    # Nothing of the dead branch moves the next session either.
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(last + 1, last + 1)
        shop.wait_stored(last + 1)
        assert ids(alive(shop.stored())) == shop.rows(), bridge.said()[-3_000:]
    assert sum(m.subject == FORK for m in shop.stored()) == 1

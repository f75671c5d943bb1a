"""PostgreSQL takes the snapshot away while it is copied: told, not taken for whole, retried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from bridge.config import PostgresConfig
from bridge.errors import Disposition, SourceLost
from bridge.postgres.reading import Reader
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.certificates import Authority
from tests.support.snapshots import Snapshot, read_snapshots, store_request, wait_snapshot
from tests.support.stream import count_messages
from tests.support.tlsproxy import TlsProxy
from tests.support.watched import ROWS, TOO_OLD, WAIT, WHOLE_RANGE, holding, make_watched


@pytest.fixture
def watched(connection: Connection) -> Connection:
    make_watched(connection)
    return connection


@pytest.fixture
def environ(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, watched: Connection
) -> dict[str, str]:
    del watched
    return {**postgres.env(database), **nats.env(), "BRIDGE_SLOT": f"slot_{database}"}


@pytest.fixture
def bridge(
    postgres: EmbeddedPostgres,
    environ: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[BridgeProcess]:
    """A bridge that reads rows from the socket itself, or with "tls" through libpq."""
    flags = ("--pub", "pub", "--durability", "acked")
    with ExitStack() as stack:
        if getattr(request, "param", "plain") == "tls":
            ours = Authority(tmp_path / "ours", "ours")
            proxy = stack.enter_context(TlsProxy(postgres.port, ours.issue("postgres")))
            environ |= {"PG_PORT": str(proxy.port), "PG_SSLROOTCERT": str(ours.cert)}
        bridge = BridgeProcess(environ, *flags, log=tmp_path / "bridge.log")
        process = stack.enter_context(bridge)
        process.wait_serving()
        yield process


def first_failure(url: str) -> tuple[str, Snapshot]:
    def failed() -> str | None:
        return next((name for name, one in read_snapshots(url).items() if one.error), None)

    name = wait_for(failed, "a snapshot to be told as failed")
    # Again: its chunks went while the stream was read.
    return name, read_snapshots(url)[name]


def assert_unusable(snapshot: Snapshot, reason: str) -> None:
    """No meta, no chunk, also none that was on its way, and a reason that a person can use."""
    assert snapshot.start is not None
    assert snapshot.meta is None
    assert snapshot.chunks == []
    assert snapshot.error is not None
    assert reason in snapshot.error["error"]
    assert snapshot.error["advice"]


def assert_served_under_a_new_id(url: str, failed: str, bridge: BridgeProcess) -> None:
    def whole() -> str | None:
        return next((name for name, one in read_snapshots(url).items() if one.meta), None)

    again = wait_for(whole, "the stored request to be served after all")

    assert again != failed
    snapshot = wait_snapshot(url, again)
    snapshot.assert_whole()
    assert sorted(row["id"] for row in snapshot.rows) == list(range(1, ROWS + 1))
    assert bridge.status()["state"] == "streaming"


def slots(connection: Connection) -> list[object]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE temporary"
    return [row[0] for row in connection.execute(query)]


@pytest.mark.parametrize("bridge", ["plain", "tls"], indirect=True)
def test_a_snapshot_too_old_is_told_and_the_next_one_is_whole(
    bridge: BridgeProcess, watched: Connection, nats: EmbeddedNats
) -> None:
    """SQLSTATE 72000 from the server, behind rows that are stored already."""
    with holding(watched, TOO_OLD):
        store_request(nats.url, "big", WHOLE_RANGE)
        name, snapshot = first_failure(nats.url)

        assert_unusable(snapshot, "snapshot too old")
        assert snapshot.error is not None
        assert "new id" in snapshot.error["advice"]
        wait_for(lambda: not slots(watched), "the slot to go before the next try makes another")
        said = [line for line in bridge.said().splitlines() if name in line and "failed" in line]
        assert "level=warn" in said[0].lower()
        assert "snapshot too old" in said[0]
        assert "Traceback" not in bridge.said()

    assert_served_under_a_new_id(nats.url, name, bridge)


def test_a_reader_that_is_terminated_in_the_middle_is_told_and_replaced(
    bridge: BridgeProcess, watched: Connection, nats: EmbeddedNats
) -> None:
    """What a time-out, an administrator or a standby's conflict does to a long transaction."""
    with holding(watched, WAIT):
        store_request(nats.url, "big", WHOLE_RANGE)
        wait_for(lambda: count_messages(nats.url, "INIT") > 3, "chunks of the first rows")
        query = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE 'COPY%%' AND datname = current_database()"
        )
        assert len(watched.execute(query).fetchall()) == 1
        name, snapshot = first_failure(nats.url)

        assert_unusable(snapshot, "terminating connection due to administrator command")
        wait_for(lambda: not slots(watched), "the slot to go before the next try makes another")

    assert_served_under_a_new_id(nats.url, name, bridge)


@contextmanager
def every_slot_taken(connection: Connection) -> Iterator[None]:
    """Make slots until PostgreSQL makes no more."""
    taken = [f"taken_{number}" for number in range(100)]
    try:
        with suppress(psycopg.errors.ConfigurationLimitExceeded):
            for name in taken:
                connection.execute("SELECT pg_create_physical_replication_slot(%s)", [name])
        yield
    finally:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = ANY (%s)",
            [taken],
        )


def test_where_no_slot_is_free_a_stored_request_waits_for_one(
    bridge: BridgeProcess, watched: Connection, nats: EmbeddedNats
) -> None:
    """Backups and other snapshots come and go, and whoever asked does not ask again."""
    with every_slot_taken(watched):
        store_request(nats.url, "big", WHOLE_RANGE)
        name, snapshot = first_failure(nats.url)

        assert snapshot.error is not None
        assert "all replication slots are in use" in snapshot.error["error"]
        assert "max_replication_slots" in snapshot.error["advice"]

    assert_served_under_a_new_id(nats.url, name, bridge)


def test_an_export_that_is_gone_before_a_reader_comes_is_worth_another_try(
    postgres: EmbeddedPostgres, database: str, connection: Connection
) -> None:
    """The server says that an object is missing, which elsewhere is for an administrator."""
    with psycopg.connect(connection.info.dsn, password=connection.info.password) as exporter:
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    environ = postgres.env(database)
    config = PostgresConfig(
        host=environ["PG_HOST"],
        port=int(environ["PG_PORT"]),
        database=environ["PG_DB"],
        user=environ["POSTGRES_BRIDGE_USER"],
        password=environ["POSTGRES_BRIDGE_PASSWORD"],
    )

    with pytest.raises(SourceLost, match="snapshot") as raised:
        asyncio.run(Reader.open(config, str(row[0])))

    assert raised.value.disposition is Disposition.RETRY
    assert "new id" in raised.value.advice

"""The bridge as a process between a real PostgreSQL and a real NATS."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from bridge.errors import SinkRefused
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.positions import Lsn
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import (
    StoredMessage,
    count_messages,
    edit_stream,
    publish,
    read_changes,
    read_shapes,
    read_stream,
)


@pytest.fixture
def environ(postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats) -> dict[str, str]:
    return {**postgres.env(database), **nats.env()}


@pytest.fixture
def users(connection: Connection) -> Connection:
    """A database with a published table."""
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text, big text)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    return connection


@pytest.fixture
def bridge(environ: dict[str, str], users: Connection, tmp_path: Path) -> Iterator[BridgeProcess]:
    """A bridge that streams."""
    del users
    flags = ("--slot", slot_of(environ), "--pub", "pub", "--durability", "acked")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as process:
        process.wait_streaming()
        yield process


def slot_of(environ: dict[str, str]) -> str:
    """Slots are named across databases, so each test's database gives its own the name."""
    return f"slot_{environ['PG_DB']}"


def wait_messages(nats: EmbeddedNats, count: int) -> list[StoredMessage]:
    wait_for(lambda: count_messages(nats.url) >= count, f"{count} messages")
    return read_stream(nats.url)


def wait_inserts(nats: EmbeddedNats, count: int) -> list[StoredMessage]:
    """Wait for inserted users; sessions beside other writers store messages of their own."""

    def inserts() -> list[StoredMessage]:
        return [m for m in read_stream(nats.url) if m.subject == "cdc.users.insert"]

    wait_for(lambda: len(inserts()) >= count, f"{count} inserts")
    return inserts()


def wait_confirmed(connection: Connection, lsn: Lsn) -> None:
    """Wait until PostgreSQL itself says that the slot is past a position."""
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    slot = f"slot_{connection.info.dbname}"

    def confirmed() -> bool:
        row = connection.execute(query, [slot]).fetchone()
        return row is not None and Lsn.parse(str(row[0])) >= lsn

    wait_for(confirmed, f"the slot to reach {lsn}")


def wal_end(connection: Connection) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(str(row[0]))


def test_every_operation_arrives_in_commit_order(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    del bridge
    users.execute("INSERT INTO users VALUES (1, 'a')")
    users.execute("UPDATE users SET name = 'b'")
    users.execute("UPDATE users SET id = 2")
    users.execute("DELETE FROM users")
    users.execute("TRUNCATE users")

    stored = wait_messages(nats, 6)

    assert [message.subject for message in stored] == [
        "cdc.users.schema",
        "cdc.users.insert",
        "cdc.users.update",
        "cdc.users.update",
        "cdc.users.delete",
        "cdc.users.truncate",
    ]
    changes = [message for message in stored if message.is_change]
    assert changes == sorted(changes, key=lambda message: message.position)
    assert [c.fields["data"].get("id") for c in changes] == [1, 1, 2, 2, None]
    assert changes[2].fields["key"] == {"id": 1}
    assert all(m.headers["Nats-Msg-Id"] == m.fields["msg_id"] for m in stored)


def test_every_message_is_stored_behind_its_predecessor_only(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """Each names the one before it, so the server refuses whatever comes behind a refused one.

    The first one names where the stream ended when the bridge asked how far it is.
    """
    del bridge
    for number in range(0, 3_000, 1_000):
        users.execute(
            "INSERT INTO users SELECT generate_series(%s::int, %s)", [number, number + 999]
        )
        users.execute("UPDATE users SET name = 'x' WHERE id = %s", [number])
        # The chain goes on behind a pause, in which all that was sent is stored.
        stored = wait_messages(nats, number + number // 1_000 + 1_002)

    ids = [message.headers["Nats-Msg-Id"] for message in stored]
    behind = [message.headers.get("Nats-Expected-Last-Msg-Id") for message in stored]
    assert len(ids) == 3_004
    assert behind == [None, *ids[:-1]]
    assert stored[0].headers["Nats-Expected-Last-Sequence"] == "0"


def test_other_writers_in_the_stream_cost_no_change_and_no_order(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """What they store breaks the chain, and only once: then the bridge sends batches."""
    for number in range(5):
        publish(nats.url, "cdc.others.insert")
        users.execute(
            "INSERT INTO users SELECT generate_series(%s::int, %s)",
            [number * 700, number * 700 + 699],
        )
        wait_messages(nats, 1 + (number + 1) * 701)

    found = [change.fields["data"]["id"] for change in read_changes(nats.url)]
    assert found == list(range(3_500))
    assert bridge.said().count("is not the end of the stream") == 1


def test_a_bridge_that_connects_again_behind_other_writers_chains_again(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """Whoever broke the chain may be gone, and a stream for one costs its server less."""
    publish(nats.url, "cdc.others.insert")
    users.execute("INSERT INTO users VALUES (1, 'a')")
    beside = wait_inserts(nats, 1)[0]
    users.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                  " WHERE slot_name = %s", [f"slot_{users.info.dbname}"])  # fmt: skip
    users.execute("INSERT INTO users VALUES (2, 'b')")

    alone = wait_inserts(nats, 2)[1]

    conditions = [m.headers.get("Nats-Expected-Last-Sequence") for m in (beside, alone)]
    assert conditions == [None, str(alone.sequence - 1)], bridge.said()


def test_a_message_that_is_no_change_of_ours_is_named_at_the_next_start(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """How far the stream is cannot be read from it, and guessing would store changes twice."""
    users.execute("INSERT INTO users VALUES (1, 'a')")
    wait_messages(nats, 2)
    assert bridge.terminate() == 0
    publish(nats.url, "cdc.users.stray")

    bridge.start()

    assert bridge.wait() == SinkRefused.exit_code
    assert "cdc.users.stray, sequence 3 of stream CDC" in bridge.said()
    assert "nats stream rmm CDC 3" in bridge.said()


def test_a_slot_that_another_is_making_is_waited_for(
    environ: dict[str, str], users: Connection, tmp_path: Path
) -> None:
    """A slot is made when the transactions that are open have ended; until then it has no place."""
    flags = ("--slot", slot_of(environ), "--pub", "pub", "--durability", "acked")
    first, second = (
        BridgeProcess(environ, *flags, log=tmp_path / f"{name}.log") for name in ("one", "two")
    )
    with psycopg.connect(users.info.dsn, password=users.info.password) as other:
        other.execute("INSERT INTO users VALUES (1, 'open')")
        with first:
            query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
            wait_for(lambda: users.execute(query, [slot_of(environ)]).fetchone(), "the slot")
            with second:
                wait_for(lambda: second.status()["state"] == "standby", "the second to wait")
                assert "is being made by process" in second.said()
                other.commit()
                first.wait_streaming()


def test_a_stream_that_fills_up_says_so(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """The change that breaks the chain asked for no answer; the next try must tell the reason."""
    users.execute("INSERT INTO users VALUES (1, 'a')")
    wait_messages(nats, 2)
    edit_stream(nats.url, max_msgs=20)
    users.execute("INSERT INTO users SELECT generate_series(2, 1000)")

    wait_for(lambda: "maximum messages exceeded (10077)" in bridge.said(), "the reason")
    edit_stream(nats.url, max_msgs=-1)

    wait_messages(nats, 1_001)
    found = [change.fields["data"]["id"] for change in read_changes(nats.url)]
    assert found == list(range(1, 1_001))


def test_rows_of_one_copy_are_all_stored(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """They share one LSN; ids of the LSN alone would make JetStream drop all but the first."""
    del bridge
    with users.cursor().copy("COPY users (id, name) FROM STDIN") as copy:
        for number in range(500):
            copy.write_row((number, "x"))

    wait_messages(nats, 501)

    changes = read_changes(nats.url)
    assert [change.fields["data"]["id"] for change in changes] == list(range(500))
    assert [change.fields["seq"] for change in changes] == list(range(500))
    assert [change.fields["last"] for change in changes] == [False] * 499 + [True]
    assert len({change.fields["lsn"] for change in changes}) < 500, "PostgreSQL shared no LSN"


def test_unchanged_toast_is_named_and_not_null(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    del bridge
    users.execute("ALTER TABLE users ALTER big SET STORAGE EXTERNAL")
    users.execute("INSERT INTO users VALUES (1, 'a', repeat('x', 100000))")
    users.execute("UPDATE users SET name = 'b'")

    wait_messages(nats, 3)

    update = read_changes(nats.url)[-1].fields
    assert update["unchanged"] == ["big"]
    assert "big" not in update["data"]


def test_the_slot_follows_what_is_stored(bridge: BridgeProcess, users: Connection) -> None:
    del bridge
    users.execute("INSERT INTO users VALUES (1, 'a')")
    wait_confirmed(users, wal_end(users))


def test_the_slot_follows_when_only_other_tables_write(
    bridge: BridgeProcess, users: Connection
) -> None:
    """An idle publication must not make PostgreSQL keep everybody else's WAL."""
    del bridge
    users.execute("CREATE TABLE noise (x int)")
    users.execute("INSERT INTO noise SELECT generate_series(1, 1000)")
    wait_confirmed(users, wal_end(users))


def test_the_slot_follows_when_only_other_databases_write(
    bridge: BridgeProcess, users: Connection, postgres: EmbeddedPostgres
) -> None:
    """All databases of a cluster share one WAL, and a slot of an idle one keeps it all."""
    del bridge
    with psycopg.connect(postgres.dsn(), autocommit=True) as neighbour:
        neighbour.execute("CREATE TEMPORARY TABLE noise (x int)")
        neighbour.execute("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 100000))")
    wait_confirmed(users, wal_end(users))


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_stream_that_the_server_ends_is_begun_again(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats, end: str
) -> None:
    """An error alone leaves the connection open and idle: nothing more would ever come."""
    slot = f"slot_{users.info.dbname}"
    streaming = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    before = users.execute(streaming, [slot]).fetchone()

    users.execute(SQL("SELECT {}(active_pid) FROM pg_replication_slots WHERE slot_name = %s")
                  .format(Identifier(end)), [slot])  # fmt: skip
    users.execute("INSERT INTO users VALUES (1, 'a')")

    wait_messages(nats, 2)
    assert [change.fields["data"]["id"] for change in read_changes(nats.url)] == [1]
    assert users.execute(streaming, [slot]).fetchone() != before
    assert re.search("canceling statement|terminating connection", bridge.said())


def test_a_logical_message_is_published(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    del bridge
    users.execute("SELECT pg_logical_emit_message(true, 'app.note', 'hello')")
    (message,) = wait_messages(nats, 1)
    assert message.subject == "cdc._message.app=2Enote"
    assert message.fields["content"] == b"hello"


def test_a_new_column_is_announced_before_the_first_change_that_has_it(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    del bridge
    users.execute("INSERT INTO users VALUES (1, 'a')")
    users.execute("ALTER TABLE users ADD email text")
    users.execute("INSERT INTO users VALUES (2, 'b', NULL, 'b@example.test')")

    stored = wait_messages(nats, 4)

    assert [m.subject.split(".")[-1] for m in stored] == ["schema", "insert", "schema", "insert"]
    first, second = (m.fields for m in stored if m.subject.endswith(".schema"))
    assert [c["name"] for c in second["columns"]] == ["id", "name", "big", "email"]
    assert stored[3].fields["schema_revision"] == second["schema_revision"]
    assert second["schema_revision"] > first["schema_revision"]
    kept = dict(read_shapes(nats.url)["users"])
    assert kept[second["schema_revision"]]["fingerprint"] == second["fingerprint"]


def test_a_shape_that_changed_while_the_bridge_was_down_is_announced_in_order(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    users.execute("INSERT INTO users VALUES (1, 'a')")
    wait_messages(nats, 2)
    assert bridge.terminate() == 0
    users.execute("INSERT INTO users VALUES (2, 'old shape')")
    users.execute("ALTER TABLE users DROP big")
    users.execute("INSERT INTO users VALUES (3, 'new shape')")

    bridge.start()

    stored = wait_messages(nats, 5)
    assert [c.fields["data"] for c in stored if c.is_change][1:] == [
        {"id": 2, "name": "old shape", "big": None},
        {"id": 3, "name": "new shape"},
    ]
    announced = [len(m.fields["columns"]) for m in stored if m.subject.endswith(".schema")]
    assert announced == [3, 2], "the old shape was announced already, and is not again"


def test_json_is_published_on_request(
    environ: dict[str, str], users: Connection, nats: EmbeddedNats, tmp_path: Path
) -> None:
    flags = ("--slot", slot_of(environ), "--pub", "pub", "--json")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as process:
        process.wait_streaming()
        users.execute("INSERT INTO users VALUES (1, 'é')")
        change = wait_messages(nats, 2)[1]
    assert change.headers["Content-Type"] == "application/json"
    assert change.fields["data"]["name"] == "é"


def test_the_endpoints_answer(bridge: BridgeProcess, users: Connection, nats: EmbeddedNats) -> None:
    users.execute("INSERT INTO users VALUES (1, 'a')")
    wait_messages(nats, 2)
    wait_for(lambda: bridge.status()["events_published"] == 2, "the counters")

    assert bridge.get("/health")[0] == 200
    assert bridge.get("/ready")[0] == 200
    assert bridge.get("/nowhere")[0] == 404
    assert bridge.post("/health")[0] == 405
    status, metrics = bridge.status(), bridge.get("/metrics")[1].decode()
    assert status["tables"] == ["public.users"]
    assert 'bridge_cdc_events_published_total{operation="insert",table="users"} 1.0' in metrics
    assert "bridge_connected 1.0" in metrics


@pytest.mark.parametrize("how", ["SIGTERM", "POST /shutdown"])
def test_a_clean_end_confirms_what_was_stored(
    bridge: BridgeProcess, users: Connection, how: str
) -> None:
    users.execute("INSERT INTO users SELECT g, 'x' FROM generate_series(1, 2000) g")
    written = wal_end(users)
    wait_for(lambda: bridge.status()["events_published"] == 2001, "all to be stored")

    if how == "SIGTERM":
        bridge.process.terminate()
    else:
        assert bridge.post("/shutdown")[0] == 202

    assert bridge.wait() == 0
    wait_confirmed(users, written)


def test_no_secret_is_shown(bridge: BridgeProcess, environ: dict[str, str]) -> None:
    secret = environ["POSTGRES_BRIDGE_PASSWORD"]
    shown = [bridge.said(), json.dumps(bridge.status()), bridge.get("/metrics")[1].decode()]
    process_list = Path(f"/proc/{bridge.process.pid}/cmdline").read_text()
    assert [text for text in [*shown, process_list] if secret in text] == []

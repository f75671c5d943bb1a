"""Rows above max_payload go through the object store, in order, and come back the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.errors import RowTooLarge
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.proxy import Proxy
from tests.support.stream import count_messages, delete_stream, edit_stream, read_changes

NO_OBJECT_STORE = """
authorization { users: [{
  user: bridge, password: b
  permissions: { publish: { allow: ">", deny: ["$O.>", "$JS.API.STREAM.CREATE.OBJ_oversize"] } }
}, { user: reader, password: r }] }
"""


@pytest.fixture
def rows(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE rows (id int PRIMARY KEY, body text)")
    connection.execute("ALTER TABLE rows ALTER body SET STORAGE EXTERNAL")
    connection.execute("CREATE PUBLICATION pub FOR TABLE rows")
    return connection


def flags(environ: dict[str, str]) -> list[str]:
    return ["--slot", f"slot_{environ['PG_DB']}", "--pub", "pub", "--durability", "acked"]


@pytest.fixture
def bridge(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, rows: Connection, tmp_path: Path
) -> Iterator[BridgeProcess]:
    """A bridge that streams into a server as it comes."""
    del rows
    environ = {**postgres.env(database), **nats.env()}
    with BridgeProcess(environ, *flags(environ), log=tmp_path / "log") as process:
        process.wait_streaming()
        yield process


def test_a_row_above_max_payload_arrives_in_order_and_exact(
    bridge: BridgeProcess, nats: EmbeddedNats, rows: Connection
) -> None:
    del bridge
    with rows.transaction():
        rows.execute("INSERT INTO rows VALUES (1, 'small')")
        rows.execute("INSERT INTO rows VALUES (2, repeat('large é', 1000000))")
        rows.execute("INSERT INTO rows VALUES (3, 'small')")
    wait_for(lambda: count_messages(nats.url) >= 4, "the rows")

    changes = read_changes(nats.url)

    assert [change.fields["data"]["id"] for change in changes] == [1, 2, 3]
    assert changes[1].headers["Oversize"] == changes[1].fields["msg_id"]
    assert changes[1].fields["data"]["body"] == "large é" * 1_000_000
    assert [change.fields["last"] for change in changes] == [False, False, True]


def test_the_stream_can_end_with_an_oversize_row(
    bridge: BridgeProcess, nats: EmbeddedNats, rows: Connection
) -> None:
    """A start asks the stream for its last change, whose body may be in the object store."""
    rows.execute("INSERT INTO rows VALUES (1, repeat('x', 3000000))")
    wait_for(lambda: count_messages(nats.url) >= 2, "the row")
    bridge.kill()
    bridge.start()
    bridge.wait_streaming()
    rows.execute("INSERT INTO rows VALUES (2, 'after')")
    wait_for(lambda: count_messages(nats.url) >= 3, "the row after the restart")

    assert [change.fields["data"]["id"] for change in read_changes(nats.url)] == [1, 2]


def test_a_server_with_small_messages_takes_large_rows(
    postgres: EmbeddedPostgres, database: str, server_folder: Path, rows: Connection, tmp_path: Path
) -> None:
    """The pieces of an object are messages too."""
    with EmbeddedNats(server_folder / "nats", config="max_payload: 65536\n") as nats:
        environ = {**postgres.env(database), **nats.env()}
        with BridgeProcess(environ, *flags(environ), log=tmp_path / "log") as bridge:
            bridge.wait_streaming()
            rows.execute("INSERT INTO rows VALUES (1, repeat('x', 300000))")
            wait_for(lambda: count_messages(nats.url) >= 2, "the row")
        (change,) = read_changes(nats.url)
    assert change.fields["data"]["body"] == "x" * 300_000


def test_an_object_store_that_was_removed_is_made_again(
    bridge: BridgeProcess, nats: EmbeddedNats, rows: Connection
) -> None:
    rows.execute("INSERT INTO rows VALUES (1, repeat('x', 3000000))")
    rows.execute("INSERT INTO rows VALUES (2, 'small')")
    wait_for(lambda: count_messages(nats.url) >= 3, "the first rows")
    delete_stream(nats.url, "OBJ_oversize")
    rows.execute("INSERT INTO rows VALUES (3, repeat('y', 3000000))")
    wait_for(lambda: count_messages(nats.url) >= 4, "the row behind it")
    assert bridge.status()["state"] == "streaming"


def test_a_server_that_does_not_answer_in_time_is_asked_again(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, rows: Connection, tmp_path: Path
) -> None:
    """That says nothing about the row, so it must not end the bridge."""
    with Proxy(nats.port) as to_nats:
        environ = {**postgres.env(database), **nats.env(), "NATS_PORT": str(to_nats.port)}
        with BridgeProcess(environ, *flags(environ), log=tmp_path / "log") as bridge:
            bridge.wait_streaming()
            rows.execute("INSERT INTO rows VALUES (1, 'small')")
            wait_for(lambda: count_messages(nats.url) >= 2, "the table to be known")
            # Not before: a look at the catalog asks KV meanwhile, and would end the session first.
            to_nats.swallow_after = b"OBJ_oversize"
            rows.execute("INSERT INTO rows VALUES (2, repeat('x', 3000000))")
            wait_for(lambda: "object store oversize did not answer" in bridge.said(), "the wait")
            to_nats.swallow_after = b""
            to_nats.swallow_answers.clear()
            to_nats.cut()
            wait_for(lambda: count_messages(nats.url) >= 3, "the row")
            assert bridge.status()["state"] == "streaming"

    assert [change.fields["data"]["id"] for change in read_changes(nats.url)] == [1, 2]


def test_an_object_store_that_is_full_is_tried_again_when_it_has_room(
    bridge: BridgeProcess, nats: EmbeddedNats, rows: Connection
) -> None:
    """As with a stream that is full: the WAL is kept, the log says what to do."""
    rows.execute("INSERT INTO rows VALUES (1, repeat('x', 3000000))")
    wait_for(lambda: count_messages(nats.url) >= 2, "the first row")
    edit_stream(nats.url, "OBJ_oversize", max_bytes=4_000_000)
    rows.execute("INSERT INTO rows VALUES (2, repeat('x', 3000000))")
    wait_for(lambda: "maximum bytes exceeded" in bridge.said(), "the refusal")
    assert "raise its max_bytes" in bridge.said()
    edit_stream(nats.url, "OBJ_oversize", max_bytes=-1)
    wait_for(lambda: count_messages(nats.url) >= 3, "the second row")

    assert [change.fields["data"]["id"] for change in read_changes(nats.url)] == [1, 2]


def test_without_permission_for_the_object_store_nothing_is_confirmed(
    postgres: EmbeddedPostgres,
    database: str,
    server_folder: Path,
    rows: Connection,
    tmp_path: Path,
) -> None:
    """A row that can be stored nowhere stops the bridge in front of it, loudly."""
    with EmbeddedNats(server_folder / "nats", config=NO_OBJECT_STORE) as nats:
        user = {"NATS_BRIDGE_USER": "bridge", "NATS_BRIDGE_PASSWORD": "b"}
        environ = {**postgres.env(database), **nats.env(), **user}
        with BridgeProcess(environ, *flags(environ), log=tmp_path / "log") as bridge:
            bridge.wait_streaming()
            rows.execute("INSERT INTO rows VALUES (1, repeat('x', 3000000))")
            assert bridge.wait() == RowTooLarge.exit_code
            said = bridge.said()

    assert "-rows-insert takes 3000" in said
    assert "$O.oversize.>" in said
    behind = rows.execute(
        "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots"
        " WHERE slot_name = %s",
        [f"slot_{database}"],
    ).fetchone()
    assert behind == (True,)

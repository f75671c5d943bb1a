"""Bad input ends with one clear sentence, its remedy and an exit code; never with a traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bridge.errors import (
    BadConfiguration,
    BridgeError,
    PortInUse,
    SinkLost,
    SinkRefused,
    SourceLost,
    SourceNotReady,
    SourceRefused,
)
from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess


def refusal(tmp_path: Path, environ: dict[str, str], error: type[BridgeError], *flags: str) -> str:
    """Run a bridge that must refuse to start, and give what it said."""
    patience = ("--start-timeout", "0.5")
    flags = (*patience, *(flags or ("--slot", "s", "--pub", "pub")))
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as process:
        assert process.wait() == error.exit_code, process.said()
    said = process.said()
    assert "Traceback" not in said
    what, advice = said.splitlines()[-2:]
    assert what.startswith("bridge: ")
    assert advice.startswith("  ")
    return f"{what}\n{advice}"


@pytest.fixture
def environ(postgres: EmbeddedPostgres, database: str, nats_server: EmbeddedNats) -> dict[str, str]:
    return {**postgres.env(database), **nats_server.env()}


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def test_a_missing_publication_says_how_to_make_one(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    said = refusal(tmp_path, environ, SourceNotReady)
    assert "publication pub does not exist" in said
    assert 'CREATE PUBLICATION "pub"' in said


def test_a_slot_of_another_plugin_is_not_touched(
    tmp_path: Path, environ: dict[str, str], connection: Connection
) -> None:
    connection.execute("CREATE PUBLICATION pub")
    connection.execute("SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')")
    said = refusal(tmp_path, environ, SourceNotReady, "--slot", "theirs", "--pub", "pub")
    assert "slot theirs belongs to plugin test_decoding" in said


def test_a_wrong_password_is_called_by_its_name(tmp_path: Path, environ: dict[str, str]) -> None:
    wrong = {**environ, "POSTGRES_BRIDGE_PASSWORD": "wr0ng-s3cret"}
    said = refusal(tmp_path, wrong, SourceRefused)
    assert "password authentication failed" in said
    assert "POSTGRES_BRIDGE_PASSWORD" in said
    assert "wr0ng-s3cret" not in said


def test_a_missing_database_is_called_by_its_name(tmp_path: Path, environ: dict[str, str]) -> None:
    said = refusal(tmp_path, {**environ, "PG_DB": "nowhere"}, SourceNotReady)
    assert 'database "nowhere" does not exist' in said


def test_a_role_that_may_not_replicate_is_told_so(
    tmp_path: Path, environ: dict[str, str], connection: Connection
) -> None:
    connection.execute("DROP ROLE IF EXISTS reader")
    connection.execute("CREATE ROLE reader LOGIN PASSWORD 'r'")
    reader = {**environ, "POSTGRES_BRIDGE_USER": "reader", "POSTGRES_BRIDGE_PASSWORD": "r"}
    said = refusal(tmp_path, reader, SourceNotReady)
    assert 'ALTER ROLE "reader" REPLICATION' in said


def test_wal_level_must_be_logical(tmp_path: Path, nats_server: EmbeddedNats) -> None:
    with (
        temporary_folder() as folder,
        EmbeddedPostgres(folder, settings={"wal_level": "replica"}, durable=False) as server,
    ):
        said = refusal(tmp_path, {**server.env(), **nats_server.env()}, SourceNotReady)
    assert "wal_level is replica" in said
    assert "ALTER SYSTEM SET wal_level = logical" in said


def test_postgresql_that_is_down_is_named_with_its_address(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    port = free_port()
    said = refusal(tmp_path, {**environ, "PG_PORT": port}, SourceLost)
    assert f"127.0.0.1:{port}" in said
    assert "PG_HOST" in said


def test_nats_that_is_down_is_named_with_its_address(
    tmp_path: Path, environ: dict[str, str], connection: Connection
) -> None:
    connection.execute("CREATE PUBLICATION pub")
    port = free_port()
    said = refusal(tmp_path, {**environ, "NATS_PORT": port}, SinkLost)
    assert f"NATS at 127.0.0.1:{port}" in said
    assert "NATS_HOST" in said


def test_a_server_that_does_not_answer_is_not_called_gone_without_a_reason(
    tmp_path: Path, environ: dict[str, str], connection: Connection
) -> None:
    """A timeout has no text of its own."""
    connection.execute("CREATE PUBLICATION pub")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        said = refusal(tmp_path, {**environ, "NATS_PORT": port}, SinkLost)
    assert f"NATS at 127.0.0.1:{port} cannot be reached: TimeoutError" in said


def test_a_nats_that_refuses_the_user_is_not_tried_again(
    tmp_path: Path, environ: dict[str, str], connection: Connection, server_folder: Path
) -> None:
    connection.execute("CREATE PUBLICATION pub")
    accounts = "authorization { user: bridge, password: right }"
    with EmbeddedNats(server_folder, config=accounts) as closed:
        wrong = {"NATS_BRIDGE_USER": "bridge", "NATS_BRIDGE_PASSWORD": "wr0ng"}
        said = refusal(tmp_path, {**environ, **closed.env(), **wrong}, SinkRefused)
    assert "NATS_BRIDGE_PASSWORD" in said
    assert "wr0ng" not in said


def test_a_port_in_use_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ("--slot", "s", "--pub", "pub", "--port", port)
        said = refusal(tmp_path, environ, PortInUse, *flags)
    assert f"127.0.0.1:{port} is in use" in said
    assert "--port" in said


def test_an_open_address_needs_a_token(tmp_path: Path, environ: dict[str, str]) -> None:
    """Anybody who can reach POST /shutdown can stop the pipeline."""
    flags = ("--slot", "s", "--pub", "pub", "--host", "0.0.0.0")
    assert "BRIDGE_HTTP_TOKEN" in refusal(tmp_path, environ, BadConfiguration, *flags)


def test_missing_flags_are_named(tmp_path: Path, environ: dict[str, str]) -> None:
    assert "--slot is missing" in refusal(tmp_path, environ, BadConfiguration, "--pub", "pub")


def test_a_table_of_another_slot_is_left_to_it(
    tmp_path: Path, postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats,
    connection: Connection,
) -> None:  # fmt: skip
    """Two slots are at two positions; each would take the other's changes for its own."""
    connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    environ = {**postgres.env(database), **nats.env()}
    first = ("--slot", f"first_{database}", "--pub", "pub")
    with BridgeProcess(environ, *first, log=tmp_path / "first.log") as process:
        process.wait_streaming()
        second = ("--slot", f"second_{database}", "--pub", "pub")
        said = refusal(tmp_path, environ, SinkRefused, *second)
    assert f"first_{database}" in said
    assert "nats kv del schemas users" in said

"""Encrypted and authenticated connections, against real servers with certificates made here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.errors import BadConfiguration, BridgeError, SinkRefused, SourceRefused
from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.certificates import Authority, Pair
from tests.support.nats_jwt import make_operator
from tests.support.tlsproxy import TlsProxy

FLAGS = ("--pub", "pub", "--durability", "acked")
PASSWORD = "s3cret-of-nats"
AUTHORIZATION = f"authorization {{ user: bridge, password: {PASSWORD} }}\n"


@dataclass(frozen=True, slots=True)
class Trust:
    """Two CAs: ours, and one that nobody here should trust."""

    folder: Path
    ours: Authority
    theirs: Authority


@pytest.fixture(scope="module")
def trust() -> Iterator[Trust]:
    with temporary_folder() as folder:
        ours = Authority(folder / "ours", "ours")
        yield Trust(folder, ours, Authority(folder / "theirs", "theirs"))


@pytest.fixture(scope="module")
def postgres_port(postgres: EmbeddedPostgres, trust: Trust) -> Iterator[int]:
    """The run's PostgreSQL behind TLS, which it was built without."""
    with TlsProxy(postgres.port, trust.ours.issue("postgres")) as proxy:
        yield proxy.port


@pytest.fixture
def environ(
    postgres: EmbeddedPostgres, database: str, postgres_port: int, trust: Trust
) -> dict[str, str]:
    """PostgreSQL over TLS."""
    return {
        **postgres.env(database),
        "PG_PORT": str(postgres_port),
        "PG_SSLROOTCERT": str(trust.ours.cert),
        "BRIDGE_SLOT": f"slot_{database}",
    }


@pytest.fixture
def users(connection: Connection) -> Connection:
    """A published table, in a database reached without TLS."""
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    connection.execute("ALTER TABLE users ALTER name SET STORAGE EXTERNAL")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    return connection


def nats_tls(pair: Pair, more: str = "") -> str:
    return f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}"{more} }}\n'


@pytest.fixture
def secure_nats(server_folder: Path, trust: Trust) -> Iterator[EmbeddedNats]:
    """NATS that wants TLS and a password."""
    config = nats_tls(trust.ours.issue("nats")) + AUTHORIZATION
    with EmbeddedNats(server_folder, config=config) as server:
        yield server


def nats_env(server: EmbeddedNats, trust: Trust) -> dict[str, str]:
    return {
        **server.env(),
        "NATS_TLS_CA": str(trust.ours.cert),
        "NATS_BRIDGE_USER": "bridge",
        "NATS_BRIDGE_PASSWORD": PASSWORD,
    }


def carries_changes(environ: dict[str, str], users: Connection, log: Path) -> str:
    """Run a bridge until changes are stored, and give all it said and showed."""
    with BridgeProcess(environ, *FLAGS, log=log) as process:
        process.wait_streaming()
        users.execute(
            "INSERT INTO users SELECT g, repeat('x', g * 40) FROM generate_series(1, 500) g"
        )
        wait_for(lambda: process.status()["events_published"] == 501, "the changes")
        shown = json.dumps(process.status()) + _command_line(process)
        assert process.terminate() == 0
    shown += process.said()
    assert "s3cret" not in shown
    assert environ["POSTGRES_BRIDGE_PASSWORD"] not in shown
    return shown


def _command_line(process: BridgeProcess) -> str:
    return Path(f"/proc/{process.process.pid}/cmdline").read_text()


def refusal(environ: dict[str, str], error: type[BridgeError], log: Path) -> str:
    with BridgeProcess(environ, *FLAGS, "--start-timeout", "0.5", log=log) as process:
        assert process.wait() == error.exit_code, process.said()
    said = process.said()
    assert "Traceback" not in said
    assert "s3cret" not in said
    return said


def test_changes_flow_over_tls_on_both_sides(
    tmp_path: Path,
    environ: dict[str, str],
    secure_nats: EmbeddedNats,
    trust: Trust,
    users: Connection,
) -> None:
    carries_changes({**environ, **nats_env(secure_nats, trust)}, users, tmp_path / "bridge.log")


def test_a_url_with_a_password_in_it_is_never_shown(
    tmp_path: Path,
    environ: dict[str, str],
    secure_nats: EmbeddedNats,
    trust: Trust,
    users: Connection,
) -> None:
    url = f"tls://bridge:{PASSWORD}@127.0.0.1:{secure_nats.port}"
    tls = {"NATS_URL": url, "NATS_TLS_CA": str(trust.ours.cert)}
    carries_changes({**environ, **tls}, users, tmp_path / "bridge.log")


def test_client_certificates_are_shown_to_both_servers(
    tmp_path: Path,
    environ: dict[str, str],
    server_folder: Path,
    trust: Trust,
    users: Connection,
) -> None:
    client, log = trust.ours.issue("client"), tmp_path / "bridge.log"
    wants = f', ca_file: "{trust.ours.cert}", verify: true'
    with (
        EmbeddedNats(server_folder, config=nats_tls(trust.ours.issue("nats"), wants)) as nats,
        TlsProxy(
            int(users.info.port), trust.ours.issue("postgres"), clients=trust.ours.cert
        ) as proxy,
    ):
        without = {**environ, **nats.env(), "NATS_TLS_CA": str(trust.ours.cert)}
        with_nats = {
            **without, "NATS_TLS_CERT": str(client.cert), "NATS_TLS_KEY": str(client.key),
        }  # fmt: skip
        with_both = {
            **with_nats, "PG_PORT": str(proxy.port),
            "PG_SSLCERT": str(client.cert), "PG_SSLKEY": str(client.key),
        }  # fmt: skip

        assert "NATS_TLS_CERT" in refusal(without, SinkRefused, log)
        carries_changes(with_both, users, log)
        assert proxy.served


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"PG_SSLROOTCERT": "theirs"}, SourceRefused, "certificate verify failed"),
        ({"NATS_TLS_CA": "theirs"}, SinkRefused, "shows a certificate that cannot be trusted"),
        ({"NATS_TLS_CA": "nowhere"}, BadConfiguration, "nowhere.pem"),
        ({"PG_SSLROOTCERT": "nowhere"}, BadConfiguration, "nowhere.pem"),
    ],
)
def test_a_certificate_of_another_ca_is_refused_in_a_clear_sentence(
    wrong: dict[str, str],
    error: type[BridgeError],
    said: str,
    *,
    tmp_path: Path,
    environ: dict[str, str],
    secure_nats: EmbeddedNats,
    trust: Trust,
    users: Connection,
) -> None:
    del users
    files = {"theirs": str(trust.theirs.cert), "nowhere": str(tmp_path / "nowhere.pem")}
    mistake = {option: files[which] for option, which in wrong.items()}

    answer = refusal(
        {**environ, **nats_env(secure_nats, trust), **mistake}, error, tmp_path / "bridge.log"
    )

    assert said in answer
    assert next(iter(wrong)) in answer


def test_a_server_without_tls_gets_no_secret(
    tmp_path: Path,
    environ: dict[str, str],
    server_folder: Path,
    trust: Trust,
    users: Connection,
) -> None:
    """nats-py would go on unencrypted, password included, where a server does not ask for TLS."""
    del users
    with EmbeddedNats(server_folder, config=f"{AUTHORIZATION}trace: true\ndebug: true") as server:
        said = refusal({**environ, **nats_env(server, trust)}, SinkRefused, tmp_path / "bridge.log")
        assert "[CONNECT" not in server.log.read_text()
    assert "does not ask for TLS" in said


def test_credentials_sign_the_servers_nonce(
    tmp_path: Path, environ: dict[str, str], server_folder: Path, users: Connection
) -> None:
    operator, creds, log = make_operator(), tmp_path / "bridge.creds", tmp_path / "bridge.log"
    with EmbeddedNats(server_folder, config=operator.server_config) as server:
        creds.write_text(operator.creds)
        ours = {**environ, **server.env(), "NATS_CREDS": str(creds)}
        assert operator.seed not in carries_changes(ours, users, log)

        creds.write_text(make_operator().creds)
        assert "NATS_CREDS" in refusal(ours, SinkRefused, log)


def test_a_token_opens_both_connections(
    tmp_path: Path, environ: dict[str, str], server_folder: Path, users: Connection
) -> None:
    with EmbeddedNats(server_folder, config=f"authorization {{ token: {PASSWORD} }}") as server:
        token = {**server.env(), "NATS_TOKEN": PASSWORD}
        carries_changes({**environ, **token}, users, tmp_path / "bridge.log")


@pytest.mark.parametrize(
    "dsn", ["postgresql://bridge:s3cret%zz@127.0.0.1/x", "host=127.0.0.1 password s3cret"]
)
def test_a_damaged_connection_string_is_not_shown(tmp_path: Path, dsn: str) -> None:
    """libpq quotes the part it cannot read, and that may be the password."""
    environ = {"PG_DSN": dsn, "BRIDGE_SLOT": "s"}
    said = refusal(environ, BadConfiguration, tmp_path / "bridge.log")
    assert "PG_DSN is not a connection string" in said


def test_a_connection_string_wins_and_its_address_is_named(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    address = f"127.0.0.1:{environ['PG_PORT']}/{environ['PG_DB']}"
    wrong = {**environ, "PG_DSN": f"postgresql://postgres:s3cret@{address}", "PG_PORT": "1"}
    said = refusal(wrong, SourceRefused, tmp_path / "bridge.log")
    assert f"PostgreSQL at {address}: " in said
    assert "password authentication failed" in said

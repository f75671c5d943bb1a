"""The servers of the demo and the tests: what they promise to those who start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nats as nats_py
import psutil
import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres, ServerDied, process, server
from examples.embedded import postgres as postgres_module
from tests.conftest import Connection
from tests.packaging import ROOT


def test_a_wrong_password_is_refused(postgres: EmbeddedPostgres) -> None:
    """Tests of wrong credentials are worth something only where passwords count."""
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn(password="wrong"))


def test_logical_decoding_is_on(connection: Connection) -> None:
    """The bridge needs it, and it cannot be switched on without a restart."""
    assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_killed_postgres_comes_back_with_its_port_and_its_commits(
    own_postgres: EmbeddedPostgres,
) -> None:
    """Crash tests look for lost rows, so the server itself must lose none."""
    port = own_postgres.port
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as before:
        before.execute("CREATE TABLE kept AS SELECT 1 AS id")

    own_postgres.kill()
    own_postgres.start()

    with psycopg.connect(own_postgres.dsn()) as after:
        assert after.execute("SELECT id FROM kept").fetchall() == [(1,)]
    assert own_postgres.port == port


async def test_killed_nats_comes_back_with_its_port_and_its_messages(nats: EmbeddedNats) -> None:
    """A process crash is not a power loss: what JetStream acknowledged is still there."""
    client = await nats_py.connect(nats.url)
    await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
    await client.jetstream().publish("kept", b"1")
    await client.close()

    nats.kill()
    nats.start()

    client = await nats_py.connect(nats.url)
    assert (await client.jetstream().stream_info("KEPT")).state.messages == 1
    await client.close()


@pytest.mark.parametrize("kind", [EmbeddedPostgres, EmbeddedNats])
def test_a_port_taken_in_between_is_no_obstacle(
    kind: type[EmbeddedPostgres | EmbeddedNats],
    nats_server: EmbeddedNats,
    server_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process may listen between our look for a free port and the server's bind."""
    ports = iter([nats_server.port, server.free_port()])
    monkeypatch.setattr(server, "free_port", lambda: next(ports))

    with kind(server_folder) as started:
        assert started.port != nats_server.port


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user for PostgreSQL")
def test_root_can_use_binaries_that_others_cannot_reach(
    postgres: EmbeddedPostgres, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project in root's home is closed to the user PostgreSQL runs as."""
    monkeypatch.setattr(postgres_module, "_reachable", _all_but(postgres.binaries))

    with EmbeddedPostgres(server_folder, durable=False) as server:
        assert server.binaries.is_relative_to(server_folder)


def _all_but(closed: Path) -> Callable[[Path, object], bool]:
    return lambda path, _: path != closed.resolve()


def test_a_server_that_dies_at_start_says_why(server_folder: Path) -> None:
    """The reason stands in a log that a temporary folder takes with it."""
    with pytest.raises(ServerDied, match="Parse error"):
        EmbeddedNats(server_folder, config="jetstream {").start()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's word of a parent's death")
def test_no_server_outlives_a_killed_parent(server_folder: Path) -> None:
    """A test run that is killed cannot clean up, and must not fill the machine with servers."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from examples.embedded import EmbeddedNats, EmbeddedPostgres\n"
        "folder = Path(sys.argv[1])\n"
        "postgres = EmbeddedPostgres(folder / 'postgres', durable=False).start()\n"
        "nats = EmbeddedNats(folder / 'nats').start()\n"
        "print(postgres.process.pid, nats.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(server_folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        servers = [int(pid) for pid in parent.stdout.readline().split()]
    family = [psutil.Process(pid) for pid in servers]
    family += [child for parent_of in family for child in parent_of.children(recursive=True)]

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    assert len(servers) == 2
    deadline = time.monotonic() + 60
    while (left := [p for p in family if process.alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []

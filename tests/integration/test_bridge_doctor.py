"""`bridge check`, `bridge status` and `bridge drop-slot` against real servers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from bridge.cli import main
from bridge.config import StreamOverrides
from bridge.errors import (
    BadConfiguration,
    NothingListens,
    SinkRefused,
    SlotBusy,
    SourceNotReady,
)
from bridge.jetstream.provision import provision, stream_config
from examples.embedded import EmbeddedNats, EmbeddedPostgres, free_port
from schemas.streams import CDC_STREAM
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import administer


@pytest.fixture
def environ(postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats) -> dict[str, str]:
    return {
        **postgres.env(database),
        **nats.env(),
        "BRIDGE_SLOT": f"slot_{database}",
        "BRIDGE_PUBLICATION": "pub",
    }


@pytest.fixture
def tables(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    return connection


@pytest.fixture
def bridge(environ: dict[str, str], tables: Connection, tmp_path: Path) -> Iterator[BridgeProcess]:
    del tables
    with BridgeProcess(environ, log=tmp_path / "bridge.log") as process:
        process.wait_streaming()
        yield process


@dataclass(frozen=True, slots=True)
class Done:
    """What a command said, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


def run(environ: dict[str, str], *arguments: str) -> Done:
    """Run a command in this process; starting one takes longer than the command."""
    out, err = StringIO(), StringIO()
    with patch.dict(os.environ, environ), redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    shown = out.getvalue() + err.getvalue()
    assert "Traceback" not in shown
    assert environ["POSTGRES_BRIDGE_PASSWORD"] not in shown
    return Done(code, out.getvalue(), err.getvalue())


def check(environ: dict[str, str], code: int) -> dict[str, dict[str, str]]:
    """Run the doctor and give its findings by check."""
    done = run(environ, "check", "--format", "json")
    assert done.returncode == code, done.stdout + done.stderr
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def add_stream(server: EmbeddedNats, **settings: Any) -> None:
    async def add() -> None:
        async with administer(server.url) as js:
            await js.add_stream(stream_config(CDC_STREAM), **settings)

    asyncio.run(add())


def server_state(connection: Connection, server: EmbeddedNats) -> object:
    """Everything a doctor could have changed."""

    async def streams() -> list[str]:
        async with administer(server.url) as js:
            return sorted(str(i.config.name) for i in await js.streams_info())

    slots = connection.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1").fetchall()
    return slots, asyncio.run(streams())


def test_before_the_first_start_all_is_well_and_nothing_is_made(
    environ: dict[str, str], tables: Connection, nats: EmbeddedNats
) -> None:
    before = server_state(tables, nats)

    found = check(environ, 0)

    assert "makes it" in found["stream CDC"]["what"]
    assert "makes it" in found["slot"]["what"]
    assert {found[f"clock {server}"]["verdict"] for server in ("PostgreSQL", "NATS")} == {"ok"}
    assert server_state(tables, nats) == before


def test_a_running_bridge_is_found_healthy(environ: dict[str, str], bridge: BridgeProcess) -> None:
    del bridge
    text = run(environ, "check")
    found = check(environ, 0)
    assert "read by process" in found["slot"]["what"]
    assert {f["verdict"] for name, f in found.items() if name.startswith(("stream", "bucket"))} == {
        "ok"
    }
    assert text.returncode == 0
    assert len(text.stdout.splitlines()) == len(found) + 1


def test_what_the_role_lacks_is_named_with_the_statement_that_mends_it(
    environ: dict[str, str], tables: Connection
) -> None:
    role = f"role_{environ['PG_DB']}"
    tables.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret-{role}'")
    tables.execute('CREATE SCHEMA sales CREATE TABLE "Odd Name" (id int)')
    limited = {
        **environ, "POSTGRES_BRIDGE_USER": role, "POSTGRES_BRIDGE_PASSWORD": f"secret-{role}",
    }  # fmt: skip
    try:
        found = check(limited, 1)
        assert found["role"]["verdict"] == "fail"
        assert "REPLICA IDENTITY" in found['key sales."Odd Name"']["remedy"]
        for closed in ("public.users", 'sales."Odd Name"'):
            tables.execute(found[f"grants {closed}"]["remedy"].encode())
        tables.execute(f"ALTER ROLE {role} REPLICATION")

        mended = check(limited, 0)
        assert mended["grants"]["verdict"] == "ok"
    finally:
        tables.execute(f"DROP OWNED BY {role}")
        tables.execute(f"DROP ROLE {role}")


def test_risky_streams_are_named_and_a_bridge_does_not_start_on_them(
    environ: dict[str, str], tables: Connection, nats: EmbeddedNats, tmp_path: Path
) -> None:
    del tables
    add_stream(nats, discard=DiscardPolicy.OLD, storage=StorageType.MEMORY)

    done = run(environ, "check")

    assert done.returncode == 1
    assert "nats stream edit CDC --discard new" in done.stdout
    assert "kept in memory" in done.stdout
    with BridgeProcess(environ, log=tmp_path / "bridge.log") as process:
        assert process.wait() == SinkRefused.exit_code
    assert "changes would be lost" in process.said()


async def provisioned(server: EmbeddedNats, **wishes: Any) -> StreamConfig:
    """Let the bridge make what is missing, and give the CDC stream's settings."""
    async with administer(server.url) as js:
        return await provision(js, StreamOverrides(**wishes))


async def test_streams_are_made_as_wished_and_left_so(nats: EmbeddedNats) -> None:
    made = await provisioned(nats, max_age=timedelta(days=7), max_bytes=64 << 20)
    kept = await provisioned(nats, max_age=timedelta(hours=1), max_bytes=128 << 20, replicas=3)
    assert (made.max_age, made.max_bytes) == (7 * 86_400, 64 << 20)
    assert (kept.max_age, kept.max_bytes) == (7 * 86_400, 64 << 20)


async def test_more_replicas_than_servers_are_refused_with_the_way_out(nats: EmbeddedNats) -> None:
    with pytest.raises(SinkRefused) as raised:
        await provisioned(nats, replicas=3)
    assert "--stream-replicas" in raised.value.advice


async def test_a_stream_that_does_not_fit_says_what_to_raise(server_folder: Path) -> None:
    with EmbeddedNats(server_folder, config="jetstream { max_file_store: 100MB }") as server:
        with pytest.raises(SinkRefused) as raised:
            await provisioned(server)
        assert "--stream-max-bytes" in raised.value.advice
        assert (await provisioned(server, max_bytes=10 << 20)).max_bytes == 10 << 20


def test_with_one_server_down_the_other_is_still_checked(
    environ: dict[str, str], tables: Connection
) -> None:
    del tables
    nowhere = str(free_port())

    without_nats = check({**environ, "NATS_PORT": nowhere}, 1)
    without_postgres = check({**environ, "PG_PORT": nowhere}, 1)

    assert without_nats["nats"]["verdict"] == "fail"
    assert without_nats["wal_level"]["verdict"] == "ok"
    assert without_postgres["postgres"]["verdict"] == "fail"
    assert without_postgres["jetstream"]["verdict"] == "ok"


def test_a_nats_without_jetstream_is_told_apart_from_none(
    environ: dict[str, str], tables: Connection, server_folder: Path
) -> None:
    del tables
    accounts = "accounts { A { users: [{user: bridge, password: p}] } }"
    with EmbeddedNats(server_folder / "other", config=accounts) as server:
        user = {"NATS_BRIDGE_USER": "bridge", "NATS_BRIDGE_PASSWORD": "p"}
        found = check({**environ, **server.env(), **user}, 1)
    assert found["nats"]["verdict"] == "ok"
    assert found["jetstream"]["verdict"] == "fail"


def test_status_is_for_people_and_machines(environ: dict[str, str], bridge: BridgeProcess) -> None:
    port = bridge.said().split("http on 127.0.0.1:")[1].split('"')[0]

    text = run(environ, "status", "--port", port)
    machine = run(environ, "status", "--port", port, "--format", "json")
    open_address = run(environ, "status", "--host", "0.0.0.0", "--port", port)

    assert text.stdout.splitlines()[0].split() == ["state", "streaming"]
    assert json.loads(machine.stdout)["state"] == "streaming"
    assert open_address.returncode == 0


def test_status_of_nobody_is_a_clear_error(environ: dict[str, str], nats: EmbeddedNats) -> None:
    nobody = run(environ, "status", "--port", str(free_port()))
    other = run(environ, "status", "--port", str(nats.port))
    assert nobody.returncode == other.returncode == NothingListens.exit_code
    assert "no bridge answers at http://127.0.0.1:" in nobody.stderr


def test_a_slot_is_dropped_only_when_free_and_confirmed(
    environ: dict[str, str], bridge: BridgeProcess, tables: Connection
) -> None:
    def slots() -> list[object]:
        query = "SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s"
        return [row[0] for row in tables.execute(query, [environ["BRIDGE_SLOT"]]).fetchall()]

    busy = run(environ, "drop-slot", "--yes")
    assert busy.returncode == SlotBusy.exit_code
    assert "--force" in busy.stderr
    bridge.kill()
    wait_for(lambda: run(environ, "drop-slot").returncode != SlotBusy.exit_code, "the slot")
    unsure = run(environ, "drop-slot")
    assert unsure.returncode == BadConfiguration.exit_code
    assert "--yes" in unsure.stderr
    assert slots()

    assert run(environ, "drop-slot", "--yes").returncode == 0

    assert not slots()
    assert run(environ, "drop-slot", "--yes").returncode == SourceNotReady.exit_code


def test_a_slot_in_use_is_dropped_by_force(
    environ: dict[str, str], bridge: BridgeProcess, tables: Connection
) -> None:
    del tables
    # Stopped, it cannot come back and make the slot anew; PostgreSQL still sees a reader.
    os.kill(bridge.process.pid, 19)
    assert run(environ, "drop-slot", "--yes", "--force").returncode == 0


@pytest.mark.parametrize("command", ["run", "check", "status", "drop-slot"])
def test_help_explains_each_command(command: str) -> None:
    out = StringIO()
    with pytest.raises(SystemExit, match="0"), redirect_stdout(out):
        main([command, "--help"])
    assert "VARIABLE_FILE" in out.getvalue()

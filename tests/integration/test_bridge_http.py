"""The HTTP endpoints while changes flow, and clients that behave badly."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.http.server import MAX_CONNECTIONS
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import count_messages

TOKEN = "t0ken"


@pytest.fixture
def environ(postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats) -> dict[str, str]:
    return {**postgres.env(database), **nats.env(), "BRIDGE_SLOT": f"slot_{database}"}


@pytest.fixture
def users(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    return connection


@pytest.fixture
def bridge(environ: dict[str, str], users: Connection, tmp_path: Path) -> Iterator[BridgeProcess]:
    """A bridge that streams."""
    del users
    flags = ("--pub", "pub", "--durability", "acked")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as process:
        process.wait_streaming()
        yield process


def address_of(bridge: BridgeProcess) -> tuple[str, int]:
    found = wait_for(lambda: re.search(r"http on (\S+):(\d+)\"", bridge.said()), "HTTP to listen")
    return found[1], int(found[2])


def test_a_stream_is_described_in_the_servers_words(bridge: BridgeProcess) -> None:
    code, body = bridge.get("/streams/info?stream=CDC")
    answer = json.loads(body)
    assert code == 200
    assert answer["config"]["subjects"] == ["cdc.>"]
    assert answer["state"]["messages"] == 0


def test_a_stream_that_cannot_be_described_is_told_apart(bridge: BridgeProcess) -> None:
    queries = {"": 400, "?stream=": 400, "?stream=NOWHERE": 404, "?stream=a.b%20*%3E": 404}
    answers = {query: bridge.get(f"/streams/info{query}") for query in queries}
    assert {query: code for query, (code, _) in answers.items()} == queries
    assert all(json.loads(body)["error"] for _, body in answers.values())


def test_a_stream_is_unknown_while_nats_is_down(bridge: BridgeProcess, nats: EmbeddedNats) -> None:
    nats.stop()

    code, body = bridge.get("/streams/info?stream=CDC")

    assert code == 503
    assert "nats-server is running" in json.loads(body)["advice"]
    assert bridge.get("/health")[0] == 200


def test_the_page_needs_nothing_from_elsewhere(bridge: BridgeProcess) -> None:
    code, body = bridge.get("/")
    text = body.decode()
    assert code == 200
    assert re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text) == []
    assert 'fetch("status"' in text
    known = bridge.status()
    named = set(re.findall(r"\b(?:s|status|was)\.([a-z_]+)", text))
    assert named - known.keys() == set(), "the page reads what /status does not tell"


def test_status_counts_by_table(bridge: BridgeProcess, users: Connection) -> None:
    users.execute("INSERT INTO users SELECT g, 'x' FROM generate_series(1, 7) g")
    wait_for(lambda: bridge.status()["events_published"] == 8, "the changes")
    assert bridge.status()["published"]["cdc.users.insert"] == 7


def test_shutdown_needs_the_token_where_one_is_set(
    environ: dict[str, str], users: Connection, tmp_path: Path
) -> None:
    del users
    secret = {**environ, "BRIDGE_HTTP_TOKEN": TOKEN}
    with BridgeProcess(secret, "--pub", "pub", log=tmp_path / "bridge.log") as process:
        process.wait_streaming()

        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN[:-1]}):
            assert process.post("/shutdown", wrong)[0] == 401
        assert process.post("/shutdown", {"Authorization": f"Bearer {TOKEN}"})[0] == 202

        assert process.wait() == 0
    assert TOKEN not in process.said()


def test_a_web_page_cannot_stop_the_bridge(bridge: BridgeProcess) -> None:
    """A browser on this machine reaches loopback on behalf of any site, and says which."""
    assert bridge.post("/shutdown", {"Origin": "https://example.test"})[0] == 401
    assert bridge.get("/health")[0] == 200


def test_badly_behaved_clients_do_not_disturb_the_pipeline(
    bridge: BridgeProcess, users: Connection, nats: EmbeddedNats
) -> None:
    """Half requests that never end, a body of 10 MB, nonsense: changes still arrive."""
    address = address_of(bridge)
    with contextlib.ExitStack() as open_sockets:
        for number in range(2 * MAX_CONNECTIONS):
            slow = open_sockets.enter_context(socket.create_connection(address))
            with contextlib.suppress(OSError):
                slow.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nX-%d: " % number)
        users.execute("INSERT INTO users SELECT g, 'x' FROM generate_series(1, 1000) g")
        wait_for(lambda: count_messages(nats.url) == 1001, "the changes")
    wait_for(lambda: _answers(bridge), "an answer once the others are gone")

    for request in (
        b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\n\r\n" + b"x" * (10 << 20),
        b"POST /shutdown HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\n\r\n"
        + b"x" * (10 << 20),
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        b"BREW /coffee HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        assert not _answer(address, request).startswith(b"HTTP/1.1 2")
    users.execute("INSERT INTO users SELECT g, 'x' FROM generate_series(1001, 2000) g")

    wait_for(lambda: count_messages(nats.url) == 2001, "the changes")
    assert bridge.status()["reconnects"] == {"postgres": 0, "nats": 0}


def test_a_slow_client_does_not_hold_up_the_end(bridge: BridgeProcess) -> None:
    with socket.create_connection(address_of(bridge)) as slow:
        slow.sendall(b"POST /shutdown HTTP/1.1\r\nHost: x\r\n")
        assert bridge.terminate() == 0


def _answers(bridge: BridgeProcess) -> bool:
    try:
        return bridge.get("/health")[0] == 200
    except OSError:
        return False


def _answer(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address) as client, contextlib.suppress(OSError):
        client.settimeout(30)
        with contextlib.suppress(OSError):
            client.sendall(request)
        return client.recv(1 << 10)
    return b""

"""A stream INIT that has no room: whoever waits for a snapshot hears that it will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats as nats_py
import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.codecs import codec_for
from tests.conftest import Connection
from tests.support.bridge import wait_for
from tests.support.rig import PUBLICATION, Rig
from tests.support.snapshots import ask, read_snapshots, take, wait_snapshot
from tests.support.stream import administer

ROWS = 50_000


@pytest.fixture
def rig(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Rig]:
    connection.execute("CREATE TABLE big (id int PRIMARY KEY, filler text)")
    connection.execute(
        "INSERT INTO big SELECT g, repeat('x', 100) FROM generate_series(1, %s) g", [ROWS]
    )
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE big")
    with Rig(connection, postgres, nats, tmp_path) as rig:
        yield rig


def limit_init(url: str, *, update: bool = False, max_bytes: int = -1, max_msgs: int = -1) -> None:
    """Make or change INIT as an administrator would."""

    async def run() -> None:
        async with administer(url) as js:
            config = StreamConfig(
                name="INIT", subjects=["init.>"], discard=DiscardPolicy.NEW, allow_batched=True,
                duplicate_window=120, max_bytes=max_bytes, max_msgs=max_msgs,
            )  # fmt: skip
            await (js.update_stream(config) if update else js.add_stream(config))

    asyncio.run(run())


def start(rig: Rig) -> None:
    rig.start()
    rig.bridge.wait_serving()


def test_chunks_that_fill_the_stream_make_room_for_saying_so(rig: Rig) -> None:
    """Nothing but the notice is left, and a smaller snapshot is served at once."""
    limit_init(rig.nats.url, max_bytes=3 << 20)
    start(rig)

    reply = ask(rig.nats.url, "big")

    wait_snapshot(rig.nats.url, reply["snapshot_id"])
    # Read anew: a reading that saw the error may have seen chunks before they were removed.
    snapshot = read_snapshots(rig.nats.url)[reply["snapshot_id"]]
    assert snapshot.error is not None
    assert "maximum bytes exceeded" in snapshot.error["error"]
    assert "raise its max_bytes" in snapshot.error["advice"]
    assert snapshot.meta is None
    assert not snapshot.chunks
    assert len(take(rig.nats.url, "big", {"to": [100]}).rows) == 99


def test_a_failure_that_cannot_be_stored_is_heard_shown_and_stored_later(rig: Rig) -> None:
    """The only message that INIT takes is the start; then it takes no error either."""
    limit_init(rig.nats.url, max_msgs=1)
    start(rig)

    heard = asyncio.run(ask_and_listen(rig.nats.url))

    status = wait_for(lambda: rig.bridge.status()["snapshots"]["untold"], "the failure to be kept")
    assert status == 1
    shown = rig.bridge.status()["snapshots"]["last_error"]
    assert (shown["snapshot_id"], shown["error"]) == (heard["snapshot_id"], heard["error"])
    assert "raise its max_bytes" in shown["advice"]
    assert read_snapshots(rig.nats.url)[heard["snapshot_id"]].error is None
    limit_init(rig.nats.url, update=True, max_msgs=100)
    assert wait_snapshot(rig.nats.url, heard["snapshot_id"]).error == heard
    wait_for(lambda: rig.bridge.status()["snapshots"]["untold"] == 0, "nothing to be left untold")


async def ask_and_listen(url: str) -> dict[str, Any]:
    """Ask, and give the error that a listener hears."""
    async with await nats_py.connect(url) as client:
        errors = await client.subscribe("init.error.big")
        await client.request("snapshot.request.big", b"", timeout=60)
        message = await errors.next_msg(timeout=60)
        return codec_for(message.headers).decode(message.data)


def test_where_not_even_the_start_fits_the_request_is_rejected_with_advice(rig: Rig) -> None:
    limit_init(rig.nats.url, max_bytes=64)
    start(rig)

    reply = ask(rig.nats.url, "big")

    assert reply["status"] == "rejected"
    assert "maximum bytes exceeded" in reply["error"]
    assert rig.bridge.status()["state"] == "streaming"

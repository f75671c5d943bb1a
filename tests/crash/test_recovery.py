"""What comes after: lost tails, standbys, lost slots, stops in an outage, endless transactions."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.errors import SlotLost
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.streams import CDC_STREAM
from schemas.subjects import GAP_PREFIX
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import administer, count_messages, read_changes, read_stream
from tests.support.truth import PUBLICATION, Truth, assert_tells_the_truth, writing

SLOT = "recovery"
ROWS = int(os.environ.get("CHAOS_ROWS", "200000"))


@pytest.fixture
def truth(own_postgres: EmbeddedPostgres) -> Truth:
    return Truth(own_postgres.dsn(), "truth")


@pytest.fixture
def environ(own_postgres: EmbeddedPostgres, nats: EmbeddedNats, truth: Truth) -> dict[str, str]:
    del truth
    return {**own_postgres.env(), **nats.env()}


def flags(*more: str) -> list[str]:
    return ["--slot", SLOT, "--pub", PUBLICATION, "--ack-timeout", "2", *more]


@pytest.fixture
def bridge(environ: dict[str, str], tmp_path: Path) -> Iterator[BridgeProcess]:
    more = flags("--durability", "acked")
    with BridgeProcess(environ, *more, log=tmp_path / "bridge.log") as process:
        process.wait_streaming()
        yield process


def settle(truth: Truth, bridge: BridgeProcess) -> None:
    """Wait until everything written so far is acknowledged by JetStream."""
    end = truth.wal_end()
    wait_for(lambda: _acked(bridge) >= end, f"acknowledgement up to {end}")


def _acked(bridge: BridgeProcess) -> int:
    high, _, low = bridge.status()["acked_lsn"].partition("/")
    return int(high, 16) << 32 | int(low, 16)


def test_a_tail_that_the_server_forgot_is_sent_again(
    environ: dict[str, str], nats: EmbeddedNats, truth: Truth, tmp_path: Path
) -> None:
    """JetStream acknowledges before it syncs: a power loss may take what it acknowledged last."""
    more = flags("--durability", "synced", "--sync-interval", "600")
    with BridgeProcess(environ, *more, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        with writing(truth, seed=1, writers=1):
            time.sleep(0.5)
        settle(truth, bridge)
        synced = count_messages(nats.url)
        nats.stop()
        shutil.copytree(nats.store, tmp_path / "synced")
        nats.start()
        with writing(truth, seed=2, writers=1):
            _insert(truth, -1)
            time.sleep(0.5)
        settle(truth, bridge)
        acknowledged = count_messages(nats.url)
        assert synced < acknowledged, "nothing will be forgotten, nothing is tested"

        nats.kill()
        shutil.rmtree(nats.store)
        shutil.copytree(tmp_path / "synced", nats.store)
        nats.start()

        wait_for(lambda: count_messages(nats.url) >= acknowledged, "the tail")
        settle(truth, bridge)

    assert_tells_the_truth(read_changes(nats.url), truth)


def test_a_standby_takes_over_when_the_first_one_dies(
    bridge: BridgeProcess, environ: dict[str, str], nats: EmbeddedNats, truth: Truth, tmp_path: Path
) -> None:
    more = flags("--durability", "acked")
    with BridgeProcess(environ, *more, log=tmp_path / "standby.log") as standby:
        wait_for(lambda: standby.status()["state"] == "standby", "the second one to wait")
        assert standby.get("/ready")[0] == 503
        with writing(truth, seed=3):
            time.sleep(0.5)
            bridge.kill()
            standby.wait_streaming()
            time.sleep(0.5)
        settle(truth, standby)

    assert_tells_the_truth(read_changes(nats.url), truth)


def test_a_stop_ends_even_when_nats_is_down(
    bridge: BridgeProcess, nats: EmbeddedNats, truth: Truth
) -> None:
    """An orchestrator that asked once should not have to kill."""
    with writing(truth, seed=4, writers=1):
        time.sleep(0.3)
        nats.kill()
        time.sleep(0.3)
        assert bridge.terminate() == 0
    nats.start()
    bridge.start()
    bridge.wait_streaming()
    settle(truth, bridge)

    assert_tells_the_truth(read_changes(nats.url), truth)


def lose_slot(postgres: EmbeddedPostgres, truth: Truth, rows: range) -> None:
    """Write more than PostgreSQL keeps for a slot that nobody reads."""
    postgres.settings["max_slot_wal_keep_size"] = "16MB"
    postgres.restart()
    with truth.connect() as connection:
        for number in rows:
            connection.execute("INSERT INTO accounts (id) VALUES (%s)", [number])
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")


def _insert(truth: Truth, number: int) -> None:
    with truth.connect() as connection:
        connection.execute("INSERT INTO accounts (id) VALUES (%s)", [number])


def test_a_lost_slot_is_recognised_and_explained(
    bridge: BridgeProcess, own_postgres: EmbeddedPostgres, truth: Truth
) -> None:
    """Going on from another position would lose changes without a word."""
    bridge.terminate()
    lose_slot(own_postgres, truth, rows=range(4))

    bridge.start()

    assert bridge.wait() == SlotLost.exit_code
    assert f"slot {SLOT} is lost" in bridge.said()
    assert "max_slot_wal_keep_size" in bridge.said()


def lose_wal(server: EmbeddedPostgres, truth: Truth, rows: range) -> None:
    """Remove WAL that the slot needs without PostgreSQL's knowledge: it shows the slot as sound."""
    with truth.connect() as connection:
        for number in rows:
            _insert(truth, number)
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT pg_walfile_name(pg_current_wal_lsn())").fetchone()
    assert row is not None
    for segment in (server.data / "pg_wal").glob("0*"):
        if segment.name < row[0]:
            segment.unlink()


def gap_is_marked(nats: EmbeddedNats) -> bool:
    return any(m.fields.get("prefix") == GAP_PREFIX for m in read_stream(nats.url))


@pytest.mark.parametrize("lose", [lose_slot, lose_wal])
def test_a_slot_made_anew_marks_the_gap_in_the_stream(
    environ: dict[str, str], nats: EmbeddedNats, own_postgres: EmbeddedPostgres, truth: Truth,
    *, tmp_path: Path, lose: Callable[..., None],
) -> None:  # fmt: skip
    """Consumers must hear that changes are missing, between those before and those behind."""
    more = flags("--durability", "acked", "--on-lost-slot", "recreate")
    with BridgeProcess(environ, *more, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        _insert(truth, 1)
        settle(truth, bridge)
        bridge.terminate()
        lose(own_postgres, truth, rows=range(2, 6))
        bridge.start()
        wait_for(lambda: gap_is_marked(nats), "the mark")
        wait_for(lambda: bridge.status()["state"] == "streaming", "streaming")
        _insert(truth, 6)
        settle(truth, bridge)

        stored = [m for m in read_stream(nats.url) if not m.subject.endswith(".schema")]

        told = [m.fields["data"]["id"] if m.is_change else m.fields["prefix"] for m in stored]
        assert told == [1, GAP_PREFIX, 6]
        assert "the gap is marked there" in bridge.said()


def test_a_transaction_of_any_size_flows_through_bounded_memory(
    bridge: BridgeProcess, nats: EmbeddedNats, truth: Truth
) -> None:
    with truth.connect() as connection:
        connection.execute("ALTER TABLE accounts DISABLE TRIGGER note")
        connection.execute(
            "INSERT INTO accounts SELECT g, repeat('x', 100), g FROM generate_series(1, %s) g",
            [ROWS],
        )
    wait_for(lambda: count_messages(nats.url) >= ROWS + 1, f"{ROWS} rows")

    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{bridge.process.pid}/status").read_text())
    assert peak is not None
    assert int(peak[1]) < 150 * 1024, "the bridge must not hold a transaction in memory"
    settle(truth, bridge)


def test_messages_and_tables_that_left_the_publication_are_not_stored_twice(
    environ: dict[str, str], nats: EmbeddedNats, truth: Truth, tmp_path: Path
) -> None:
    """The stream may end with a logical message, or a change of a table nobody publishes now."""
    more = flags("--durability", "synced", "--sync-interval", "600")
    with BridgeProcess(environ, *more, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_streaming()
        with truth.connect() as connection:
            connection.execute("INSERT INTO accounts (id) VALUES (1)")
            connection.execute("INSERT INTO sales.orders VALUES ('eu', 1)")
            connection.execute("SELECT pg_logical_emit_message(true, 'app', 'one')")
            connection.execute("SELECT pg_logical_emit_message(false, 'app', 'two')")
        # Not by the WAL's end: a message outside a transaction is written out a moment later.
        wait_for(lambda: count_messages(nats.url) == 6, "two shapes, two rows, two messages")
        bridge.kill()
        with truth.connect() as connection:
            connection.execute(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE sales.orders")
            connection.execute("ALTER TABLE accounts RENAME TO people")
        before = read_stream(nats.url)
        forget_message_ids(nats)

        bridge.start()
        bridge.wait_streaming()
        with truth.connect() as connection:
            connection.execute("INSERT INTO people (id) VALUES (2)")
        settle(truth, bridge)

    assert [m.fields["msg_id"] for m in read_stream(nats.url)[: len(before)]] == [
        m.fields["msg_id"] for m in before
    ]
    after = [m.subject for m in read_stream(nats.url)[len(before) :]]
    # The catalog watch reports what left the publication, before or after the change.
    told = [subject for subject in after if subject != "cdc._message.bridge-ddl"]
    assert told == ["cdc.people.schema", "cdc.people.insert"]


def forget_message_ids(server: EmbeddedNats) -> None:
    """Let an outage outlast the duplicate window."""
    asyncio.run(_shorten_duplicate_window(server.url))


async def _shorten_duplicate_window(url: str) -> None:
    async with administer(url) as js:
        config = (await js.stream_info(CDC_STREAM.name)).config
        config.duplicate_window = 0.1
        await js.update_stream(config)
        await asyncio.sleep(0.5)

"""A snapshot from request to end, each test with a bridge of its own: waits, joins, ends."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.snapshots import (
    ask,
    cancel,
    read_snapshots,
    store_request,
    take,
    wait_snapshot,
)
from tests.support.stream import count_messages, delete_consumer, read_changes
from tests.support.watched import ROWS, WAIT, WHOLE_RANGE, holding, make_watched


@pytest.fixture
def big(connection: Connection) -> Connection:
    """A table of many chunks, whose copy can be held in the middle."""
    make_watched(connection)
    return connection


@pytest.fixture
def bridge(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, big: Connection, tmp_path: Path
) -> Iterator[BridgeProcess]:
    del big
    environ = {**postgres.env(database), **nats.env()}
    flags = ("--slot", f"slot_{database}", "--pub", "pub", "--durability", "acked")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as process:
        process.wait_serving()
        yield process


def temporary_slots(connection: Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_replication_slots"
        " WHERE temporary AND database = current_database()"
    ).fetchone()
    assert row is not None
    return int(str(row[0]))


def copies(connection: Connection) -> int:
    """Count sessions that copy, or would go on if somebody read what they send."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE query LIKE 'COPY%' AND datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(str(row[0]))


def wait_exporting(bridge: BridgeProcess) -> dict[str, Any]:
    def exporting() -> dict[str, Any] | None:
        running = bridge.status()["snapshots"]["running"]
        return next((one for one in running if one["state"] == "exporting"), None)

    return wait_for(exporting, "an export to begin")


def wait_copying(bridge: BridgeProcess) -> dict[str, Any]:
    def copying() -> dict[str, Any] | None:
        running = bridge.status()["snapshots"]["running"]
        return next((one for one in running if one["state"] == "copying" and one["chunks"]), None)

    return wait_for(copying, "a chunk to be stored")


def test_a_snapshot_waits_for_open_transactions_and_shows_it(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """Only then is the LSN exact; and whoever asked meanwhile shares what comes of it."""
    with psycopg.connect(big.info.dsn, password=big.info.password) as other:
        other.execute("INSERT INTO big VALUES (-1, 'open')")
        store_request(nats.url, "big", b'{"to": [10]}')
        running = wait_exporting(bridge)
        wait_for(lambda: temporary_slots(big), "the temporary slot")
        other.commit()

    snapshot = wait_snapshot(nats.url, running["snapshot_id"])

    snapshot.assert_whole()
    assert sorted(row["id"] for row in snapshot.rows) == [-1, *range(1, 10)]
    wait_for(lambda: temporary_slots(big) == 0, "the temporary slot to go")


def test_a_table_that_others_lock_is_read_and_not_kept_from_them(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """ALTER TABLE waits for a reader; what the bridge asks next must not wait behind it for ever.

    PostgreSQL sees no deadlock then, because the reader waits for the bridge and not for a lock.
    """
    assert bridge.process.poll() is None
    stop, rng = threading.Event(), random.Random(7)

    def lock_again_and_again() -> int:
        times = 0
        with psycopg.connect(big.info.dsn, password=big.info.password, autocommit=True) as other:
            other.execute("SET lock_timeout = '15s'")
            while not stop.wait(rng.uniform(0, 0.4)):
                with other.transaction():
                    other.execute("LOCK TABLE big IN ACCESS EXCLUSIVE MODE")
                times += 1
        return times

    with ThreadPoolExecutor() as pool:
        locked = pool.submit(lock_again_and_again)
        try:
            for _ in range(12):
                assert len(take(nats.url, "big").rows) == ROWS
        finally:
            stop.set()

        assert locked.result() > 0


def test_wal_that_is_kept_is_shown_and_giving_up_lets_it_go(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """A transaction nobody ends must not fill the disk unseen, nor its slot outlive the request."""
    with psycopg.connect(big.info.dsn, password=big.info.password) as other:
        other.execute("INSERT INTO big VALUES (-1, 'open')")
        store_request(nats.url, "big")
        running = wait_exporting(bridge)
        wait_for(lambda: temporary_slots(big), "the temporary slot")
        big.execute("INSERT INTO big SELECT -g, repeat('y', 500) FROM generate_series(2, 4000) g")

        kept = wait_for(lambda: kept_bytes(bridge) > 1_000_000, "the WAL that is kept")
        metrics = bridge.get("/metrics")[1].decode()
        cancel(nats.url, "big")

        assert kept
        shown = re.search(r"(?m)^bridge_snapshot_wal_kept_bytes (\S+)", metrics)
        assert shown is not None
        assert float(shown[1]) > 1_000_000
        wait_for(lambda: temporary_slots(big) == 0, "the slot to go, while the other is open")
        other.rollback()
    error = wait_snapshot(nats.url, running["snapshot_id"]).error
    assert error is not None
    assert "cancelled" in error["error"]


def kept_bytes(bridge: BridgeProcess) -> int:
    running = bridge.status()["snapshots"]["running"]
    return max((int(one["wal_kept_bytes"]) for one in running), default=0)


def test_a_second_request_joins_while_changes_go_on(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """What the second asker missed of the changes is behind the sequence the reply names."""
    with holding(big, WAIT):
        first = ask(nats.url, "big", WHOLE_RANGE)
        wait_copying(bridge)
        wait_for(lambda: temporary_slots(big) == 0, "the slot to keep no WAL while rows are copied")
        big.execute("INSERT INTO big VALUES (40000, 'meanwhile')")
        wait_for(lambda: count_messages(nats.url) == 2, "the change, while the snapshot runs")

        second = ask(nats.url, "big", WHOLE_RANGE)

    assert second == first
    snapshot = wait_snapshot(nats.url, first["snapshot_id"])
    snapshot.assert_whole()
    assert sorted(row["id"] for row in snapshot.rows) == list(range(1, ROWS + 1))
    (change,) = read_changes(nats.url)
    assert change.sequence > second["cdc_sequence"]
    assert change.fields["commit_lsn"] >= second["lsn"]
    metrics = bridge.get("/metrics")[1].decode()
    assert f"bridge_snapshot_rows_total {float(ROWS)}" in metrics


def test_a_cancelled_snapshot_is_told_as_failed_and_leaves_no_chunks(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    with holding(big, WAIT):
        reply = ask(nats.url, "big", WHOLE_RANGE)
        wait_copying(bridge)

        answer = cancel(nats.url, "big")

    assert answer == {"status": "cancelled", "snapshot_ids": [reply["snapshot_id"]]}
    snapshot = wait_snapshot(nats.url, reply["snapshot_id"])
    assert snapshot.error is not None
    assert "cancelled" in snapshot.error["error"]
    wait_for(lambda: not read_snapshots(nats.url)[reply["snapshot_id"]].chunks, "chunks to go")
    assert bridge.status()["state"] == "streaming"
    wait_for(lambda: copies(big) == 0, "PostgreSQL to stop copying")
    assert take(nats.url, "big", {"to": [2]}).rows == [{"id": 1, "filler": "x" * 300}]


def test_killed_in_the_middle_there_is_no_meta_and_the_next_bridge_says_so(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """A consumer must not take a part for the whole, nor wait for ever."""
    with holding(big, WAIT):
        reply = ask(nats.url, "big", WHOLE_RANGE)
        wait_copying(bridge)
        bridge.kill()
    assert read_snapshots(nats.url)[reply["snapshot_id"]].meta is None
    wait_for(lambda: temporary_slots(big) == 0, "the temporary slot to go with its connection")

    bridge.start()
    bridge.wait_serving()

    snapshot = wait_snapshot(nats.url, reply["snapshot_id"])
    assert snapshot.meta is None
    assert snapshot.error is not None
    again = take(nats.url, "big", {"to": [3]})
    assert [row["id"] for row in again.rows] == [1, 2]


def test_a_stored_request_survives_the_bridge(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """Asked while it was down, and again while it was killed in the middle: served in the end."""
    bridge.kill()
    store_request(nats.url, "big", WHOLE_RANGE)
    with holding(big, WAIT):
        bridge.start()
        wait_copying(bridge)
        bridge.terminate()

    bridge.start()

    def whole() -> str | None:
        return next((i for i, s in read_snapshots(nats.url).items() if s.meta), None)

    snapshot_id = wait_for(whole, "the request to be served after all")
    snapshot = wait_snapshot(nats.url, snapshot_id)
    snapshot.assert_whole()
    assert len(snapshot.rows) == ROWS


def test_stored_requests_are_served_when_somebody_removed_their_consumer(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """An administrator who tidies up must not make the bridge deaf."""
    del big
    wait_for(lambda: delete_consumer(nats.url, "INIT", "snapshots"), "a consumer to remove")
    store_request(nats.url, "big", b'{"to": [10]}')

    def whole() -> str | None:
        return next((i for i, s in read_snapshots(nats.url).items() if s.meta), None)

    wait_for(whole, "the request to be served")
    assert bridge.process.poll() is None


def test_a_truncate_at_the_wrong_moment_is_not_taken_for_an_empty_table(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """Rewritten files look empty to an older snapshot: then it must be exported anew."""
    big.execute("CREATE TABLE other (id int)")
    with psycopg.connect(big.info.dsn, password=big.info.password) as other:
        other.execute("INSERT INTO other VALUES (1)")
        store_request(nats.url, "big")
        running = wait_exporting(bridge)
        big.execute("TRUNCATE big; INSERT INTO big VALUES (1, 'new')")
        other.commit()

    snapshot = wait_snapshot(nats.url, running["snapshot_id"])

    snapshot.assert_whole()
    assert snapshot.rows == [{"id": 1, "filler": "new"}]


def test_a_row_of_50_mb_arrives_as_it_is(
    bridge: BridgeProcess, big: Connection, nats: EmbeddedNats
) -> None:
    """Between small ones, so that it takes neither of them with it."""
    big.execute("CREATE TABLE huge (id int PRIMARY KEY, body text)")
    big.execute("ALTER TABLE huge ALTER body SET STORAGE EXTERNAL")
    big.execute(
        "INSERT INTO huge VALUES (1, 'before'), (2, repeat('0123456789', 5000000)), (3, '')"
    )
    big.execute("ALTER PUBLICATION pub ADD TABLE huge")

    snapshot = take(nats.url, "huge")

    bodies = {row["id"]: row["body"] for row in snapshot.rows}
    assert (sorted(bodies), bodies[1], bodies[3]) == ([1, 2, 3], "before", "")
    # Not by ==: a failure would print it.
    assert (len(bodies[2]), bodies[2] == "0123456789" * 5_000_000) == (50_000_000, True)
    assert bridge.process.poll() is None


def test_several_readers_copy_every_row_once_and_json_is_spoken(
    postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats, big: Connection, tmp_path: Path
) -> None:
    """Ranges of pages meet without overlap, on the same snapshot."""
    big.execute("DELETE FROM big WHERE id % 10 <> 0")
    environ = {**postgres.env(database), **nats.env()}
    flags = ("--slot", f"slot_{database}", "--pub", "pub", "--snapshot-readers", "3", "--json")
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_serving()
        snapshot = take(nats.url, "big")

    assert sorted(row["id"] for row in snapshot.rows) == list(range(10, ROWS + 1, 10))
    assert {chunk.headers["Content-Type"] for chunk in snapshot.chunks} == {"application/json"}
    assert json.loads(snapshot.chunks[0].body)["operation"] == "snapshot"

"""What PostgreSQL is told, and when: acknowledged is not yet on disk, and servers forget."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.positions import Lsn
from schemas.streams import CDC_STREAM
from schemas.subjects import GAP_PREFIX
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.natscluster import Disk
from tests.support.proxy import Proxy
from tests.support.stream import (
    StoredMessage,
    administer,
    delete_stream,
    read_source,
    read_stream,
    remove_messages,
)

SESSIONS_AT_MOST = 500


class Rows:
    """A published table, its slot, and what a stream holds of it."""

    def __init__(self, postgres: EmbeddedPostgres, database: str, connection: Connection) -> None:
        self.connection = connection
        self.slot = f"slot_{database}"
        self.environ = postgres.env(database)
        connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE users")

    def bridge(self, server: EmbeddedNats, log: Path, *flags: str, port: int = 0) -> BridgeProcess:
        environ = {**self.environ, **server.env(), **({"NATS_PORT": str(port)} if port else {})}
        return BridgeProcess(environ, "--slot", self.slot, "--pub", "pub", *flags, log=log)

    def insert(self, first: int, last: int) -> Lsn:
        """Insert rows, each in a transaction of its own, and say where the WAL is then."""
        for number in range(first, last + 1):
            self.connection.execute("INSERT INTO users VALUES (%s)", [number])
        return self._lsn("SELECT pg_current_wal_lsn()::text")

    def confirmed(self) -> Lsn:
        return self._lsn(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            self.slot,
        )

    def _lsn(self, query: str, *values: str) -> Lsn:
        row = self.connection.execute(query, values).fetchone()
        assert row is not None
        return Lsn.parse(str(row[0]))

    def stored(self, server: EmbeddedNats) -> list[int]:
        found = read_stream(server.url)
        return [m.fields["data"]["id"] for m in found if m.subject == "cdc.users.insert"]


@pytest.fixture
def rows(postgres: EmbeddedPostgres, database: str, connection: Connection) -> Rows:
    return Rows(postgres, database, connection)


def wait_acked(bridge: BridgeProcess, lsn: Lsn) -> None:
    """Wait until all up to here is stored, and PostgreSQL was told what can be told by then."""
    wait_for(lambda: Lsn.parse(bridge.status()["acked_lsn"]) >= lsn, "the row to be stored")


@pytest.mark.parametrize("ends", ["process", "session"])
def test_sessions_shorter_than_the_sync_interval_still_move_the_slot(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path, ends: str
) -> None:
    """Every session ends as soon as it has stored one more row; what has aged has aged."""
    flags = ("--durability", "synced", "--sync-interval", "6")
    with Proxy(nats.port) as proxy:
        bridge = rows.bridge(nats, tmp_path / "bridge.log", *flags, port=proxy.port)
        with bridge:
            bridge.wait_streaming()
            first, number = rows.insert(1, 1), 1
            while rows.confirmed() < first and number < SESSIONS_AT_MOST:
                number += 1
                wait_acked(bridge, rows.insert(number, number))
                if ends == "session":
                    proxy.cut()
                else:
                    bridge.kill()
                    bridge.start()

            assert rows.confirmed() >= first, bridge.said()[-2_000:]
            wait_acked(bridge, rows.insert(number + 1, number + 1))
            assert rows.stored(nats) == list(range(1, number + 2))


def gaps(server: EmbeddedNats) -> list[dict[str, Any]]:
    found = read_stream(server.url)
    return [json.loads(m.fields["content"]) for m in found if m.subject.endswith(GAP_PREFIX)]


def test_a_lost_tail_that_was_not_confirmed_is_sent_again_and_reported(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path
) -> None:
    """Consumers may have read what is gone: nobody else could tell them."""
    disk = Disk(nats, tmp_path / "copy")
    with rows.bridge(nats, tmp_path / "bridge.log", "--sync-interval", "3600") as bridge:
        bridge.wait_streaming()
        wait_acked(bridge, rows.insert(1, 10))
        disk.keep()
        wait_acked(bridge, rows.insert(11, 20))

        disk.roll_back()
        wait_acked(bridge, rows.insert(21, 30))
        wait_for(lambda: 30 in rows.stored(nats), "the last row")

        assert rows.stored(nats) == list(range(1, 31))
        assert bridge.status()["lost_tails"] == {"count": 1, "messages": 10, "gaps_marked": 0}
        assert "they are sent again" in bridge.said()
        assert gaps(nats) == []


def test_a_lost_tail_that_was_confirmed_is_marked_as_a_gap(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path
) -> None:
    """With `acked` PostgreSQL was told already, and gives those changes no more."""
    disk = Disk(nats, tmp_path / "copy")
    with rows.bridge(nats, tmp_path / "bridge.log", "--durability", "acked") as bridge:
        bridge.wait_streaming()
        wait_acked(bridge, rows.insert(1, 10))
        disk.keep()
        end = rows.insert(11, 20)
        wait_for(lambda: rows.confirmed() >= end, "the slot to move")

        disk.roll_back()
        wait_for(lambda: gaps(nats), "the mark")
        wait_acked(bridge, rows.insert(21, 30))

        assert rows.stored(nats) == [*range(1, 11), *range(21, 31)]
        assert bridge.status()["lost_tails"] == {"count": 1, "messages": 10, "gaps_marked": 1}
        assert [gap["missing_until"] >= end for gap in gaps(nats)] == [True]


def store_of_another_source(url: str) -> None:
    async def store() -> None:
        async with administer(url) as js:
            await js.publish("cdc.others.insert", b'{"commit_lsn": 1, "last": true}',
                             headers={"Content-Type": "application/json"})  # fmt: skip

    asyncio.run(store())


@pytest.mark.parametrize("is_last", [True, False], ids=["last", "another source wrote since"])
def test_a_new_process_marks_a_gap_where_the_stream_ends_inside_a_transaction(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path, is_last: bool
) -> None:
    """Nothing but the slot remembers that the rest of it was acknowledged."""
    bridge = rows.bridge(nats, tmp_path / "bridge.log", "--durability", "acked")
    with bridge:
        bridge.wait_streaming()
        rows.connection.execute("INSERT INTO users SELECT generate_series(1, 10)")
        end = rows.insert(11, 11)
        wait_for(lambda: rows.confirmed() >= end, "the slot to move")
        bridge.kill()
        last = read_stream(nats.url)[-1].sequence
        remove_messages(nats.url, [last, last - 1])
        if not is_last:
            store_of_another_source(nats.url)

        bridge.start()
        wait_acked(bridge, rows.insert(12, 12))

        assert rows.stored(nats) == [*range(1, 10), 12]
        assert bridge.status()["lost_tails"]["gaps_marked"] == 1
        bridge.kill()
        bridge.start()
        wait_acked(bridge, rows.insert(13, 13))
        assert len(gaps(nats)) == 1, "a mark is made once"


def wait_remembered(server: EmbeddedNats, mark: str, message: StoredMessage) -> None:
    """Wait until the bridge has noted that a message was acknowledged, or confirmed."""
    first = next(m for m in read_stream(server.url) if "source" in m.fields)
    lsn, source = message.position[0], first.fields["source"]
    wait_for(lambda: read_source(server.url, source).get(mark, 0) >= lsn, f"{mark} {Lsn(lsn)}")


def test_a_new_process_marks_a_gap_where_whole_transactions_are_missing(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path
) -> None:
    """The stream ends between two transactions: nothing in it shows that there were more."""
    bridge = rows.bridge(nats, tmp_path / "bridge.log", "--durability", "acked")
    with bridge:
        bridge.wait_streaming()
        end = rows.insert(1, 10)
        wait_for(lambda: rows.confirmed() >= end, "the slot to move")
        lost = read_stream(nats.url)[-3:]
        wait_remembered(nats, "confirmed", lost[0])
        bridge.kill()
        remove_messages(nats.url, [message.sequence for message in lost])

        bridge.start()
        wait_acked(bridge, rows.insert(11, 11))

        assert rows.stored(nats) == [*range(1, 8), 11]
        assert bridge.status()["lost_tails"]["gaps_marked"] == 1
        assert [gap["missing_until"] >= end for gap in gaps(nats)] == [True]
        bridge.kill()
        bridge.start()
        wait_acked(bridge, rows.insert(12, 12))
        assert len(gaps(nats)) == 1, "a mark is made once"
        assert bridge.status()["lost_tails"]["count"] == 0


def test_a_new_process_marks_a_gap_where_the_stream_was_deleted(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path
) -> None:
    """An empty stream looks like the first start; its sequences count from one again."""
    bridge = rows.bridge(nats, tmp_path / "bridge.log", "--durability", "acked")
    with bridge:
        bridge.wait_streaming()
        end = rows.insert(1, 10)
        wait_for(lambda: rows.confirmed() >= end, "the slot to move")
        stored = read_stream(nats.url)
        wait_remembered(nats, "confirmed", stored[-2])
        assert bridge.terminate() == 0
        delete_stream(nats.url, CDC_STREAM.name)

        bridge.start()
        wait_for(lambda: gaps(nats), "the mark")
        wait_acked(bridge, rows.insert(11, 11))

        assert rows.stored(nats) == [11]
        lost = {"count": 1, "messages": stored[-1].sequence, "gaps_marked": 1}
        assert bridge.status()["lost_tails"] == lost
        assert [gap["missing_until"] >= end for gap in gaps(nats)] == [True]


def test_a_new_process_reports_a_lost_tail_that_it_sends_again(
    nats: EmbeddedNats, rows: Rows, tmp_path: Path
) -> None:
    """Consumers may have read what was lost, also while there was no bridge."""
    bridge = rows.bridge(nats, tmp_path / "bridge.log", "--sync-interval", "3600")
    with bridge:
        bridge.wait_streaming()
        wait_acked(bridge, rows.insert(1, 10))
        lost = read_stream(nats.url)[-3:]
        wait_remembered(nats, "acked", lost[0])
        bridge.kill()
        remove_messages(nats.url, [message.sequence for message in lost])
        # Who lost messages has lost their ids, too.
        nats.restart()

        bridge.start()
        wait_acked(bridge, rows.insert(11, 11))

        assert rows.stored(nats) == list(range(1, 12))
        assert bridge.status()["lost_tails"] == {"count": 1, "messages": 0, "gaps_marked": 0}
        assert gaps(nats) == []

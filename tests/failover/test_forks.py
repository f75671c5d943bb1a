"""A PostgreSQL that lost history: never taken for one that has written what the stream holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from bridge.errors import HistoryForked, SinkRefused
from bridge.jetstream.provision import stream_config
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.iceberg.reading import open_catalog
from schemas.forks import parse_fork
from schemas.positions import Lsn
from schemas.streams import CDC_STREAM
from schemas.subjects import FORK_PREFIX, GAP_PREFIX, message_subject
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.lakeprocess import LakeProcess
from tests.support.standby import (
    copy_cold,
    cut_off,
    make_standby,
    promote,
    restore_cold,
    sync_slots,
    wait_replayed,
)
from tests.support.stream import StoredMessage, administer, read_stream

SLOT = "shop"
FORK = message_subject(FORK_PREFIX)

# Failover slots came with PostgreSQL 17; older servers are those that Debian has.
_OLD = sorted(Path("/usr/lib/postgresql").glob("15/bin"))
BINARIES = [pytest.param(None, id="embedded"), *(pytest.param(old, id="15") for old in _OLD)]


@dataclass
class Shop:
    """A published table, the servers it may be on, and what the stream holds of it."""

    primary: EmbeddedPostgres
    nats: EmbeddedNats
    log: Path

    def __post_init__(self) -> None:
        self.servers = [self.primary]
        self.execute("CREATE TABLE users (id int PRIMARY KEY)")
        self.execute("CREATE PUBLICATION pub FOR TABLE users")

    def execute(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement on the server that is the newest."""
        with psycopg.connect(self.servers[-1].dsn(), autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def insert(self, first: int, last: int) -> None:
        """Insert rows, one transaction each."""
        with psycopg.connect(self.servers[-1].dsn(), autocommit=True) as connection:
            for number in range(first, last + 1):
                connection.execute("INSERT INTO users VALUES (%s)", [number])

    def rows(self) -> list[object]:
        """What PostgreSQL says, in the order in which it was committed."""
        return [row[0] for row in self.execute("SELECT id FROM users ORDER BY xmin::text::bigint")]

    def bridge(self, *flags: str) -> BridgeProcess:
        """A bridge that knows all servers, and takes the primary among them."""
        ports = ",".join(str(server.port) for server in self.servers)
        environ = {**self.servers[-1].env(), **self.nats.env(), "PG_PORT": ports}
        environ["PG_HOST"] = ",".join(["127.0.0.1"] * len(self.servers))
        known = ("--slot", SLOT, "--pub", "pub", "--durability", "acked")
        return BridgeProcess(environ, *known, *flags, log=self.log)

    def stored(self) -> list[StoredMessage]:
        return read_stream(self.nats.url)

    def wait_stored(self, last: int) -> None:
        """Wait until the stream holds a row."""
        wait_for(lambda: last in ids(self.stored()), f"row {last} in the stream")

    def confirmed(self) -> list[tuple[object, ...]]:
        return self.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots"
                            " WHERE slot_name = %s", SLOT)  # fmt: skip


def ids(messages: list[StoredMessage]) -> list[int]:
    return [m.fields["data"]["id"] for m in messages if m.subject == "cdc.users.insert"]


def marks(messages: list[StoredMessage]) -> list[str]:
    """Which forks and gaps are marked, in order."""
    prefixes = [str(m.fields.get("prefix")) for m in messages]
    return [prefix for prefix in prefixes if prefix in (FORK_PREFIX, GAP_PREFIX)]


def alive(messages: list[StoredMessage]) -> list[StoredMessage]:
    """What is left of a stream for a consumer that knows what a fork means."""
    for mark in [m for m in messages if m.subject == FORK]:
        fork = parse_fork(mark.fields["content"])
        assert fork is not None
        messages = [
            m for m in messages if m.sequence >= mark.sequence or m.position[0] < fork.switch_lsn
        ]
    return messages


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, server_folder: Path, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Shop]:
    binaries = getattr(request, "param", None)
    with EmbeddedPostgres(server_folder / "one", durable=False, binaries=binaries) as primary:
        yield Shop(primary, nats, tmp_path / "bridge.log")


@pytest.fixture
async def _short_window(nats: EmbeddedNats) -> None:
    """Ids are forgotten at once, so that a session after a fork need not wait for that."""
    async with administer(nats.url) as js:
        config = stream_config(CDC_STREAM)
        config.duplicate_window = 0.1
        await js.add_stream(config)


@pytest.fixture
def standby(shop: Shop, server_folder: Path) -> Iterator[EmbeddedPostgres]:
    with ExitStack() as stack:
        made = make_standby(shop.primary, server_folder / "two")
        stack.callback(made.kill)
        yield made


def assert_refused(shop: Shop, *flags: str) -> None:
    """Every start is refused, and none leaves anything behind."""
    before, confirmed = len(shop.stored()), shop.confirmed()
    for _ in range(2):
        with shop.bridge(*flags) as bridge:
            assert bridge.wait() == HistoryForked.exit_code, bridge.said()
            assert "--on-fork mark" in bridge.said()
    assert (len(shop.stored()), shop.confirmed()) == (before, confirmed)


def assert_healed(shop: Shop, last: int) -> None:
    """After the mark the stream is what this PostgreSQL has, each row once and in order."""
    with shop.bridge("--on-fork", "mark") as bridge:
        wait_for(lambda: last in ids(alive(shop.stored())), f"row {last} after the fork")
        found = alive(shop.stored())
        assert ids(found) == shop.rows(), bridge.said()[-3_000:]
        assert found == sorted(found, key=lambda m: m.position)
        assert bridge.terminate() == 0
    # Nothing of the dead branch moves the next session either.
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(last + 1, last + 1)
        shop.wait_stored(last + 1)
        assert ids(alive(shop.stored())) == shop.rows(), bridge.said()[-3_000:]
    assert sum(m.subject == FORK for m in shop.stored()) == 1


@pytest.mark.usefixtures("_short_window")
def test_a_standby_promoted_without_the_last_commits_is_a_fork(
    shop: Shop, standby: EmbeddedPostgres
) -> None:
    """Its new rows have positions that the stream holds: they were skipped without a word."""
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        sync_slots(shop.primary, standby, SLOT)
        cut_off(standby)
        shop.insert(11, 30)
        shop.wait_stored(30)
        shop.primary.kill()
        promote(standby)
        shop.servers.append(standby)
        bridge.kill()
    shop.insert(101, 130)

    assert_refused(shop)
    assert_healed(shop, last=130)


def test_a_switchover_that_lost_nothing_is_no_fork(shop: Shop, standby: EmbeddedPostgres) -> None:
    """A living bridge goes on at the new primary, and nothing is stored twice."""
    shop.servers.append(standby)
    with shop.bridge() as bridge:
        shop.servers.pop()
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        sync_slots(shop.primary, standby, SLOT)
        shop.insert(11, 20)
        shop.wait_stored(20)
        wait_replayed(shop.primary, standby)
        shop.primary.stop()
        promote(standby)
        shop.servers.append(standby)
        shop.insert(21, 30)
        shop.wait_stored(30)
        assert ids(shop.stored()) == list(range(1, 31)), bridge.said()
        assert not [m for m in shop.stored() if m.subject == FORK]
        shop.insert(31, 31)
        bridge.kill()
    with shop.bridge() as bridge:
        shop.wait_stored(31)
        assert ids(shop.stored()) == list(range(1, 32)), bridge.said()


@pytest.mark.parametrize("more", [2, 60], ids=["shorter", "longer"])
@pytest.mark.usefixtures("_short_window")
def test_a_restored_copy_on_the_same_timeline_is_a_fork(
    shop: Shop, server_folder: Path, more: int
) -> None:
    """Nothing but the stream's own last transaction tells, whatever the WAL has grown to."""
    with shop.bridge("--durability", "synced", "--sync-interval", "600") as bridge:
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        copy = copy_cold(shop.primary, server_folder / "copy")
        shop.insert(11, 30)
        shop.wait_stored(30)
        bridge.kill()
    restore_cold(shop.primary, copy)
    shop.insert(101, 100 + more)

    assert_refused(shop)
    shop.insert(1_001, 1_060)
    assert_refused(shop)
    assert_healed(shop, last=1_060)


@pytest.mark.parametrize("shop", BINARIES, indirect=True)
@pytest.mark.usefixtures("_short_window")
def test_a_fork_is_found_on_a_server_without_the_slot(
    shop: Shop, standby: EmbeddedPostgres
) -> None:
    """The refusal leaves no slot and no gap mark; afterwards both gap and fork are marked."""
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        wait_replayed(shop.primary, standby)
        cut_off(standby)
        shop.insert(11, 30)
        shop.wait_stored(30)
        bridge.kill()
    shop.primary.kill()
    promote(standby)
    shop.servers.append(standby)
    shop.insert(101, 160)

    assert_refused(shop)
    assert not shop.confirmed()

    with shop.bridge("--on-fork", "mark") as bridge:
        wait_for(lambda: FORK in [m.subject for m in shop.stored()], "the mark")
        bridge.wait_streaming()
        shop.insert(201, 210)
        shop.wait_stored(210)
    left = alive(shop.stored())
    assert ids(left) == [*range(1, 11), *range(201, 211)]
    assert marks(shop.stored()) == ["bridge-fork", "bridge-gap"], "positions fall at the fork alone"
    assert left == sorted(left, key=lambda m: m.position)


@pytest.mark.usefixtures("_short_window")
def test_a_death_while_the_slot_is_created_leaves_none_of_the_dead_branch(
    shop: Shop, server_folder: Path
) -> None:
    """The start of the slot that it leaves proves nothing about rows stored before."""
    copy = copy_cold(shop.primary, server_folder / "copy")
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(1, 60)
        shop.wait_stored(60)
        bridge.kill()
    restore_cold(shop.primary, copy)
    shop.insert(101, 120)

    with psycopg.connect(shop.primary.dsn()) as holding:
        holding.execute("INSERT INTO users VALUES (121)")
        with shop.bridge("--on-fork", "mark") as bridge:
            wait_for(lambda: "making slot" in bridge.said(), "the slot to be under way")
            wait_for(shop.confirmed, "the slot that waits for the transaction")
            bridge.kill()
        holding.commit()
    wait_for(lambda: shop.confirmed() != [(None,)], "the slot")
    with shop.bridge("--on-fork", "mark") as bridge:
        bridge.wait_streaming()
        shop.insert(201, 210)
        shop.wait_stored(210)

    left = alive(shop.stored())
    assert [number for number in ids(left) if number <= 60] == []
    assert marks(shop.stored())[:2] == ["bridge-fork", "bridge-gap"]
    assert left == sorted(left, key=lambda m: m.position)


def test_a_database_that_was_created_again_is_refused_and_left_as_it_was(shop: Shop) -> None:
    """It is another one, whatever its name; a slot in it would hold its WAL for nothing."""
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        bridge.terminate()
    shop.execute("SELECT pg_drop_replication_slot(%s)", SLOT)
    with psycopg.connect(shop.primary.dsn("template1"), autocommit=True) as connection:
        connection.execute("DROP DATABASE postgres WITH (FORCE)")
        connection.execute("CREATE DATABASE postgres")
    shop.execute("CREATE TABLE users (id int PRIMARY KEY)")
    shop.execute("CREATE PUBLICATION pub FOR TABLE users")
    before = len(shop.stored())

    with shop.bridge() as bridge:
        assert bridge.wait() == SinkRefused.exit_code
        assert "already in this stream" in bridge.said()
    assert not shop.confirmed()
    assert len(shop.stored()) == before


@pytest.mark.usefixtures("_short_window")
def test_a_lake_that_held_the_dead_branch_is_equal_after_the_fork(
    shop: Shop, server_folder: Path, tmp_path: Path
) -> None:
    """Rows that the restored copy never had were in its mirror, its log and its cuts."""
    environ = {**shop.primary.env(), **shop.nats.env(), "BRIDGE_PUBLICATION": "pub"}
    lake = LakeProcess(tmp_path, environ)
    with shop.bridge("--durability", "synced", "--sync-interval", "600") as bridge:
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        run_lake(lake, "drain")
        copy = copy_cold(shop.primary, server_folder / "copy")
        shop.execute("DELETE FROM users WHERE id = 1")
        shop.insert(11, 30)
        shop.wait_stored(30)
        run_lake(lake, "drain")
        assert mirrored_ids(lake) == list(range(2, 31))
        bridge.kill()
    dead_end = max(m.position[0] for m in shop.stored())
    restore_cold(shop.primary, copy)
    # Beyond the dead branch, so that no position in it has a meaning again.
    shop.insert(101, 200)

    with shop.bridge("--on-fork", "mark") as bridge:
        wait_for(lambda: FORK in [m.subject for m in shop.stored()], "the mark")
        bridge.wait_serving()
        shop.wait_stored(200)
        run_lake(lake, "drain")
        assert set(mirrored_ids(lake)) == set(shop.rows())
        run_lake(lake, "verify", "--pub", "pub")

    assert logged_forks(lake) == expected_forks(shop.stored())
    refused = lake.command("query", "--at", str(Lsn(dead_end)), "SELECT * FROM users")
    assert refused.returncode != 0
    assert "never happened" in refused.stderr


def run_lake(lake: LakeProcess, *command: str) -> None:
    done = lake.command(*command)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


def mirrored_ids(lake: LakeProcess) -> list[int]:
    mirror = open_catalog(lake.catalog, lake.warehouse).load_table("public.users")
    return sorted(mirror.scan().to_arrow()["id"].to_pylist())


def logged_forks(lake: LakeProcess) -> dict[int, int | None]:
    """By stream sequence: the fork that made the change invalid, as the change log says."""
    log = open_catalog(lake.catalog, lake.warehouse).load_table("public__changes.users")
    rows = log.scan().to_arrow().select(["stream_seq", "fork_seq"]).to_pylist()
    assert len(rows) == len({row["stream_seq"] for row in rows})
    return {row["stream_seq"]: row["fork_seq"] for row in rows}


def expected_forks(messages: list[StoredMessage]) -> dict[int, int | None]:
    [mark] = [m.sequence for m in messages if m.subject == FORK]
    left = {m.sequence for m in alive(messages)}
    changes = [m.sequence for m in messages if m.fields["operation"] in ("INSERT", "DELETE")]
    return {sequence: None if sequence in left else mark for sequence in changes}

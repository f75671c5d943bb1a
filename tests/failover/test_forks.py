"""A PostgreSQL that lost history: never taken for one that has written what the stream holds."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from bridge.errors import SinkRefused
from examples.embedded import EmbeddedPostgres
from tests.support.bridge import wait_for
from tests.support.shop import FORK, SLOT, Shop, alive, assert_healed, assert_refused, ids, marks
from tests.support.standby import (
    copy_cold,
    cut_off,
    promote,
    restore_cold,
    sync_slots,
    wait_replayed,
)

# Failover slots came with PostgreSQL 17; older servers are those that Debian has.
_OLD = sorted(Path("/usr/lib/postgresql").glob("15/bin"))
BINARIES = [pytest.param(None, id="embedded"), *(pytest.param(old, id="15") for old in _OLD)]


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

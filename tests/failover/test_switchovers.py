"""Servers that take turns: a history that goes on elsewhere is followed, and a fork told once."""

from __future__ import annotations

import signal

import pytest

from examples.embedded import EmbeddedPostgres
from tests.support.bridge import PATIENCE_SECONDS
from tests.support.shop import FORK, SLOT, Shop, alive, ids
from tests.support.standby import cut_off, promote, rewind, sync_slots, wait_replayed


def test_a_standby_that_is_ahead_of_the_stream_is_no_fork(
    shop: Shop, standby: EmbeddedPostgres
) -> None:
    """Its slot is behind the stream, and its WAL beyond: some is skipped, the rest is sent."""
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(1, 10)
        shop.wait_stored(10)
        sync_slots(shop.primary, standby, SLOT)
        shop.insert(11, 15)
        shop.wait_stored(15)
        bridge.kill()
    shop.insert(16, 30)
    wait_replayed(shop.primary, standby)
    shop.primary.kill()
    promote(standby)
    shop.servers.append(standby)
    shop.insert(31, 40)

    with shop.bridge() as bridge:
        shop.wait_stored(40)
        assert bridge.terminate() == 0

    found = shop.stored()
    assert ids(found) == shop.rows() == list(range(1, 41))
    assert found == sorted(found, key=lambda m: m.position)
    assert not [m for m in found if m.subject == FORK]


@pytest.mark.usefixtures("_short_window")
def test_a_rewound_primary_that_leads_again_is_no_second_fork(
    shop: Shop, standby: EmbeddedPostgres
) -> None:
    """The standby that was promoted behind forks the history; the way back takes nothing away."""
    # pg_rewind reads the old primary's WAL back to the last checkpoint before the fork.
    shop.execute("ALTER SYSTEM SET wal_keep_size = '256MB'")
    shop.execute("SELECT pg_reload_conf()")
    shop.servers.append(standby)
    with shop.bridge("--on-fork", "mark") as bridge:
        shop.servers.pop()
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
        shop.insert(101, 130)
        shop.wait_stored(130)
        assert ids(alive(shop.stored())) == shop.rows() == [*range(1, 11), *range(101, 131)]

        rewind(shop.primary, standby)
        sync_slots(standby, shop.primary, SLOT)
        shop.insert(131, 140)
        shop.wait_stored(140)
        wait_replayed(standby, shop.primary)
        standby.stop()
        promote(shop.primary)
        shop.servers.append(shop.primary)
        shop.insert(141, 150)
        shop.wait_stored(150)
        assert bridge.terminate() == 0
    with shop.bridge() as bridge:
        shop.insert(151, 151)
        shop.wait_stored(151)
        assert bridge.terminate() == 0

    found = alive(shop.stored())
    assert ids(found) == shop.rows() == [*range(1, 11), *range(101, 152)]
    assert found == sorted(found, key=lambda m: m.position)
    assert sum(m.subject == FORK for m in shop.stored()) == 1
    assert shop.execute("SELECT timeline_id FROM pg_control_checkpoint()") == [(3,)]


def test_a_server_that_is_shut_down_does_not_wait_for_what_is_not_confirmed(shop: Shop) -> None:
    """Its WAL sender would, for as long as acknowledgements have to age; the bridge lets it go."""
    with shop.bridge("--durability", "synced", "--sync-interval", "600") as bridge:
        bridge.wait_streaming()
        shop.insert(1, 5)
        shop.wait_stored(5)
        server = shop.primary.process
        assert server is not None
        server.send_signal(signal.SIGINT)

        server.wait(PATIENCE_SECONDS)

        assert "database system is shut down" in shop.primary.log_tail()
        shop.primary.stop()
        shop.primary.start()
        shop.insert(6, 10)
        shop.wait_stored(10)
        assert ids(shop.stored()) == list(range(1, 11))
        assert bridge.terminate() == 0

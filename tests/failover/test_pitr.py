"""Point-in-time recovery: the server goes back behind what the stream holds, and has no slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.forks import parse_fork
from schemas.positions import Lsn
from tests.support.bridge import wait_for
from tests.support.shop import FORK, Shop, alive, assert_refused, ids
from tests.support.standby import base_backup, begin_archive, finish_archive, restore_archive
from tests.support.stream import StoredMessage


@dataclass
class Restored:
    """A shop whose server was recovered to `target`; the stream has rows 11 to 110 beyond it."""

    shop: Shop
    target: Lsn


@pytest.fixture
def restored(shop: Shop, server_folder: Path) -> Iterator[Restored]:
    archive = begin_archive(shop.primary)
    with shop.bridge() as bridge:
        bridge.wait_streaming()
        shop.insert(1, 5)
        backup = base_backup(shop.primary, server_folder / "two")
        shop.insert(6, 10)
        target = str(shop.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
        shop.insert(11, 110)
        shop.wait_stored(110)
        bridge.kill()
    finish_archive(shop.primary)
    shop.primary.kill()
    try:
        restore_archive(backup, archive, target)
        shop.servers = [backup]
        yield Restored(shop, Lsn.parse(target))
    finally:
        backup.kill()


def by_id(messages: list[StoredMessage]) -> dict[int, int]:
    """Where each row was committed, as the stream says last."""
    inserts = [m for m in messages if m.subject == "cdc.users.insert"]
    return {m.fields["data"]["id"]: m.position[0] for m in inserts}


@pytest.mark.usefixtures("_short_window")
def test_a_server_recovered_to_a_point_in_time_is_a_fork(restored: Restored) -> None:
    """Without the mark 100 rows that this server never had would count as its own."""
    shop = restored.shop
    assert shop.rows() == list(range(1, 11))
    dead = by_id(shop.stored())

    assert_refused(shop)
    assert not shop.confirmed()

    with shop.bridge("--on-fork", "mark") as bridge:
        wait_for(lambda: FORK in [m.subject for m in shop.stored()], "the mark")
        bridge.wait_streaming()
        shop.insert(201, 230)
        shop.wait_stored(230)
        assert ids(alive(shop.stored())) == shop.rows(), bridge.said()[-3_000:]
        assert bridge.terminate() == 0
    with shop.bridge() as bridge:
        shop.insert(231, 240)
        shop.wait_stored(240)
        assert bridge.terminate() == 0

    messages = shop.stored()
    found = alive(messages)
    assert ids(found) == shop.rows() == [*range(1, 11), *range(201, 241)]
    assert found == sorted(found, key=lambda m: m.position)
    [mark] = [m for m in messages if m.subject == FORK]
    fork = parse_fork(mark.fields["content"])
    assert fork is not None
    assert fork.timeline == 2
    assert dead[10] < fork.switch_lsn <= restored.target < dead[11]
    assert by_id(messages)[201] < dead[110], "no position was used twice: this proves less"

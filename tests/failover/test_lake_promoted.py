"""A lake that had followed a primary further than the standby that was promoted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from examples.embedded import EmbeddedPostgres
from lake_consumer.cuts import CutBook
from lake_consumer.errors import NotReadable
from lake_consumer.iceberg.reading import LakeReader
from schemas.forks import parse_fork
from schemas.positions import Lsn
from tests.support.lakeprocess import LakeProcess
from tests.support.shop import FORK, SLOT, Shop
from tests.support.shoplake import expected_forks, logged_forks, mirrored_rows, run_lake
from tests.support.standby import cut_off, promote, sync_slots


def cuts(lake: LakeProcess) -> CutBook:
    with closing(LakeReader(lake.catalog, lake.warehouse)) as reader:
        return reader.cuts()


@pytest.mark.usefixtures("_short_window")
def test_a_lake_is_what_the_promoted_standby_has(
    shop: Shop, standby: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Inserts, an update and a delete were in it that the new primary never saw."""
    environ = {**shop.primary.env(), **shop.nats.env(), "BRIDGE_PUBLICATION": "pub"}
    lake = LakeProcess(tmp_path, environ)
    shop.execute("ALTER TABLE users ADD name text DEFAULT 'real'")
    with shop.bridge() as bridge:
        bridge.wait_serving()
        shop.insert(1, 10)
        shop.wait_stored(10)
        run_lake(lake, "drain")
        # The fork lies where the slot is, or the standby: all that the lake has so far is before.
        shop.wait_confirmed()
        sync_slots(shop.primary, standby, SLOT)
        cut_off(standby)
        shop.execute("UPDATE users SET name = 'ghost' WHERE id = 1")
        shop.execute("DELETE FROM users WHERE id = 2")
        shop.insert(11, 30)
        shop.wait_stored(30)
        run_lake(lake, "drain")
        assert mirrored_rows(lake) == shop.execute("SELECT * FROM users ORDER BY id")
        bridge.kill()
    ghost = cuts(lake).at(None)
    shop.primary.kill()
    promote(standby)
    shop.servers.append(standby)
    shop.execute("UPDATE users SET name = 'again' WHERE id = 3")
    # Beyond the dead branch, so that no position in it has a meaning again.
    shop.insert(101, 200)

    with shop.bridge("--on-fork", "mark") as bridge:
        shop.wait_stored(200)
        bridge.wait_serving()
        run_lake(lake, "drain")
        verified = lake.command("verify", "--pub", "pub", environ=standby.env())
        assert verified.returncode == 0, verified.stdout + verified.stderr

    assert mirrored_rows(lake) == shop.execute("SELECT * FROM users ORDER BY id")
    forks = expected_forks(shop.stored())
    assert logged_forks(lake) == forks
    [mark] = [m for m in shop.stored() if m.subject == FORK]
    assert list(forks.values()).count(mark.sequence) == len(["UPDATE", "DELETE", *range(11, 31)])
    fork = parse_fork(mark.fields["content"])
    assert fork is not None
    book = cuts(lake)
    before = [cut for cut in book.cuts() if cut.stream_seq < mark.sequence]
    assert before
    assert all(cut.commit_lsn < fork.switch_lsn for cut in before)
    assert ghost.commit_lsn >= fork.switch_lsn
    for when in (ghost.commit_lsn, ghost.commit_ts):
        with pytest.raises(NotReadable, match=f"fork at stream sequence {mark.sequence}"):
            book.at(when)
    refused = lake.command("query", "--at", str(Lsn(ghost.commit_lsn)), "SELECT * FROM users")
    assert refused.returncode != 0
    assert "never happened" in refused.stderr

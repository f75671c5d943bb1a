from __future__ import annotations

from typing import Any

from lake_consumer.loads import (
    ASK_AGAIN_SECONDS,
    REFUSALS_AT_MOST,
    Ask,
    Asked,
    Load,
    Meta,
    Notices,
    Park,
    Wait,
    plan_load,
)
from lake_consumer.tablestates import TableState, loading
from schemas.names import TableName
from schemas.snapshots import SnapshotName

STATE = loading("why", since=50)
NAME = SnapshotName("s1", TableName("public", "users"), 700, 50)


def meta(sequence: int = 3, **changed: Any) -> Meta:
    fields = NAME.meta(
        batch_count=1, row_count=2, checksum="c", cdc_complete=60, schema_revision=1, whole=True
    )
    found = Meta.of(sequence, {**fields, "timestamp": "now", **changed})
    assert found is not None
    return found


def plan(
    notices: Notices,
    asked: Asked = Asked(),  # noqa: B008 - frozen
    *,
    position: int = 60,
    spoiled: tuple[str, ...] = (),
    now: float = 1_000.0,
    state: TableState = STATE,
) -> Load | Ask | Park | Wait:
    return plan_load(notices, asked, state=state, position=position, spoiled=spoiled, now=now)


def test_a_snapshot_begun_before_the_mark_is_too_old() -> None:
    """It may have begun in the batch that brings the mark, and shows the rows as they were."""
    between = Notices(metas=[meta(cdc_sequence=54, cdc_complete=60)], request=2, is_settled=True)

    assert plan(between, state=loading("rewritten", since=55)) == Ask()
    assert isinstance(plan(between, state=loading("rewritten", since=54)), Load)


def test_a_table_nobody_asked_for_is_asked_for() -> None:
    assert plan(Notices()) == Ask()


def test_a_request_that_is_stored_is_not_stored_again() -> None:
    """After a crash the next process must wait for what the last one asked."""
    assert plan(Notices(request=2)) == Wait()


def test_a_snapshot_is_loaded_when_the_lake_has_read_all_it_holds() -> None:
    """Earlier, changes that are in it would come again, and the cut would be no state."""
    notices = Notices(request=2, is_settled=True, metas=[meta()])

    assert plan(notices, position=59) == Wait(60)
    assert plan(notices, position=60) == Load(meta())


def test_a_snapshot_from_before_the_log_is_complete_does_not_count() -> None:
    """What it lacks is not in the log either."""
    old = meta(cdc_sequence=49)

    assert plan(Notices(request=2, is_settled=True, metas=[old])) == Ask()


def test_who_asks_for_a_resync_gets_a_new_snapshot() -> None:
    """One that is there already may be what is wrong."""
    resync = TableState("loading", "resync", since=50, after=3)
    notices = Notices(request=2, is_settled=True, metas=[meta(3)])

    assert plan(notices, state=resync) == Ask()
    assert plan(Notices(metas=[meta(4)]), state=resync) == Load(meta(4))


def test_a_part_of_a_table_is_no_table() -> None:
    """Others ask for ranges, and their metas are on the same subject."""
    fields = NAME.meta(
        batch_count=1, row_count=2, checksum="c", cdc_complete=60, schema_revision=1, whole=False
    )

    assert Meta.of(3, fields) is None
    assert Meta.of(3, {"snapshot_id": "of an old bridge"}) is None


def test_the_newest_snapshot_is_taken_and_a_spoiled_one_never() -> None:
    metas = [meta(3), meta(9, snapshot_id="s2")]
    notices = Notices(metas=metas)

    assert plan(notices) == Load(metas[1])
    assert plan(notices, spoiled=("s2",)) == Load(metas[0])


def test_what_failed_is_asked_for_again_later_each_time() -> None:
    asked = Asked(request=2, times=1, at=1_000.0)
    settled = Notices(request=2, is_settled=True, error=(4, "no room"))

    assert plan(settled, asked, now=1_001.0) == Wait()
    assert plan(settled, asked, now=1_002.0) == Ask("no room")


def test_a_bridge_that_refuses_time_and_again_parks_the_table() -> None:
    """A table that was dropped would else be waited for by every drain."""
    asked = Asked(request=2, times=3, at=0.0, refusals=2)

    assert plan(Notices(request=2, is_settled=True, error=(4, "gone")), asked) == Park("gone")
    assert plan(Notices(request=2, is_settled=True, error=(1, "old")), asked) == Ask()


def test_an_error_counts_from_behind_the_request_on() -> None:
    """What stands before the request answered another one."""
    asked = Asked(request=4, times=1, at=0.0)

    assert plan(Notices(error=(4, "old")), asked) == Ask()
    assert plan(Notices(error=(5, "new")), asked) == Ask("new")


def test_the_last_refusal_parks_and_the_one_before_asks_again() -> None:
    refused = Notices(error=(5, "no"))
    times = REFUSALS_AT_MOST - 1

    assert plan(refused, Asked(request=4, times=9, refusals=times)) == Park("no")
    assert plan(refused, Asked(request=4, times=9, refusals=times - 1)) == Ask("no")


def test_asking_again_takes_longer_each_time_up_to_a_limit() -> None:
    for times in range(len(ASK_AGAIN_SECONDS) + 3):
        patience = ASK_AGAIN_SECONDS[min(times, len(ASK_AGAIN_SECONDS) - 1)]
        asked = Asked(request=4, times=times, at=100.0)

        assert plan(Notices(), asked, now=100.0 + patience) == Ask()
        if patience:
            assert plan(Notices(), asked, now=99.9 + patience) == Wait()


def test_a_snapshot_counts_from_where_the_log_is_complete_on() -> None:
    """And its meta only behind the place in INIT that the state names."""
    exact = meta(4, cdc_sequence=50)
    resync = TableState("loading", "resync", since=50, after=4)

    assert plan(Notices(metas=[exact])) == Load(exact)
    assert plan(Notices(metas=[exact]), state=resync) == Ask()

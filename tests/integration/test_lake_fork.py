"""A fork: what never happened on the surviving history is nowhere shown as if it had."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lake_consumer.cuts import CutBook
from lake_consumer.errors import NotReadable, OutOfOrder
from lake_consumer.iceberg import forking
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.mirrorrows import Layout, MirrorAtCut
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.verify.visibility import SeenTransactions
from schemas.forks import Fork
from schemas.positions import Lsn
from tests.support.lake import (
    HandMadeStream,
    LakeRig,
    announce,
    change,
    fork_message,
    make_shape,
    reach_end,
)

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

USERS = make_shape("users", {"id": "int64", "name": "text"})
OTHERS = make_shape("others", {"id": "int64", "name": "text"})
SWITCH = 1_030
FORK = Fork("7", 2, SWITCH, "shop", "promoted without the last commits")
FORK_SEQ = 7


def follow(rig: LakeRig, lake_class: type[Lake] = Lake) -> None:
    with rig.following(lake_class=lake_class, first_sight="stream") as follower:
        reach_end(follower, rig.nats)


def begin(stream: HandMadeStream, rig: LakeRig) -> None:
    """Sequences 1 to 6; 3 and 4 are of the dead branch, 5 and 6 of another source."""
    stream.commit(announce(USERS, 1), change("users", "INSERT", {"id": 1, "name": "ann"}))
    stream.send()
    follow(rig)
    stream.commit(change("users", "UPDATE", {"id": 1, "name": "ghost"}))
    stream.commit(change("users", "INSERT", {"id": 9, "name": "ghost"}))
    stream.send()
    follow(rig)
    stream.lsn = 2_000
    stream.commit(
        replace(announce(OTHERS, 1), source="8/1"),
        change("others", "INSERT", {"id": 1, "name": "other"}),
    )
    stream.send()
    follow(rig)


def fork(stream: HandMadeStream) -> None:
    """Sequence 7 is the fork, 8 the first change of the surviving history."""
    stream.events.append(fork_message(FORK))
    stream.lsn = SWITCH + 2
    stream.commit(change("users", "INSERT", {"id": 2, "name": "real"}))
    stream.send()


def snapshot(stream: HandMadeStream) -> None:
    stream.store_snapshot(USERS, [{"id": 1, "name": "ann"}], lsn=SWITCH, at=FORK_SEQ)


def cuts(rig: LakeRig) -> CutBook:
    with closing(LakeReader(rig.catalog, rig.warehouse)) as lake:
        return lake.cuts()


def row_ids(rig: LakeRig) -> dict[int, int]:
    found = rig._rows("SELECT stream_seq, _row_id FROM lake.public__changes.users")
    return {row["stream_seq"]: row["_row_id"] for row in found}


def assert_healed(rig: LakeRig) -> None:
    assert [(row["id"], row["name"]) for row in rig.mirror("users")] == [(1, "ann"), (2, "real")]
    assert [(row["id"], row["name"]) for row in rig.mirror("others")] == [(1, "other")]
    dead = {row["stream_seq"]: row["fork_seq"] for row in rig.log("users")}
    assert dead == {2: None, 3: FORK_SEQ, 4: FORK_SEQ, 8: None}
    assert {row["fork_seq"] for row in rig.log("others")} == {None}


def test_a_fork_rebuilds_mirrors_and_marks_what_never_happened(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """A standby was promoted without the last commits, which the lake had applied already."""
    begin(stream, rig)
    before = row_ids(rig)
    fork(stream)
    with rig.following(first_sight="stream") as follower:
        standing = follower._lake.watermarks()
        follower.step(None)
        assert follower._lake.watermarks() == standing, "a mark of a fork was taken for a batch"
        follower.step(None)
        assert "loading: PostgreSQL's history was replaced" in rig.notes()["public__changes.users"]
        assert "public__changes.others" not in rig.notes()
        book = cuts(rig)
        cut = book.at(None)
        with pytest.raises(NotReadable, match="cannot be read"):
            book.mirror_snapshot("public.users", cut)
    snapshot(stream)

    follow(rig)

    assert_healed(rig)
    assert "PostgreSQL's history was replaced" in capsys.readouterr().out
    assert {at: row_ids(rig)[at] for at in before} == before, "row lineage was lost"


def test_cuts_of_the_dead_branch_are_not_offered(stream: HandMadeStream, rig: LakeRig) -> None:
    """By LSN, by time and as the newest: the error names the fork instead."""
    begin(stream, rig)
    ghost = cuts(rig).cuts()[1]
    fork(stream)
    snapshot(stream)

    follow(rig)

    book = cuts(rig)
    assert [cut.stream_seq for cut in book.cuts()] == [2, 8]
    assert book.at(None).stream_seq == 8
    assert book.at(Lsn(1_025)).stream_seq == 2
    moments = (ghost.commit_ts, ghost.commit_ts + timedelta(microseconds=1))
    for when in (ghost.commit_lsn, Lsn(ghost.commit_lsn + 1), *moments):
        with pytest.raises(NotReadable, match=f"fork at stream sequence {FORK_SEQ}, timeline 2"):
            book.at(when)
    assert {row["fork_seq"] for row in rig.cuts() if 4 <= row["stream_seq"] < 7} == {FORK_SEQ}


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (Lake, "_rebuild_after"),
        (forking.ForkWriter, "_mark_log"),
        (forking.ForkWriter, "_mark_cuts"),
        (Lake, "cross_fork"),
        (Lake, "_apply_tables"),
        (Lake, "_cut"),
    ],
)
def test_a_kill_between_any_two_steps_leaves_nothing_half(
    stream: HandMadeStream,
    rig: LakeRig,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    method: str,
) -> None:
    """Each step is taken again and changes nothing the second time."""
    begin(stream, rig)
    fork(stream)
    real: Callable[..., Any] = getattr(owner, method)

    def die_after(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise ConnectionAbortedError(method)

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, die_after)
        with pytest.raises(ConnectionAbortedError):
            follow(rig)
    snapshot(stream)

    follow(rig)

    assert_healed(rig)
    assert [cut.stream_seq for cut in cuts(rig).cuts()] == [2, 8]


def test_verify_leaves_out_what_never_happened(stream: HandMadeStream, rig: LakeRig) -> None:
    """Its transaction ids come again, and PostgreSQL's snapshot would not see them."""
    begin(stream, rig)
    fork(stream)
    snapshot(stream)
    follow(rig)
    with closing(LakeReader(rig.catalog, rig.warehouse)) as lake:
        book = lake.cuts()
        mirror = MirrorAtCut(lake, book, book.at(None), USERS.name)
        layout = Layout(tuple(mirror.columns[at] for at in sorted(mirror.columns)), (0,))
        nothing = SeenTransactions.parse("1:1:")

        found = [change.row for change in mirror.unseen_changes(layout, nothing)]

        held = sorted(mirror.rows(layout), key=str)
    assert sorted((row for row in found if row), key=str) == held
    assert len(found) == 2


def test_a_fork_lets_positions_fall_once(stream: HandMadeStream, rig: LakeRig) -> None:
    """After it the order is checked again, and a restart knows where."""
    begin(stream, rig)
    fork(stream)
    snapshot(stream)
    follow(rig)
    stream.lsn = SWITCH + 2
    stream.commit(replace(change("users", "INSERT", {"id": 2, "name": "again"}), repeat=1))
    stream.send()

    with pytest.raises(OutOfOrder, match="stream sequence 9"):
        follow(rig)

    assert_healed(rig)

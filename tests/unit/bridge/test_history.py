"""Which histories contain what a stream holds: decisions without a server."""

from __future__ import annotations

import json

import pytest

from bridge.errors import HistoryForked
from bridge.history import (
    EndFinder,
    History,
    Meeting,
    StoredEnd,
    StoredFork,
    Witness,
    find_fork,
    fork_message,
    parse_switches,
)
from bridge.sources import SourceId
from schemas.events import Place
from schemas.forks import Fork, parse_fork
from schemas.positions import ORIGIN, Position

FIRST = History(1)
PROMOTED = History(2, ((1, 500),))
TWICE = History(3, ((1, 500), (2, 800)))
TS = "2026-01-01T00:00:00.000000Z"
OURS = SourceId("77", 5, "shop")


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (FIRST, FIRST, None),
        (PROMOTED, PROMOTED, None),
        (FIRST, PROMOTED, 500),
        (FIRST, TWICE, 500),
        (PROMOTED, TWICE, 800),
        (History(7), FIRST, 0),
        (PROMOTED, History(3, ((1, 400),)), 400),
        (PROMOTED, History(3, ((1, 500),)), 500),
        (History(2, ((1, 500),)), History(2, ((1, 450),)), 450),
    ],
    ids=["same", "same later", "child", "grandchild", "grandchild of two", "nothing shared",
         "sibling, earlier", "sibling, same point", "same number, other branch"],
)  # fmt: skip
def test_histories_part_where_the_earlier_of_two_timelines_ended(
    one: History, other: History, shared: int | None
) -> None:
    assert one.shared_until(other) == shared
    assert other.shared_until(one) == shared


def test_a_history_file_is_read_as_postgresql_writes_it() -> None:
    text = "1\t0/1F4\tno recovery target specified\n\n2\t1/320\tbefore 2026 # x\n# a comment\n"
    assert parse_switches(text) == ((1, 500), (2, (1 << 32) + 800))


@pytest.mark.parametrize("last", [499, 500, 501])
def test_what_lies_beyond_the_switch_never_happened(last: int) -> None:
    """A commit cannot begin before the switch and end beyond it."""
    fork = find_fork(StoredEnd(Position(last, 0)), FIRST, PROMOTED, wal_end=10_000)
    assert (fork is not None) == (last >= 500)
    assert fork is None or fork.switch_lsn == 500


def test_a_stream_beyond_the_wal_is_of_another_history() -> None:
    """A restored server may be on the same timeline, so nothing tells where they parted."""
    stored = StoredEnd(Position(600, 0))
    assert find_fork(stored, FIRST, FIRST, wal_end=600) is None
    fork = find_fork(stored, None, FIRST, wal_end=599)
    assert fork is not None
    assert fork.switch_lsn is None


def test_an_empty_stream_fits_every_history() -> None:
    assert find_fork(StoredEnd(), FIRST, PROMOTED, wal_end=0) is None


AWAITED = Witness(700, 42, TS)


def test_the_stream_s_last_transaction_proves_the_history() -> None:
    meeting = Meeting(AWAITED, start_lsn=600)
    meeting.take(Witness(650, 41, TS))
    meeting.pass_idle(700)
    states = [meeting.is_over]
    meeting.take(AWAITED)
    states.append(meeting.is_over)
    assert states == [False, True]
    meeting.take(Witness(710, 43, TS))
    meeting.pass_idle(9_000)


@pytest.mark.parametrize(
    "found", [Witness(700, 43, TS), Witness(700, 42, None), Witness(701, 42, TS)]
)
def test_another_transaction_in_its_place_proves_a_fork(found: Witness) -> None:
    """The restored server has written something else at the same position, or nothing."""
    with pytest.raises(HistoryForked):
        Meeting(AWAITED, start_lsn=700).take(found)


def test_passing_its_place_without_meeting_it_proves_a_fork() -> None:
    """An idle server sends no transaction that could prove it."""
    with pytest.raises(HistoryForked):
        Meeting(AWAITED, start_lsn=700).pass_idle(701)


@pytest.mark.parametrize("witness", [None, Witness(599, 42, TS)])
def test_what_the_slot_does_not_send_again_is_not_awaited(witness: Witness | None) -> None:
    assert Meeting(witness, start_lsn=600).is_over


def place(commit_lsn: int, seq: int = 0, *, xid: int = 7, last: bool = True) -> Place:
    return Place(lsn=commit_lsn, commit_lsn=commit_lsn, commit_ts=TS, xid=xid, seq=seq, last=last)


def end_of(*stored: tuple[str, int, Place], fork: StoredFork | None = None) -> StoredEnd:
    finder = EndFinder(fork)
    for subject, sequence, at in stored:
        finder.add(subject, sequence, at)
    return finder.end


def test_the_furthest_message_is_the_end() -> None:
    assert end_of() == StoredEnd(ORIGIN)
    end = end_of(("cdc.a.insert", 1, place(300, 2)), ("cdc.b.insert", 2, place(300, 1)))
    assert end == StoredEnd(Position(300, 2), Witness(300, 7, TS))


@pytest.mark.parametrize("last", [True, False])
def test_the_furthest_message_tells_whether_its_transaction_is_whole(last: bool) -> None:
    """Whatever is stored after it, of an earlier transaction or by other writers."""
    end = end_of(
        ("cdc.a.insert", 1, place(300, 2, last=last)),
        ("cdc.b.insert", 2, place(200, 1, last=not last)),
    )
    assert end.is_whole is last
    assert end_of().is_whole
    assert not end_of(("cdc.a.schema", 1, place(300, 2, last=False))).is_whole


def test_a_schema_alone_does_not_store_the_change_after_it() -> None:
    """They share their place; one that stands between transactions has it alone."""
    assert end_of(("cdc.a.schema", 1, place(300, 2, last=False))).position == Position(300, 1)
    assert end_of(("cdc.a.schema", 1, place(300, 0, xid=0))).position == Position(300, 0)


def test_a_logical_message_of_prefix_schema_is_no_schema() -> None:
    """It has its place for itself; taking one from it stored the message twice."""
    assert end_of(("cdc._message.schema", 1, place(300, 2, last=False))).position == (300, 2)


def test_messages_of_the_bridge_s_own_are_not_awaited_in_the_wal() -> None:
    end = end_of(
        ("cdc.a.insert", 1, place(300)),
        ("cdc._message.bridge-ddl", 2, place(400, xid=0)),
        ("cdc.a.schema", 3, place(400, 1, xid=0)),
    )
    assert end == StoredEnd(Position(400, 1), Witness(300, 7, TS))


def test_a_message_outside_any_transaction_is_awaited() -> None:
    end = end_of(("cdc._message.app", 1, place(300, xid=0)))
    assert end.witness == Witness(300, 0, TS)


FORK = StoredFork(Fork("77", 2, 500, "shop"), sequence=10)


def test_what_a_fork_declared_invalid_does_not_count() -> None:
    """Else changes of the new history at the same positions would be skipped."""
    assert end_of(("cdc.a.insert", 9, place(900)), fork=FORK) == StoredEnd(Position(499, 0))


@pytest.mark.parametrize(("sequence", "commit_lsn"), [(9, 499), (11, 600)])
def test_what_is_before_the_switch_or_after_the_mark_counts(sequence: int, commit_lsn: int) -> None:
    end = end_of(("cdc.a.insert", sequence, place(commit_lsn)), fork=FORK)
    assert end.position == Position(commit_lsn, 0)
    assert end.witness == Witness(commit_lsn, 7, TS)


@pytest.mark.parametrize(
    ("switch_lsn", "start_lsn", "marked"),
    [(500, 450, 450), (500, 550, 500), (None, 450, 450), (500, None, 500), (None, None, 0)],
    ids=["slot before", "slot beyond", "unknown", "new slot", "new slot, unknown"],
)
def test_a_fork_is_marked_at_the_last_position_that_is_certain(
    switch_lsn: int | None, start_lsn: int | None, marked: int
) -> None:
    """What the slot sends again is published again, so it must count as invalid before the mark."""
    error = HistoryForked("because", switch_lsn=switch_lsn)
    message = fork_message(OURS, PROMOTED, error, start_lsn)
    assert parse_fork(message.content) == Fork("77", 2, marked, "shop", "because")
    assert message.place.commit_lsn == max(marked - 1, 0)
    assert (message.source, message.subject) == ("77/5/shop", "cdc._message.bridge-fork")
    assert json.loads(str(message.content))["timeline"] == 2


def test_a_history_file_may_say_nothing_of_the_reason() -> None:
    assert parse_switches("1\t0/1F4\n2\t0/320\tno recovery target specified\n\n3\n") == (
        (1, 0x1F4),
        (2, 0x320),
    )


def test_the_first_of_two_messages_of_one_commit_is_its_witness() -> None:
    """They are of one transaction, so there is nothing to choose; the time is the commit's."""
    finder = EndFinder(None)
    for sequence, xid in ((1, 7), (2, 8)):
        at = Place(lsn=1, commit_lsn=100, commit_ts=TS, xid=xid, seq=sequence, last=False)
        finder.add("cdc.users.insert", sequence, at)

    assert finder.end.witness == Witness(100, 7, TS)


def test_a_fork_voids_what_lies_at_its_switch_and_not_itself() -> None:
    mark = StoredFork(Fork("77", 2, 500, "shop", "why"), 9)

    assert mark.voids(8, Position(500, 0))
    assert not mark.voids(8, Position(499, 0))
    assert not mark.voids(9, Position(500, 0))
    assert (mark.comes_after(8), mark.comes_after(9)) == (True, False)


def test_a_mark_is_a_message_of_its_own_outside_any_transaction() -> None:
    message = fork_message(OURS, PROMOTED, HistoryForked("why", switch_lsn=500), None)

    place = message.place
    assert (place.lsn, place.commit_lsn, place.xid, place.seq, place.last) == (499, 499, 0, 0, True)
    unknown = fork_message(OURS, PROMOTED, HistoryForked("why"), None)
    found = parse_fork(unknown.content)
    assert found is not None
    assert found.switch_lsn == 0

from __future__ import annotations

from dataclasses import replace

import pytest

from lake_consumer.tablestates import (
    LIVE,
    TableState,
    describe_state,
    first_state,
    gone,
    loading,
    next_state,
    note_gap,
    parked,
    read_gaps,
    why_no_resync,
    why_unusable,
)
from schemas.shapes import TableShape
from tests.support.lake import make_shape

USERS = make_shape("users", {"id": "int32", "name": "text"})
KEYLESS = make_shape("users", {"id": "int32", "name": "text"}, key=())
WIDER = make_shape("users", {"id": "int64", "title": "text"})
INT_NAME = make_shape("users", {"id": "int32", "name": "int32"})
OTHER_KEY = make_shape("users", {"id": "int32", "name": "text"}, key=("id", "name"))
ADDED = make_shape("users", {"id": "int32", "name": "text", "age": "int32"})
ANEW = replace(INT_NAME, relation_id=99)


def with_last_column(shape: TableShape, **facts: object) -> TableShape:
    *others, last = shape.columns
    return replace(shape, columns=(*others, replace(last, **facts)))  # type: ignore[arg-type]


DEFAULT = with_last_column(ADDED, column_default="5")
NOT_NULL = with_last_column(ADDED, is_nullable=False)


def test_a_table_begins_as_it_was_told_to() -> None:
    """Only a stream that holds the whole history makes a mirror without a snapshot."""
    assert first_state(USERS, "snapshot", 7) == loading("first sight of the table", 7)
    assert first_state(USERS, "stream", 7) == LIVE
    assert first_state(KEYLESS, "snapshot", 7) == LIVE


@pytest.mark.parametrize("after", [USERS, WIDER, ADDED, make_shape("users", {"id": "int32"})])
def test_what_iceberg_can_do_is_followed_in_place(after: TableShape) -> None:
    assert next_state(LIVE, USERS, after, since=7, can_load=True) == LIVE


@pytest.mark.parametrize("after", [DEFAULT, NOT_NULL, OTHER_KEY, ANEW])
def test_what_no_change_tells_of_is_loaded_anew(after: TableShape) -> None:
    """Rows that were there have values, or a key, that never come through the stream."""
    assert next_state(LIVE, USERS, after, since=7, can_load=True).kind == "loading"
    assert next_state(LIVE, USERS, after, since=7, can_load=False).kind == "parked"


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        ({"id": "int32", "day": "date", "till": "date"}, "live"),
        ({"id": "int32", "day": "date"}, "live"),
        ({"id": "int32", "from": "date", "till": "date"}, "loading"),
        ({"id": "int32", "till": "date", "day": "date"}, "loading"),
        ({"number": "int32", "day": "date", "till": "date"}, "live"),
    ],
)
def test_a_column_whose_values_may_be_noted_by_name_keeps_it(
    after: dict[str, str], kind: str
) -> None:
    """`infinity` stands in the row's text map under the old name, and would be lost."""
    before = make_shape("users", {"id": "int32", "day": "date", "till": "date"})

    now = make_shape("users", after, key=(next(iter(after)),))

    assert next_state(LIVE, before, now, since=7, can_load=True).kind == kind


def test_another_column_that_takes_the_name_finds_no_noted_values() -> None:
    """A column is dropped and another one gets its name in the same transaction."""
    before = make_shape("users", {"id": "int32", "day": "date"})
    added = replace(make_shape("users", {"id": "int32", "x": "int32", "day": "date"}).columns[2])
    after = replace(before, columns=(before.columns[0], added))

    assert next_state(LIVE, before, after, since=7, can_load=True).kind == "loading"


def test_a_type_that_cannot_become_another_is_loaded_from_a_snapshot() -> None:
    """The column is dropped and added: the snapshot has every value in its new type."""
    state = next_state(LIVE, USERS, INT_NAME, since=7, can_load=True)

    assert (state.kind, state.since) == ("loading", 7)
    assert "column name changed from text to int32" in state.reason
    assert next_state(LIVE, USERS, INT_NAME, since=7, can_load=False).kind == "parked"


def test_rewritten_rows_are_loaded_from_a_snapshot_of_after_the_mark() -> None:
    """Also where the mirror waits already: a snapshot from before the mark shows old values."""

    def mark(state: TableState, *, can_load: bool = True) -> TableState:
        return next_state(state, USERS, USERS, since=9, can_load=can_load, rewritten=True)

    assert (mark(LIVE).kind, mark(LIVE).since) == ("loading", 9)
    assert mark(LIVE, can_load=False).kind == "parked"
    waiting = mark(TableState("loading", "why", 3, 2))
    assert (waiting.kind, waiting.since, waiting.after) == ("loading", 9, 2)
    assert mark(TableState("loading", "why", 30)).since == 30
    assert mark(parked("why")).kind == "loading"
    assert mark(parked("why"), can_load=False) == parked("why")


def test_a_table_published_again_begins_with_a_snapshot_of_after_its_mark() -> None:
    anew = replace(USERS, rewritten=True)

    assert first_state(anew, "snapshot", 7, 12).since == 12
    assert first_state(anew, "snapshot", 7).since == 7
    assert first_state(USERS, "snapshot", 7, 12).since == 7
    assert first_state(anew, "stream", 7, 12) == LIVE


@pytest.mark.parametrize(
    ("fill", "has_defaults", "kind"),
    [(None, False, "live"), (5, True, "live"), (5, False, "loading")],
)
def test_the_bridge_knows_what_existing_rows_hold(
    fill: object, has_defaults: bool, kind: str
) -> None:
    """Its word counts, whatever default the column has by now; format v2 cannot hold a constant."""
    after = with_last_column(NOT_NULL, column_default="7", fill=fill)

    state = next_state(LIVE, USERS, after, since=7, can_load=True, has_defaults=has_defaults)

    assert state.kind == kind
    assert bool(why_unusable(USERS, after)) == (fill is not None)


def test_a_parked_mirror_stays_parked_until_its_table_is_another() -> None:
    """Whatever follows is told by the log; only a resync or a new table begins it anew."""
    state = parked("why")

    assert next_state(state, INT_NAME, USERS, since=7, can_load=True) == state
    assert next_state(state, USERS, ANEW, since=7, can_load=True).kind == "loading"


def test_a_key_that_comes_back_is_a_mirror_that_begins_anew() -> None:
    """Nobody could apply the changes in between."""
    assert next_state(LIVE, KEYLESS, KEYLESS, since=7, can_load=True) == LIVE
    assert next_state(LIVE, KEYLESS, USERS, since=7, can_load=True).kind == "loading"


def test_a_mirror_that_lost_its_key_is_parked_until_the_key_is_back() -> None:
    """Nothing follows it any more, and rows that stand still must not pass for PostgreSQL's."""
    lost = next_state(LIVE, USERS, KEYLESS, since=7, can_load=True)

    assert lost.kind == "parked"
    assert next_state(lost, KEYLESS, KEYLESS, since=8, can_load=True) == lost
    assert next_state(lost, KEYLESS, USERS, since=9, can_load=True).kind == "loading"
    assert next_state(lost, KEYLESS, USERS, since=9, can_load=False).kind == "parked"


def test_resync_is_refused_where_no_snapshot_can_be_taken() -> None:
    """The bridge would reject the request, and the table would end parked instead of gone."""
    left = gone("it left the publication", 0x10)

    assert why_no_resync(left, has_key=True) == "it is gone since 0/10: it left the publication"
    assert why_no_resync(LIVE, has_key=False)
    assert not why_no_resync(LIVE, has_key=True)
    assert not why_no_resync(parked("why"), has_key=True)


def test_a_snapshot_in_an_older_shape_will_do_where_the_shape_can_follow() -> None:
    assert why_unusable(USERS, WIDER) == ""
    assert "int32" in why_unusable(USERS, INT_NAME)
    assert "added" in why_unusable(USERS, DEFAULT)
    assert "anew" in why_unusable(USERS, ANEW)


@pytest.mark.parametrize(
    "state", [LIVE, TableState("loading", "a reason", 12, 3), parked("another")]
)
def test_a_state_survives_in_properties(state: TableState) -> None:
    assert TableState.from_properties(state.to_properties()) == state


def test_a_log_of_before_states_is_of_a_live_table() -> None:
    assert TableState.from_properties({}) == LIVE


def test_gaps_are_told_once_each() -> None:
    """A gap is found again after a crash in the middle of healing it."""
    properties = note_gap({}, 3, 9)
    properties = note_gap(properties, 3, 9)
    properties = note_gap(properties, 12, 12)

    assert read_gaps(properties) == [(3, 9), (12, 12)]
    said = describe_state({**properties, **parked("why").to_properties()})
    assert said == "the mirror is parked: why; the change log lacks stream sequence 3-9, 12"
    assert describe_state({}) == ""

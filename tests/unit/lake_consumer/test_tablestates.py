from __future__ import annotations

from dataclasses import replace

import pytest

from lake_consumer.columns import LakeColumn, columns_of
from lake_consumer.tablestates import (
    LIVE,
    TableState,
    describe_state,
    first_state,
    gone,
    loading,
    names_given_up,
    next_state,
    note_gap,
    parked,
    read_gaps,
    why_no_resync,
    why_unusable,
)
from schemas.shapes import TableShape
from schemas.types import parse_type
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
    ("after", "given_up"),
    [
        ({"id": 1, "day": 2, "till": 3}, set()),
        ({"id": 1, "day": 2}, set()),
        ({"id": 1, "from": 2, "till": 3}, {"day"}),
        ({"id": 1, "till": 2, "day": 3}, {"day", "till"}),
        ({"number": 1, "day": 2, "till": 3}, set()),
        ({"id": 1, "day": 4, "till": 3}, {"day"}),
        ({"id": 1, "till": 2}, {"day", "till"}),
        ({"id": 1, "day": 2, "till": 3, "old": 4}, {"old"}),
        ({"id": 1, "old": 2, "till": 3}, {"day", "old"}),
        ({"id": 1, "day": 2, "till": 3, "older": 4}, set()),
        ({"id": 1, "day": 2, "till": 3, "number": 4}, set()),
    ],
)
def test_names_by_which_texts_are_of_another_column(
    after: dict[str, int], given_up: set[str]
) -> None:
    """`infinity` stands in the row's text map under the name that its column had."""
    before = make_shape("users", {"id": "int32", "day": "date", "till": "date"})
    kinds = {name: "int32" if position == 1 else "date" for name, position in after.items()}
    now = make_shape("users", kinds, positions=after, key=(next(iter(after)),))
    logged = (
        *columns_of(before),
        LakeColumn(8, "old", parse_type("date")),
        LakeColumn(7, "older", parse_type("date"), relation=5),
        LakeColumn(9, "number", parse_type("int32")),
    )

    assert names_given_up(before, now, logged) == given_up
    assert names_given_up(before, now) == given_up - {"old"}


def test_a_mirror_with_texts_under_a_wrong_name_is_loaded_again() -> None:
    def after(misnamed: set[str], state: TableState = LIVE) -> TableState:
        return next_state(state, USERS, USERS, since=7, can_load=True, misnamed=misnamed)

    assert after(set()) == LIVE
    assert after({"day"}).kind == "loading"
    assert "column day, till gave up its name" in after({"till", "day"}).reason
    assert after({"day"}, loading("first sight", 3)).since == 7


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


def test_no_format_is_taken_to_hold_constants_unless_that_is_known() -> None:
    after = with_last_column(NOT_NULL, fill=5)

    assert next_state(LIVE, USERS, after, since=7, can_load=True).kind == "loading"


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

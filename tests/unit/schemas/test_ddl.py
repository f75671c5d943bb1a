"""`bridge-ddl` contents: there and back, and whatever a database role may write instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.ddl import (
    DDL_KINDS,
    MOST_BYTES,
    MOST_EVENTS,
    CatalogState,
    DdlEvent,
    DdlKind,
    format_ddl,
    is_confirmed,
    is_contradicted,
    parse_ddl,
)
from schemas.jsonschemas import PAYLOADS
from schemas.names import TableName
from tests.unit.schemas.samples import DDL_EVENTS, USERS
from tests.unit.schemas.test_names import names

events = st.builds(
    DdlEvent,
    kind=st.sampled_from(DDL_KINDS),
    relation_id=st.integers(1, 2**32 - 1),
    name=names,
    new_name=st.none() | names,
    reason=st.text(max_size=20),
)
EVENT = DDL_EVENTS[0].to_map()


@given(st.lists(events, max_size=3).map(tuple))
def test_events_come_back_from_their_content(told: tuple[DdlEvent, ...]) -> None:
    """As text, as MessagePack carries bytes, and as JSON carries them."""
    content = format_ddl(told)

    assert parse_ddl(content) == told
    assert parse_ddl(content.encode()) == told
    assert parse_ddl(f"\\x{content.encode().hex()}") == told
    Draft202012Validator(PAYLOADS["bridge-ddl"].document("bridge-ddl")).validate(
        json.loads(content)
    )


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "7", "\\xzz", '"text"', "{}", b"\xff", None, 7, [], {}),
        *('{"version":1}', '{"version":1,"events":{}}', '{"version":2,"events":[]}'),
        '{"version":1,"events":[null,7,[],{}]}',
        "[" * 100_000,
        '{"version":' + "1" * 10_000 + "}",
    ],
)
def test_a_content_that_is_none_has_no_events(content: Any) -> None:
    """Any role may write any bytes under this prefix, and nothing may stop for them."""
    assert parse_ddl(content) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "explode"},
        {"kind": ["drop"]},
        {"relation_id": "1"},
        {"relation_id": True},
        {"relation_id": 0},
        {"relation_id": 2**32},
        {"relation_id": 1.5},
        {"schema": ""},
        {"table": None},
        {"table": "\ud800"},
    ],
)
def test_an_event_that_is_none_is_left_out(wrong: dict[str, Any]) -> None:
    """The others in the same message still count."""
    content = json.dumps({"version": 1, "events": [{**EVENT, **wrong}, EVENT]})

    assert parse_ddl(content) == (DdlEvent("drop", 16_385, USERS),)


def test_further_keys_are_for_others() -> None:
    """The event trigger adds details that consumers need not know."""
    content = json.dumps({"version": 1, "more": 1, "events": [{**EVENT, "columns": []}]})

    assert parse_ddl(content) == (DdlEvent("drop", 16_385, USERS),)


def test_a_rename_needs_both_parts_of_the_new_name() -> None:
    """Half a name names nothing."""
    half = {**EVENT, "kind": "rename", "new_table": "people"}

    assert parse_ddl(json.dumps({"version": 1, "events": [half]}))[0].new_name is None
    assert DDL_EVENTS[1].new_name == TableName("sales", "people")


OLD, NEW = TableName("public", "old"), TableName("public", "new")
GONE = None
OUTSIDE, INSIDE = CatalogState(OLD, is_published=False), CatalogState(OLD, is_published=True)
MOVED = CatalogState(NEW, is_published=True)


@pytest.mark.parametrize(
    ("kind", "confirmed_by"),
    [
        ("drop", [GONE]),
        ("unpublish", [GONE, OUTSIDE]),
        ("publish", [INSIDE]),
        ("rename", [MOVED]),
        ("rewrite", [INSIDE, MOVED]),
        ("alter", [INSIDE, MOVED]),
    ],
)
def test_an_event_that_consumers_act_on_needs_the_catalog(
    kind: DdlKind, confirmed_by: list[CatalogState | None]
) -> None:
    """A table that exists, is published and has its name is none of dropped, left and renamed."""
    event = DdlEvent(kind, 7, OLD, NEW if kind == "rename" else None)

    states = [GONE, OUTSIDE, INSIDE, MOVED]
    assert [state for state in states if is_confirmed(event, {OLD}, state)] == confirmed_by


OTHER = TableName("public", "other")


@pytest.mark.parametrize("kind", DDL_KINDS)
@pytest.mark.parametrize("state", [GONE, OUTSIDE, INSIDE, MOVED])
def test_an_event_about_another_table_than_its_relation_is_not_confirmed(
    kind: DdlKind, state: CatalogState | None
) -> None:
    """Consumers look for a table by its name too: one that is true of another must not reach it."""
    event = DdlEvent(kind, 7, OTHER, OLD if kind == "rename" else None)

    assert not is_confirmed(event, {OLD}, state)


@pytest.mark.parametrize("kind", ["drop", "unpublish", "rename"])
@pytest.mark.parametrize("state", [GONE, OUTSIDE, INSIDE, MOVED])
def test_what_consumers_were_not_told_of_cannot_leave(
    kind: DdlKind, state: CatalogState | None
) -> None:
    """An OID that nobody has is gone, whatever name somebody gives it."""
    event = DdlEvent(kind, 7, OLD, NEW if kind == "rename" else None)

    assert not is_confirmed(event, (), state)


def test_a_rename_is_to_the_name_that_the_table_has() -> None:
    """Not to one that somebody would like consumers to take for it."""
    assert not is_confirmed(DdlEvent("rename", 7, OLD, OTHER), {OLD}, MOVED)
    assert not is_confirmed(DdlEvent("rename", 7, OLD, OLD), {OLD}, INSIDE)
    assert not is_confirmed(DdlEvent("rename", 7, OLD), {OLD}, MOVED)


@pytest.mark.parametrize(("kind", "state"), [("drop", GONE), ("unpublish", OUTSIDE)])
def test_a_table_leaves_under_either_name_that_consumers_know(
    kind: DdlKind, state: CatalogState | None
) -> None:
    """A change under the new name announces it before the rename is reported."""
    assert is_confirmed(DdlEvent(kind, 7, OLD), {OLD, NEW}, state)
    assert is_confirmed(DdlEvent(kind, 7, NEW), {OLD, NEW}, state)
    assert not is_confirmed(DdlEvent(kind, 7, OTHER), {OLD, NEW}, state)


@pytest.mark.parametrize(
    ("kind", "contradicted_by"),
    [
        ("drop", [OUTSIDE, INSIDE, MOVED]),
        ("unpublish", [INSIDE, MOVED]),
        ("publish", []),
        ("rename", [OUTSIDE, INSIDE]),
        ("rewrite", []),
        ("alter", []),
    ],
)
def test_only_a_catalog_that_says_otherwise_contradicts(
    kind: DdlKind, contradicted_by: list[CatalogState | None]
) -> None:
    """It is read later: a table that was altered may be renamed, unpublished or gone by then."""
    event = DdlEvent(kind, 7, OLD, NEW if kind == "rename" else None)

    states = [GONE, OUTSIDE, INSIDE, MOVED]
    assert [one for one in states if is_contradicted(event, {OLD}, one)] == contradicted_by


def test_an_event_with_the_name_of_another_table_is_contradicted() -> None:
    assert is_contradicted(DdlEvent("alter", 7, OTHER), {OLD}, INSIDE)
    assert not is_contradicted(DdlEvent("alter", 7, OTHER), {OLD}, MOVED), "renamed twice"


def test_a_content_beyond_any_ddl_has_no_events() -> None:
    """Any role can write a gigabyte of it, and the WAL waits while it is read."""
    event = DdlEvent("drop", 7, OLD)

    assert len(parse_ddl(format_ddl([event] * MOST_EVENTS))) == MOST_EVENTS
    assert parse_ddl(format_ddl([event] * (MOST_EVENTS + 1))) == ()
    padded = format_ddl([event]) + " " * MOST_BYTES
    for content in (padded, padded.encode(), f"\\x{padded.encode().hex()}"):
        assert parse_ddl(content) == ()
        assert parse_ddl(content[:-20]) == ()
    fitting = format_ddl([event]).ljust(MOST_BYTES)
    assert parse_ddl(fitting.encode()) == parse_ddl(fitting) == (event,)
    assert parse_ddl(f"\\x{fitting[:-2].encode().hex()}") == (event,)

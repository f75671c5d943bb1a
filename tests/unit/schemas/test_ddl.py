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
    CatalogState,
    DdlEvent,
    DdlKind,
    format_ddl,
    is_confirmed,
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
        ("rewrite", [GONE, OUTSIDE, INSIDE, MOVED]),
        ("alter", [GONE, OUTSIDE, INSIDE, MOVED]),
    ],
)
def test_an_event_that_consumers_act_on_needs_the_catalog(
    kind: DdlKind, confirmed_by: list[CatalogState | None]
) -> None:
    """A table that exists, is published and has its name is none of dropped, left and renamed."""
    event = DdlEvent(kind, 7, OLD, NEW if kind == "rename" else None)

    states = [GONE, OUTSIDE, INSIDE, MOVED]
    assert [state for state in states if is_confirmed(event, state)] == confirmed_by

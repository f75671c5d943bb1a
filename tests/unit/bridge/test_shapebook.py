"""When the answer that the catalog gave at a session's start is good enough for a change."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from bridge.postgres.catalog import PublishedTable
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import ColumnFacts, TableFacts, shape_of
from bridge.shapebook import Catalog
from tests.support import wal

INT4, TEXT = 23, 25
OLDEST_RUNNING = 500
RELATION = cast(
    "Relation",
    decode_message(wal.relation(9, "users", [("id", INT4, True), ("name", TEXT, False)])),
)
FACTS = TableFacts(
    columns={
        "id": ColumnFacts(1, False, None, INT4, -1),
        "name": ColumnFacts(2, True, None, TEXT, -1),
    },
    key=(1,),
    type_names={(INT4, -1): "integer", (TEXT, -1): "text"},
)


def known(facts: TableFacts = FACTS, oldest_running: int = OLDEST_RUNNING) -> Catalog:
    return Catalog({9: facts}, oldest_running)


def test_it_serves_a_transaction_that_had_ended() -> None:
    assert known().find(RELATION, OLDEST_RUNNING - 1) is FACTS


@pytest.mark.parametrize("xid", [OLDEST_RUNNING, OLDEST_RUNNING + 1, OLDEST_RUNNING + 1_000_000])
def test_it_does_not_serve_one_that_may_have_run_on(xid: int) -> None:
    """The table may have been altered behind the question and before this change."""
    assert known().find(RELATION, xid) is None


def test_ids_wrap_around() -> None:
    assert known(oldest_running=3).find(RELATION, (1 << 32) - 5) is FACTS
    assert known(oldest_running=(1 << 32) - 5).find(RELATION, 3) is None


def test_a_table_that_was_not_published_then_is_asked_for() -> None:
    assert Catalog({}, OLDEST_RUNNING).find(RELATION, 1) is None


def test_a_table_that_was_altered_since_the_change_is_asked_for() -> None:
    """What the registry knows of older shapes is then needed too."""
    later = dataclasses.replace(FACTS.columns["name"], written_by=450)
    facts = dataclasses.replace(FACTS, columns={**FACTS.columns, "name": later})
    assert known(facts).find(RELATION, 449) is None
    assert known(facts).find(RELATION, 450) is facts


def test_a_column_whose_type_was_not_asked_about_is_asked_for() -> None:
    facts = dataclasses.replace(FACTS, type_names={(INT4, -1): "integer"})
    assert known(facts).find(RELATION, 1) is None


def test_a_shape_made_at_the_start_is_the_one_that_would_be_made_now() -> None:
    """It is kept for tables as the catalog described them, and for no other description."""
    unflagged = [dataclasses.replace(column, part_of_key=False) for column in RELATION.columns]
    read = dataclasses.replace(RELATION, columns=tuple(unflagged))
    made = shape_of(read, FACTS)
    catalog = Catalog.of([PublishedTable(read, FACTS)], [made], OLDEST_RUNNING)
    narrower = dataclasses.replace(RELATION, columns=RELATION.columns[:1])

    assert catalog.shape(RELATION, 1) is made
    assert made == shape_of(RELATION, FACTS, 1)
    assert catalog.shape(narrower, 1) == shape_of(narrower, FACTS, 1) != made
    assert catalog.shape(RELATION, OLDEST_RUNNING) is None

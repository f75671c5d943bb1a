"""When the answer that the catalog gave at a session's start is good enough for a change."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge import shapebook
from bridge.postgres.catalog import PublishedTable
from bridge.postgres.storage import LOCK_TIMEOUT, NO_WAIT, TableReading
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import ColumnFacts, TableFacts, shape_of
from bridge.shapebook import WAIT_AGAIN_SECONDS, Catalog, ShapeBook
from bridge.status import Status
from bridge.storage import File, TableStorage
from bridge.tablememory import TableMemory
from schemas.ddl import DdlEvent, DdlKind
from schemas.events import Place
from schemas.names import TableName
from schemas.shapes import TableShape
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


USERS = TableName("public", "users")
PLACE = Place(lsn=5, commit_lsn=9, commit_ts="2026-01-01T00:00:00Z", xid=700, seq=1, last=False)


GONE = TableReading(None, TableFacts(), None, None)
STORAGE = TableStorage(file=File(node=1), columns={}, membership=(5,))


def locked(node: int = 1) -> TableReading:
    """A table that somebody else has, with the file that its last committed state is in."""
    storage = dataclasses.replace(STORAGE, file=dataclasses.replace(STORAGE.file, node=node))
    return TableReading(None, TableFacts(), USERS, storage, is_locked=True)


class Readings:
    """Stands for a catalog, in which the table is gone, and counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = GONE
        self.waits = list[str]()
        self.looks = self.questions = 0
        monkeypatch.setattr(shapebook, "read_table", self._look)
        monkeypatch.setattr(shapebook, "relation_states", self._answer)
        monkeypatch.setattr(shapebook, "until_visible", self._wait)

    async def _look(self, *_: object, lock_timeout: str) -> TableReading:
        self.looks += 1
        self.waits.append(lock_timeout)
        return self.table

    async def _answer(self, *_: object) -> dict[int, Any]:
        self.questions += 1
        return {}

    async def _wait(self, *_: object) -> None:
        pass


def a_book(memory: TableMemory) -> ShapeBook:
    async def register(*_: object) -> int:
        return 3

    async def shape_before(*_: object) -> TableShape:
        return shape_of(RELATION, FACTS)

    nothing = cast("Any", None)
    registry = cast("Any", SimpleNamespace(register=register, shape_before=shape_before))
    config = cast("Any", SimpleNamespace(postgres=None, publication="pub", nats=None))
    return ShapeBook(
        nothing,
        registry,
        known=Catalog(),
        memory=memory,
        config=config,
        status=Status("s", "pub"),
    )


async def test_the_messages_of_a_transaction_read_the_catalog_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any role can write a million of them in one statement, and the slot waits for each."""
    readings, memory = Readings(monkeypatch), TableMemory()
    memory.glimpse(9, USERS)
    book = a_book(memory)

    for at in range(1_000):
        await book.altered(9, PLACE, {"rewrite"} if at % 2 else {"alter"})
        await book.confirmed([DdlEvent("alter", 9, USERS)], PLACE)

    assert (readings.looks, readings.questions) == (2, 1)
    await book.altered(9, dataclasses.replace(PLACE, xid=701), {"alter"})
    assert readings.looks == 3


async def marks_of(book: ShapeBook, xids: range, kind: DdlKind = "rewrite") -> list[bool]:
    """Let each transaction claim that the table was altered, and say which claims are marked."""
    shapes = [await book.altered(9, dataclasses.replace(PLACE, xid=xid), {kind}) for xid in xids]
    return [shape is not None and shape.rewritten for shape in shapes]


async def test_claims_about_a_locked_table_are_held_against_what_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any role can write one in every transaction; a mark for each would be a snapshot for each."""
    readings, memory = Readings(monkeypatch), TableMemory()
    memory.recall(shape_of(RELATION, FACTS), STORAGE)
    book = a_book(memory)
    readings.table = locked()
    assert not any(await marks_of(book, range(700, 720)))

    readings.table = locked(node=2)
    assert await marks_of(book, range(720, 740)) == [True, *[False] * 19]
    readings.table = locked(node=3)
    assert await marks_of(book, range(740, 742)) == [True, False]


async def test_a_table_that_is_gone_is_marked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the catalog watch has reported the drop, anybody can claim that it was altered."""
    Readings(monkeypatch)
    memory = TableMemory()
    memory.recall(shape_of(RELATION, FACTS), STORAGE)
    assert await marks_of(a_book(memory), range(700, 703)) == [True, False, False]


async def test_a_lock_is_not_waited_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All changes wait meanwhile."""
    now = 100.0
    monkeypatch.setattr("bridge.shapebook.time.monotonic", lambda: now)
    readings, memory = Readings(monkeypatch), TableMemory()
    memory.recall(shape_of(RELATION, FACTS), STORAGE)
    book = a_book(memory)
    readings.table = locked()
    await marks_of(book, range(700, 703))
    now += WAIT_AGAIN_SECONDS
    await marks_of(book, range(703, 705))
    readings.table = GONE
    await marks_of(book, range(705, 707))

    waits = [*[LOCK_TIMEOUT, NO_WAIT, NO_WAIT], *[LOCK_TIMEOUT, NO_WAIT], *[NO_WAIT, LOCK_TIMEOUT]]
    assert readings.waits == waits


async def test_a_table_that_was_renamed_since_the_last_poll_is_dropped_under_its_new_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A change announced the new name already, so the drop is passed on where it happened."""
    Readings(monkeypatch)
    memory = TableMemory()
    memory.glimpse(9, TableName("public", "before"))
    book = a_book(memory)
    late, drop = DdlEvent("alter", 9, USERS), DdlEvent("drop", 9, USERS)

    await book.register(shape_of(RELATION, FACTS), PLACE.lsn)

    assert await book.confirmed([late, drop], PLACE) == [drop]
    assert not caplog.records


async def test_a_table_that_is_gone_is_marked_under_the_name_of_its_last_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the older one, consumers would take the mark for another table's, or rename it back."""
    Readings(monkeypatch)
    memory, asked = TableMemory(), list[TableName]()
    memory.glimpse(9, TableName("public", "before"))
    book = a_book(memory)

    async def shape_before(_: int, name: TableName, __: int) -> TableShape:
        asked.append(name)
        return shape_of(RELATION, FACTS)

    monkeypatch.setattr(cast("Any", book)._registry, "shape_before", shape_before)
    await book.register(shape_of(RELATION, FACTS), PLACE.lsn)

    assert await book.altered(9, PLACE, ["alter"])
    assert asked == [USERS]

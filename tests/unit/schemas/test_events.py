"""Events: maps and back, ids and subjects as the contract writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Change, Event, LogicalMessage, Place, ShapeChange, iso_timestamp
from schemas.names import TableName
from schemas.positions import Position
from schemas.shapes import TableShape
from schemas.subjects import OPERATIONS
from tests.unit.schemas.samples import (
    CHANGES,
    COPIED_ROW,
    DDL_MESSAGE,
    INSERT,
    LONE_MESSAGE,
    MESSAGE,
    SHAPE,
    SHAPE_CHANGE,
    TRUNCATE,
    UPDATE,
    UPDATE_UNDER_FULL,
)
from tests.unit.schemas.test_names import names
from tests.unit.schemas.test_subjects import table_names_like_ids

rows = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(), max_size=3)
columns = st.lists(st.text(max_size=5), max_size=2).map(tuple)
lsns = st.integers(0, 2**64 - 1)
places = st.builds(
    Place,
    lsn=lsns,
    commit_lsn=lsns,
    commit_ts=st.just("2025-12-08T13:45:21.719719Z"),
    xid=st.integers(0, 2**32 - 1),
    seq=st.integers(0, 2**31),
    last=st.booleans(),
)
changes = st.builds(
    Change,
    table=names | table_names_like_ids,
    operation=st.sampled_from(OPERATIONS),
    relation_id=st.integers(1, 2**32 - 1),
    place=places,
    repeat=st.integers(0, 1000),
    schema_revision=st.integers(1, 2**63),
    data=rows,
    key=st.none() | rows,
    old=st.none() | rows,
    unchanged=columns,
    text=columns,
)


@given(changes)
def test_a_change_comes_back_from_its_map(change: Change) -> None:
    """Tables called `t-insert-1` included: the id tells which of the repeats it is."""
    assert Change.from_map(change.to_map()) == change


@given(
    st.builds(
        LogicalMessage,
        prefix=st.text(),
        content=st.text() | st.binary(),
        transactional=st.booleans(),
        place=places,
        source=st.text(),
    )
)
def test_a_logical_message_comes_back_from_its_map(message: LogicalMessage) -> None:
    """Any prefix and any content are legal in PostgreSQL."""
    assert LogicalMessage.from_map(message.to_map()) == message


@given(names, places)
def test_an_announced_shape_comes_back_from_its_map(table: TableName, place: Place) -> None:
    """What the lake reads from the stream is the shape the bridge saw."""
    shape = replace(SHAPE, name=table)
    announced = ShapeChange(shape=shape, place=place, schema_revision=1, source="7/1").to_map()

    again = ShapeChange.from_map(announced)

    assert again.to_map() == announced
    assert again.shape == shape
    assert TableShape.from_map(announced) == shape


def test_an_announced_shape_is_never_the_end_of_its_transaction() -> None:
    """It stands before a change at the same place; a reader that stopped here would miss that."""
    end = replace(SHAPE_CHANGE, place=replace(SHAPE_CHANGE.place, last=True))

    assert end.to_map()["last"] is False


def test_a_shape_between_transactions_ends_its_place_and_has_an_id_of_its_own() -> None:
    """Two announcements of one table at one commit LSN must not look like a resend."""
    place = replace(SHAPE_CHANGE.place, seq=2)
    alone = replace(SHAPE_CHANGE, place=place, alone=True)

    assert alone.to_map()["last"] is True
    assert alone.msg_id == "191bfd0-users-schema-2"
    assert ShapeChange.from_map(alone.to_map()).alone is True


def test_messages_between_transactions_differ_by_their_ordinal() -> None:
    """The bridge may put several of them at one commit LSN."""
    second = replace(LONE_MESSAGE, place=replace(LONE_MESSAGE.place, seq=1))

    assert LONE_MESSAGE.msg_id == "191bfd0-_message-c11f91a5-audit"
    assert second.msg_id == "191bfd0-_message-c11f91a5-audit-1"


@pytest.mark.parametrize("message", [MESSAGE, LONE_MESSAGE, DDL_MESSAGE])
def test_the_same_place_in_the_wal_of_two_slots_gives_two_ids(message: LogicalMessage) -> None:
    """Two bridges that share a stream say different things there; neither is a resend."""
    beside = replace(message, source="7451029384756102938/16384/beside")

    assert beside.msg_id != message.msg_id
    assert beside.msg_id == replace(beside, content="the same, read once more").msg_id


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_absent_parts_are_absent_keys(change: Change) -> None:
    """`key: null` and no `key` must not be two ways to say one thing."""
    fields = change.to_map()

    assert ("key" in fields) == (change.key is not None)
    assert ("old" in fields) == (change.old is not None)
    assert ("unchanged" in fields) == bool(change.unchanged)
    assert ("text" in fields) == bool(change.text)


def test_an_unchanged_column_is_named_and_not_in_data() -> None:
    """It is not null; a reader that finds no value looks here."""
    fields = UPDATE.to_map()

    assert fields["unchanged"] == ["tags"]
    assert "tags" not in fields["data"]


def test_ids_and_subjects_are_the_contracts() -> None:
    """A resend is recognised by these, across versions of the bridge too."""
    assert (INSERT.subject, INSERT.msg_id) == ("cdc.users.insert", "191bfd0-users-insert")
    assert COPIED_ROW.msg_id == "191bfd0-users-insert-1"
    assert UPDATE_UNDER_FULL.subject == "cdc.users.update"
    assert TRUNCATE.msg_id == "191c0a0-users-truncate"
    assert SHAPE_CHANGE.subject == "cdc.users.schema"
    assert SHAPE_CHANGE.msg_id == "191bfd0-users-schema"
    assert MESSAGE.subject == "cdc._message.audit"
    assert MESSAGE.msg_id == "191bfd0-_message-c11f91a5-audit"
    assert LONE_MESSAGE.place.commit_lsn == LONE_MESSAGE.place.lsn


def test_a_place_orders_by_commit_and_ordinal() -> None:
    """The LSN of a change is not monotonic across transactions."""
    assert UPDATE.place.position == Position(UPDATE.place.commit_lsn, UPDATE.place.seq)


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "2000-01-01T00:00:00.000000Z"),
        (818_516_721_719_719, "2025-12-08T13:45:21.719719Z"),
        (-1, "1999-12-31T23:59:59.999999Z"),
        (818_516_721_000_000, "2025-12-08T13:45:21.000000Z"),
    ],
)
def test_protocol_time_is_written_in_utc_with_microseconds(microseconds: int, text: str) -> None:
    """Always six digits, so that texts sort as times do."""
    assert iso_timestamp(microseconds) == text


@pytest.mark.parametrize(
    ("event", "operation"),
    [
        *((change, change.operation) for change in CHANGES.values()),
        (SHAPE_CHANGE, "SCHEMA"),
        (MESSAGE, "MESSAGE"),
        (LONE_MESSAGE, "MESSAGE"),
        (DDL_MESSAGE, "MESSAGE"),
    ],
)
def test_every_message_says_what_it_is_and_ends_with_last(event: Event, operation: str) -> None:
    """A reader that has the body alone needs no subject to know what it holds."""
    fields = event.to_map()

    assert fields["operation"] == operation
    assert list(fields)[-1] == "last"
    assert ("source" in fields) != (operation in OPERATIONS)

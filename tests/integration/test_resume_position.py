"""Where a session goes on: the furthest of this slot's messages, no more and no less."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bridge.config import StreamOverrides
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.oversize import OversizeStore
from bridge.jetstream.provision import oversize_spec, provision
from bridge.jetstream.registry import Registry
from examples.embedded import EmbeddedNats
from schemas.codecs import MSGPACK
from schemas.events import Change, Event, LogicalMessage, Place, ShapeChange
from schemas.names import TableName
from schemas.positions import ORIGIN, Position
from schemas.shapes import TableShape
from tests.support.stream import administer

OURS, THEIRS = "1/2/ours", "1/2/theirs"
USERS, ORDERS = TableName("public", "users"), TableName("public", "orders")


class Stream:
    """A stream that is filled by hand, and a registry that looks at it."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    async def store(self, *events: Event) -> None:
        for event in events:
            body = MSGPACK.encode(event.to_map())
            headers = {"Nats-Msg-Id": event.msg_id, "Content-Type": MSGPACK.content_type}
            await self.registry._js.publish(event.subject, body, headers=headers)

    async def position(self) -> Position:
        return (await self.registry.stored_end([USERS])).position


@pytest.fixture
async def stream(nats: EmbeddedNats) -> AsyncIterator[Stream]:
    async with administer(nats.url) as js:
        await provision(js, StreamOverrides())
        oversize = OversizeStore(js._nc, js, oversize_spec(StreamOverrides()))
        dictionaries = DictionaryStore(js, None)  # type: ignore[arg-type]
        yield Stream(Registry(js, MSGPACK, oversize, dictionaries, OURS))


def place(commit_lsn: int, seq: int = 0, *, last: bool = True) -> Place:
    moment = "2026-01-01T00:00:00.000000Z"
    return Place(
        lsn=commit_lsn - 1, commit_lsn=commit_lsn, commit_ts=moment, xid=7, seq=seq, last=last
    )


def shape(table: TableName) -> TableShape:
    return TableShape(name=table, relation_id=9, replica_identity="default", columns=())


def insert(table: TableName, at: Place) -> Change:
    return Change(
        table=table, operation="INSERT", relation_id=9, place=at, schema_revision=1, data={"id": 1}
    )


def announced(at: Place, *, alone: bool = False) -> ShapeChange:
    return ShapeChange(shape=shape(USERS), place=at, schema_revision=1, source=OURS, alone=alone)


def message(at: Place, source: str) -> LogicalMessage:
    return LogicalMessage(prefix="p", content=b"", transactional=True, place=at, source=source)


async def test_an_empty_stream_holds_nothing(stream: Stream) -> None:
    assert await stream.position() == ORIGIN


async def test_a_schema_message_does_not_stand_for_the_change_after_it(stream: Stream) -> None:
    """They share a place; a bridge that died between the two would lose the change."""
    await stream.store(insert(USERS, place(100)), announced(place(200, 3, last=False)))
    assert await stream.position() == Position(200, 2)

    await stream.store(insert(USERS, place(200, 3)))
    assert await stream.position() == Position(200, 3)


async def test_a_schema_message_between_transactions_stands_for_itself(stream: Stream) -> None:
    await stream.store(announced(place(200, 0), alone=True))
    assert await stream.position() == Position(200, 0)


@pytest.mark.parametrize(
    "is_gone", [False, True], ids=["left the publication", "renamed or dropped"]
)
async def test_a_table_that_is_published_no_more_still_counts(
    stream: Stream, is_gone: bool
) -> None:
    """The WAL still holds its changes: they would be stored twice."""
    await stream.registry.register_current(shape(ORDERS), 50, None)
    await stream.store(insert(USERS, place(100)), insert(ORDERS, place(300, 4)))
    if is_gone:
        await stream.registry.forget(ORDERS)

    assert await stream.position() == Position(300, 4)


async def test_a_table_of_another_slot_does_not_count(stream: Stream) -> None:
    """Also after that slot forgot it: what is further there is not stored here."""
    registry = stream.registry
    theirs = Registry(registry._js, MSGPACK, registry._oversize, registry._dictionaries, THEIRS)
    await stream.store(insert(USERS, place(100)), insert(ORDERS, place(900)))
    await theirs.register_current(shape(ORDERS), 50, None)
    assert await stream.position() == Position(100, 0)

    await theirs.forget(ORDERS)
    assert await stream.position() == Position(100, 0)


async def test_a_logical_message_counts_only_if_it_is_ours(stream: Stream) -> None:
    """Another source's message would move ours, and the changes up to it would be lost."""
    await stream.store(insert(USERS, place(100)), message(place(900), THEIRS))
    assert await stream.position() == Position(100, 0)

    await stream.store(message(place(950), OURS))
    assert await stream.position() == Position(950, 0)

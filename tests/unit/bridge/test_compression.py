"""When a dictionary is trained, from what, and when it may be used."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from bridge.compression import SAMPLE_BYTES, Press, Samples, StoredDictionary
from bridge.errors import SinkRefused
from bridge.outbox import Outgoing
from bridge.pressing import ChangePresses
from schemas.compression import Dictionary, Expander
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.types import TEXT

SUBJECT = "cdc.t.insert"
chance = random.Random(1)


def body(number: int) -> bytes:
    return b'{"id":%d,"city":"%s","note":"%s"}' % (
        number,
        chance.choice((b"Oslo", b"Rome", b"San Francisco")),
        b" ".join(chance.choice((b"fast", b"gift", b"ring twice")) for _ in range(40)),
    )


BODIES = [body(number) for number in range(3_000)]


def shape(*columns: str) -> TableShape:
    return TableShape(
        name=TableName("public", "t"),
        relation_id=1,
        replica_identity="default",
        columns=tuple(
            Column(
                name=name,
                position=place,
                data_type="text",
                type_oid=25,
                type_modifier=-1,
                type=TEXT,
                is_nullable=True,
                column_default=None,
                key=None,
            )
            for place, name in enumerate(columns, 1)
        ),
    )


def header(headers: str) -> dict[str, str]:
    return dict(line.split(": ") for line in headers.splitlines())


class MemoryDictionaries:
    """Keeps dictionaries as KV does; `refuses` is a bucket that takes none."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.stored: list[StoredDictionary] = []
        self.refuses = refuses

    async def newest(self, table: TableName) -> StoredDictionary | None:
        del table
        return self.stored[-1] if self.stored else None

    async def put(
        self, table: TableName, dictionary: Dictionary, *, fingerprint: str, content_type: str
    ) -> None:
        del table
        if self.refuses:
            raise SinkRefused("no room")
        now = datetime.now(UTC)
        self.stored.append(StoredDictionary(dictionary, fingerprint, content_type, now))

    def expand(self, message: Outgoing) -> bytes:
        """Read a message as somebody who knows no more than the bucket."""
        headers = header(message.headers)
        if not headers:
            return message.body
        expander = Expander()
        if key := expander.lacks(message.subject, headers):
            expander.learn(
                key, {f"t.{s.dictionary.id}": s.dictionary.content for s in self.stored}[key]
            )
        return expander.expand(message.body, message.subject, headers)


async def send(presses: ChangePresses, bodies: list[bytes]) -> list[Outgoing]:
    messages = [Outgoing(SUBJECT, "1-t-insert", content) for content in bodies]
    for start in range(0, len(messages), 100):
        await presses.press(messages[start : start + 100])
    return messages


def presses(store: MemoryDictionaries, hold: timedelta = timedelta(0)) -> ChangePresses:
    return ChangePresses(store, "application/json", hold)


def test_few_messages_train_nothing() -> None:
    assert Samples(BODIES[:10]).train() is None
    assert Samples().train() is None


def test_a_dictionary_makes_a_small_message_smaller() -> None:
    dictionary = Samples(BODIES[:1_000]).train()
    assert dictionary is not None

    plain, _ = Press().press(BODIES[-1])
    pressed, headers = Press(dictionary).press(BODIES[-1])

    assert len(pressed) < len(plain) / 2
    assert header(headers) == {"Content-Encoding": "zstd", "Zstd-Dictionary": dictionary.id}


def test_what_compression_makes_larger_stays_as_it_is() -> None:
    """Headers count: a consumer should never pay for nothing."""
    noise = random.Random(2).randbytes(500)
    assert Press().press(noise) == (noise, "")
    assert Press().press(b"{}") == (b"{}", "")


def test_a_large_message_is_no_more_than_a_sample() -> None:
    samples = Samples([bytes(10_000_000)])
    assert samples.size < 10_000


@pytest.mark.parametrize(
    ("fingerprint", "content_type", "fits"),
    [
        ("f", "application/json", True),
        ("g", "application/json", False),
        ("f", "application/msgpack", False),
    ],
)
def test_a_dictionary_fits_the_shape_and_codec_it_was_trained_for(
    fingerprint: str, content_type: str, fits: bool
) -> None:
    stored = StoredDictionary(Dictionary(b""), "f", "application/json", datetime.now(UTC))
    assert stored.fits(fingerprint, content_type) is fits


async def test_changes_train_their_own_dictionary_and_it_is_stored_before_it_is_named() -> None:
    store = MemoryDictionaries()
    made = presses(store)
    await made.learn(shape("id"))

    messages = await send(made, BODIES)

    assert "Zstd-Dictionary" not in messages[0].headers
    assert header(messages[-1].headers)["Zstd-Dictionary"] == store.stored[0].dictionary.id
    assert [store.expand(message) for message in messages] == BODIES
    assert len(store.stored) == 1


async def test_the_next_session_goes_on_with_the_same_dictionary() -> None:
    store = MemoryDictionaries()
    first = presses(store)
    await first.learn(shape("id"))
    await send(first, BODIES)

    again = presses(store)
    await again.learn(shape("id"))
    messages = await send(again, BODIES)

    assert {header(m.headers).get("Zstd-Dictionary") for m in messages} == {
        store.stored[0].dictionary.id
    }
    assert len(store.stored) == 1


async def test_a_new_shape_trains_a_new_one_and_the_old_one_serves_until_then() -> None:
    store = MemoryDictionaries()
    made = presses(store)
    await made.learn(shape("id"))
    await send(made, BODIES)
    await made.learn(shape("id", "more"))

    messages = await send(made, [content.replace(b"id", b"di") for content in BODIES])

    old, new = (stored.dictionary.id for stored in store.stored)
    assert header(messages[0].headers)["Zstd-Dictionary"] == old
    assert header(messages[-1].headers)["Zstd-Dictionary"] == new


async def test_a_relation_that_is_only_repeated_keeps_what_was_collected() -> None:
    """PostgreSQL repeats relations after every invalidation; that must not delay training."""
    store = MemoryDictionaries()
    made = presses(store)
    for start in range(0, len(BODIES), 100):
        await made.learn(shape("id"))
        await send(made, BODIES[start : start + 100])
    assert len(store.stored) == 1


async def test_no_change_depends_on_a_dictionary_that_a_power_loss_could_take() -> None:
    """Under durability synced a change is safe only after the hold, and so is what it needs."""
    store = MemoryDictionaries()
    made = presses(store, timedelta(hours=1))
    await made.learn(shape("id"))

    messages = await send(made, BODIES)

    assert len(store.stored) == 1
    assert not [m for m in messages if "Zstd-Dictionary" in m.headers]
    now = store.stored[0].stored_at
    assert store.stored[0].wait(now, timedelta(hours=1)) == timedelta(hours=1)
    assert store.stored[0].wait(now + timedelta(hours=2), timedelta(hours=1)) == timedelta(0)


async def test_a_bucket_that_takes_none_costs_only_compression() -> None:
    store = MemoryDictionaries(refuses=True)
    made = presses(store)
    await made.learn(shape("id"))

    messages = await send(made, BODIES)

    assert not [m for m in messages if "Zstd-Dictionary" in m.headers]
    assert [store.expand(message) for message in messages] == BODIES


async def test_shapes_and_logical_messages_stay_as_they_are() -> None:
    made = presses(MemoryDictionaries())
    await made.learn(shape("id"))
    message = Outgoing("cdc.t.schema", "1-t-schema", b"x" * 10_000)

    await made.press([message])

    assert (message.body, message.headers) == (b"x" * 10_000, "")


async def test_many_tables_do_not_collect_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pressing.COLLECTED_AT_MOST_BYTES", SAMPLE_BYTES // 2)
    store = MemoryDictionaries()
    made = presses(store)
    await made.learn(shape("id"))

    await send(made, BODIES[: SAMPLE_BYTES // 2 // len(BODIES[0]) + 200])

    assert len(store.stored) == 1

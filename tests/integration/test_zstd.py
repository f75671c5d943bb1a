"""`--zstd`: whoever has never seen a table decodes everything, from the headers and KV alone."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import nats as nats_py
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from examples.follow_sqlite import Follower
from lake_consumer.jetstream.payload import body_of
from schemas.codecs import codec_for
from tests.conftest import Connection
from tests.support.rig import PUBLICATION, Rig
from tests.support.snapshots import take
from tests.support.stream import StoredMessage

ROWS = 2_000


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """Rows as people have them: words that repeat, numbers that do not."""
    connection.execute("CREATE SCHEMA sales")
    connection.execute("CREATE TABLE sales.orders (id int PRIMARY KEY, city text, note text)")
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE sales.orders")
    return connection


def fill(connection: Connection, first: int, count: int = ROWS) -> None:
    chance = random.Random(first)
    words = ("gift", "ring twice", "before noon", "left at the door", "paid", "again")
    with connection.cursor().copy("COPY sales.orders (id, city, note) FROM STDIN") as copy:
        for number in range(first, first + count):
            note = " ".join(chance.choice(words) for _ in range(20))
            copy.write_row((number, chance.choice(("Oslo", "Rome", "Paris")), note))


@pytest.fixture
def rig(orders: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path) -> Rig:
    return Rig(orders, postgres, nats, tmp_path, "--zstd=all")


def dictionaries(messages: Sequence[StoredMessage]) -> list[str | None]:
    return [message.headers.get("Zstd-Dictionary") for message in messages]


def test_chunks_are_compressed_and_changes_are_not_unless_told(
    orders: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> None:
    fill(orders, 0)
    with Rig(orders, postgres, nats, tmp_path, "--zstd") as rig:
        rig.start()
        rig.bridge.wait_serving()
        snapshot = take(nats.url, "sales/orders")
        part = take(nats.url, "sales/orders", {"columns": ["id"], "to": [5]})
        fill(orders, ROWS, 3)
        changes = [message for message in rig.stream() if message.is_change]

    assert sorted(row["id"] for row in snapshot.rows) == list(range(ROWS))
    assert [row["id"] for row in part.rows] == [0, 1, 2, 3, 4]
    assert {chunk.headers["Content-Encoding"] for chunk in snapshot.chunks} == {"zstd"}
    assert None not in dictionaries(snapshot.chunks)
    assert [change.headers.get("Content-Encoding") for change in changes] == [None] * 3


def test_a_table_too_small_to_train_from_goes_without_a_dictionary(
    rig: Rig, orders: Connection, nats: EmbeddedNats
) -> None:
    fill(orders, 0, 20)
    with rig:
        rig.start()
        rig.bridge.wait_serving()
        snapshot = take(nats.url, "sales/orders")

    (chunk,) = snapshot.chunks
    assert chunk.headers["Content-Encoding"] == "zstd"
    assert dictionaries([chunk]) == [None]
    assert len(snapshot.rows) == 20


def test_one_dictionary_serves_chunks_and_changes_through_kills_until_the_shape_changes(
    rig: Rig, orders: Connection, nats: EmbeddedNats
) -> None:
    """A restart asks the stream how far it is, whose end is compressed, and goes on behind it."""
    with rig:
        rig.start()
        fill(orders, 0)
        rig.stream()
        fill(orders, ROWS, 50)
        first = rig.stream()
        rig.kill()
        rig.start()
        rig.bridge.wait_serving()
        fill(orders, ROWS + 50, 50)
        snapshot = take(nats.url, "sales/orders")
        second = rig.stream()
        rig.execute("ALTER TABLE sales.orders ADD more text DEFAULT 'more'")
        fill(orders, 2 * ROWS)
        rig.stream()
        fill(orders, 3 * ROWS, 50)
        third = rig.stream()

    changes = [message for message in third if message.is_change]
    assert [change.fields["data"]["id"] for change in changes] == [
        *range(ROWS + 100), *range(2 * ROWS, 3 * ROWS + 50),
    ]  # fmt: skip
    (named,) = set(dictionaries(first[-50:]))
    assert named is not None, "those before train, these are compressed by it"
    assert set(dictionaries(first)) == {None, named}
    assert set(dictionaries(second[-50:])) == {named}, "found again after the kill"
    assert set(dictionaries(snapshot.chunks)) == {named}
    (other,) = set(dictionaries(third[-50:]))
    assert other not in (None, named), "another shape has another dictionary"


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["msgpack", "json"])
def test_a_consumer_that_never_saw_the_table_decodes_everything(
    orders: Connection,
    postgres: EmbeddedPostgres,
    nats: EmbeddedNats,
    tmp_path: Path,
    flags: tuple[str, ...],
) -> None:
    """The SQLite example and the lake's reader, each begun when everything is over."""
    fill(orders, 0)
    with Rig(orders, postgres, nats, tmp_path, "--zstd=all", *flags) as rig:
        rig.start()
        rig.bridge.wait_serving()
        fill(orders, ROWS)
        take(nats.url, "sales/orders")
        fill(orders, 2 * ROWS)
        stored = rig.stream()
        asyncio.run(follow(nats.url, tmp_path / "copy.db", 3 * ROWS))

    assert "Zstd-Dictionary" in stored[-1].headers
    read = asyncio.run(read_as_the_lake(nats.url))
    assert read[: len(stored)] == [message.fields for message in stored]
    copy = sqlite3.connect(tmp_path / "copy.db")
    held = copy.execute('SELECT id, city, note FROM "sales/orders" ORDER BY id').fetchall()
    copy.close()
    assert held == orders.execute("SELECT id, city, note FROM sales.orders ORDER BY id").fetchall()


async def follow(url: str, file: Path, rows: int) -> None:
    async with await nats_py.connect(url) as client:
        follower = Follower(client, str(file), ["sales/orders"])
        await follower.load()
        count = 'SELECT count(*) FROM "sales/orders"'
        await follower.follow(lambda: follower.db.execute(count).fetchone()[0] == rows)
        follower.db.close()


async def read_as_the_lake(url: str) -> list[object]:
    async with await nats_py.connect(url) as client:
        js = client.jetstream()
        total = (await js.stream_info("CDC")).state.messages
        messages = await js.subscribe("cdc.>", ordered_consumer=True)
        found: list[object] = []
        for _ in range(total):
            message = await messages.next_msg(timeout=60)
            body = await body_of(client, message.subject, message.headers, message.data)
            found.append(codec_for(message.headers).decode(body))
        return found

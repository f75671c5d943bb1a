"""The second line of fencing: what does not rise is not applied, in any path."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from examples.follow_sqlite import EVERYTHING, Follower
from lake_consumer import app
from lake_consumer.errors import OutOfOrder
from lake_consumer.iceberg.reading import open_catalog
from lake_consumer.tablestates import read_gaps
from schemas.events import LogicalMessage
from schemas.streams import CDC_STREAM
from schemas.subjects import session_prefix
from tests.support.lake import (
    HandMadeStream,
    LakeRig,
    Sendable,
    announce,
    change,
    logical_message,
    make_shape,
)

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

USERS = make_shape("users", {"id": "int64", "name": "text"})
ORDERS = make_shape("orders", {"id": "int64", "name": "text"})


def store_again(stream: HandMadeStream, *sequences: int) -> None:
    """Store messages again after newer ones, as a bridge did that was frozen for minutes."""

    async def copy() -> None:
        client = await stream.connect()
        js = client.jetstream()
        for sequence in sequences:
            found = await js.get_msg(CDC_STREAM.name, seq=sequence)
            headers = {"Content-Type": (found.headers or {})["Content-Type"]}
            await js.publish(str(found.subject), found.data or b"", headers=headers)
        await client.close()

    asyncio.run(copy())


def begin(stream: HandMadeStream) -> None:
    """Sequences 1 to 4: two shapes, and user 1 by his first name and by his last."""
    stream.commit(announce(USERS, 1), change("users", "INSERT", {"id": 1, "name": "old"}))
    stream.commit(change("users", "UPDATE", {"id": 1, "name": "older"}))
    stream.commit(change("users", "UPDATE", {"id": 1, "name": "new"}))
    stream.send()


@pytest.mark.parametrize(("max_messages", "ahead"), [(10_000, 20_000), (1, 1), (1, 20_000)])
def test_changes_that_are_stored_again_do_not_take_the_mirror_back_in_time(
    stream: HandMadeStream,
    rig: LakeRig,
    monkeypatch: pytest.MonkeyPatch,
    max_messages: int,
    ahead: int,
) -> None:
    """In one batch, between batches, read ahead or not: the lake stops before it, and says so."""
    monkeypatch.setattr(app, "AHEAD_MESSAGES", ahead)
    begin(stream)
    store_again(stream, 3)

    with pytest.raises(OutOfOrder) as stopped:
        rig.drain(max_messages=max_messages)

    assert "stream sequence 5 (cdc.users)" in str(stopped.value)
    assert "position 0/406 seq 0" in str(stopped.value)
    assert "had reached 0/410 seq 0" in str(stopped.value)
    if max_messages < 3:
        assert rig.mirror("users")[0]["name"] == "new"
        assert len(rig.log("users")) == 3


def test_a_restart_still_knows_what_the_lake_had_reached(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """The position is kept in the lake, so a new process does not begin to believe old changes."""
    begin(stream)
    rig.drain()
    store_again(stream, 3)

    for _ in range(2):
        with pytest.raises(OutOfOrder):
            rig.drain()

    assert [row["name"] for row in rig.mirror("users")] == ["new"]
    assert rig.cuts()[-1]["stream_seq"] == 4


def test_an_old_change_of_another_table_of_the_source_stops_the_lake(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Order is the source's, not the table's: nothing of `orders` was there before."""
    stream.commit(announce(ORDERS, 1), announce(USERS, 1), change("users", "INSERT", {"id": 1}))
    stream.send()
    rig.drain()
    stream.lsn -= 15
    stream.commit(change("orders", "INSERT", {"id": 1}))
    stream.send()

    with pytest.raises(OutOfOrder, match=r"cdc\.orders"):
        rig.drain()


def test_positions_of_two_sources_are_not_compared(stream: HandMadeStream, rig: LakeRig) -> None:
    """Several bridges may share a stream, and their databases count for themselves."""
    begin(stream)
    stream.lsn = 10
    stream.commit(replace(announce(ORDERS, 1), source="8/1"), change("orders", "INSERT", {"id": 1}))
    stream.send()
    rig.drain()
    stream.commit(change("orders", "INSERT", {"id": 2}))
    stream.send()
    rig.drain()
    store_again(stream, 6)

    with pytest.raises(OutOfOrder, match="8/1"):
        rig.drain()

    assert len(rig.mirror("orders")) == 2


def test_messages_of_the_bridge_that_repeat_a_position_are_no_disorder(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """A session message repeats the position before it; a schema message that of its change."""
    begin(stream)
    stream.commit(announce(USERS, 2), change("users", "INSERT", {"id": 2}, revision=2))
    stream.commit(logical_message("audit"), change("users", "INSERT", {"id": 3}, revision=2))
    at = stream.events[-1].place
    session = LogicalMessage(
        prefix=session_prefix("7/1"), content="{}", transactional=False, place=at, source="7/1"
    )
    stream.events.append(session)
    stream.commit(change("users", "INSERT", {"id": 4}, revision=2))
    stream.send()

    rig.drain(max_messages=2)

    assert [row["id"] for row in rig.mirror("users")] == [1, 2, 3, 4]


def gaps(rig: LakeRig) -> list[tuple[int, int]]:
    """Sequences that the change log of users says it lacks."""
    table = open_catalog(rig.catalog, rig.warehouse).load_table("public__changes.users")
    return read_gaps(table.properties)


def roll_back(stream: HandMadeStream, *events: Sendable) -> None:
    """Let NATS lose every message, and the bridge send these: two users, maybe not as before."""
    stream.delete()
    stream.events = [*events]
    stream.send()


def test_a_change_that_took_the_number_of_an_applied_one_is_not_skipped(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """A message of the bridge's own is not repeated, so each change is one number lower."""
    stream.commit(announce(USERS, 1), change("users", "INSERT", {"id": 1, "name": "a"}))
    stream.commit(logical_message("audit"))
    stream.commit(change("users", "INSERT", {"id": 2, "name": "b"}))
    events = [*stream.events]
    stream.send()
    rig.drain()
    stream.commit(change("users", "INSERT", {"id": 3, "name": "c"}))
    stream.commit(change("users", "INSERT", {"id": 4, "name": "d"}))
    stream.store_snapshot(
        USERS, [{"id": n, "name": x} for n, x in enumerate("abcd", 1)], lsn=stream.lsn + 1, at=5
    )
    roll_back(stream, *(one for one in events if one.subject != "cdc._message.audit"),
              *stream.events)  # fmt: skip

    rig.catch_up()

    assert [row["name"] for row in rig.mirror("users")] == ["a", "b", "c", "d"]
    assert [row["new"]["id"] for row in rig.log("users")] == [1, 2, 4]
    assert gaps(rig) == [(4, 4)]


def test_a_change_that_moved_up_is_not_applied_again(stream: HandMadeStream, rig: LakeRig) -> None:
    """A message more stands before it: the lake finds its place by the commit."""
    stream.commit(announce(USERS, 1), change("users", "INSERT", {"id": 1, "name": "a"}))
    before = [*stream.events]
    stream.commit(logical_message("audit"))
    audit = stream.events[-1]
    stream.commit(change("users", "INSERT", {"id": 2, "name": "b"}))
    after = stream.events[-1]
    stream.events = [*before, after]
    stream.send()
    rig.drain()
    stream.commit(change("users", "INSERT", {"id": 3, "name": "c"}))
    roll_back(stream, *before, audit, after, *stream.events)

    rig.drain()

    assert [row["name"] for row in rig.mirror("users")] == ["a", "b", "c"]
    assert [row["new"]["id"] for row in rig.log("users")] == [1, 2, 3]
    assert gaps(rig) == []


def test_positions_may_fall_behind_messages_that_expired_unread(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """A fork may have been among them; every mirror is rebuilt from a snapshot anyway."""
    begin(stream)
    rig.drain()
    stream.commit(logical_message("audit"))
    stream.send()
    stream.forget(6, before=True)
    stream.lsn = 500
    stream.commit(change("users", "INSERT", {"id": 3, "name": "later"}))
    stream.store_snapshot(USERS, [{"id": 3, "name": "later"}], lsn=stream.lsn + 1, at=6)
    stream.send()

    rig.catch_up()

    assert [row["name"] for row in rig.mirror("users")] == ["later"]
    assert rig.log("users")[-1]["stream_seq"] == 6


def test_the_example_stops_as_well(stream: HandMadeStream, tmp_path: Path) -> None:
    """Consumers in any language copy what the example does."""
    begin(stream)
    store_again(stream, 3)

    async def follow() -> str:
        client = await stream.connect()
        follower = Follower(client, str(tmp_path / "copy.db"), ["users"])
        follower.db.execute("CREATE TABLE users (id PRIMARY KEY, name)")
        follower.places |= {"users": 0, EVERYTHING: 0}
        with pytest.raises(RuntimeError, match="stored again or out of order") as stopped:
            await follower.follow()
        follower.db.execute("ROLLBACK")
        assert follower.db.execute("SELECT name FROM users").fetchall() == [("new",)]
        follower.db.close()
        await client.close()
        return str(stopped.value)

    assert "stream sequence 5 (cdc.users.update) is at (1030, 0) after (1040, 0)" in asyncio.run(
        follow()
    )

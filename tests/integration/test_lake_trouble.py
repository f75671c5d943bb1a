"""What must not reach the lake, and what must in any form: bad input, odd bodies, rivals."""

from __future__ import annotations

from typing import Any

import pytest

from lake_consumer.errors import LakeBusy, ShapeUnknown, UndecodableMessage
from lake_consumer.iceberg.staging import BRANCH, Staging
from tests.support.lake import (
    Encoded,
    HandMadeStream,
    LakeRig,
    RawMessage,
    Sendable,
    announce,
    change,
    make_shape,
)

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

DOCS = make_shape("docs", {"id": "int64", "title": "text", "body": "text"})


def _without_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(row.pop("_bridge_text") is None for row in rows)
    return rows


def test_a_message_that_cannot_be_applied_stops_the_batch_and_is_named(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Bytes that do not decode, a value of another type, an unknown version, a lost shape."""
    row = {"id": 1, "title": "a", "body": "b"}
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", row))
    stream.send()
    rig.drain()
    bad: list[tuple[Sendable, str]] = [
        (RawMessage(subject="cdc.docs.insert", body=b"\xc1"), r"sequence 3 \(cdc\.docs\.insert\)"),
        (change("docs", "INSERT", {**row, "id": "x"}), r"sequence 3 \(cdc\.docs\.insert\)"),
        (
            RawMessage(subject="cdc.docs.update", body=b"\x80", headers={"Contract-Version": "9"}),
            r"sequence 3 \(cdc\.docs\.update\): it follows version 9 of the contract",
        ),
        (RawMessage(subject="cdc.docs.upsert", body=b"\x80"), "sequence 3 .* is not a subject"),
        (change("docs", "INSERT", row, 77), r"stream sequence 3 .*revision 77"),
    ]
    for message, said in bad:
        stream.delete()
        stream.commit(announce(DOCS, 1), change("docs", "INSERT", row))
        stream.commit(message, change("docs", "INSERT", {**row, "id": 2}))
        stream.send()

        with pytest.raises((UndecodableMessage, ShapeUnknown), match=said):
            rig.drain()

    assert [r["id"] for r in rig.mirror("docs")] == [1]
    assert len(rig.log("docs")) == 1


def test_dead_letters_are_kept_as_they_were_and_the_rest_is_applied(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Only where it is told so does a batch go on without a message, and never without a copy."""
    row = {"id": 1, "title": "a", "body": "b"}
    stream.commit(
        announce(DOCS, 1),
        change("docs", "INSERT", row),
        RawMessage(subject="cdc.docs.insert", body=b"\xc1"),
        change("docs", "INSERT", {**row, "id": "x"}),
        change("docs", "INSERT", {**row, "id": 4}, 77),
        change("docs", "INSERT", {**row, "id": 5}),
    )
    stream.send()

    rig.drain(dead_letters=True)

    assert [r["id"] for r in rig.mirror("docs")] == [1, 5]
    assert [r["stream_seq"] for r in rig.log("docs")] == [2, 6]
    letters = {letter.sequence: letter for letter in stream.dead_letters()}
    assert sorted(letters) == [3, 4, 5]
    assert letters[3].body == b"\xc1"
    assert letters[3].subject == "dead.cdc.docs.insert"
    assert "77" in letters[5].reason


def test_two_codecs_compressed_and_oversize_bodies_are_read_alike(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Headers decide how a body is read; the row in it is the same."""
    rows = [{"id": key, "title": f"t{key}", "body": "x" * 100} for key in range(1, 5)]
    inserts = [change("docs", "INSERT", row) for row in rows]
    stream.commit(announce(DOCS, 1), inserts[0])
    stream.commit(Encoded(event=inserts[1], format="json"))
    stream.commit(Encoded(event=inserts[2], format="msgpack", compressed=True))
    stream.commit(Encoded(event=inserts[3], format="json", oversize="far-away"))
    stream.send()

    rig.drain()

    assert _without_text(rig.mirror("docs")) == rows


def test_a_replica_identity_of_all_columns_changes_keys_like_any_other(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Every update has an old row then; only one with another key has moved."""
    shape = make_shape("docs", {"id": "int64", "title": "text", "body": "text"}, identity="full")
    rows = [{"id": key, "title": "t", "body": "b"} for key in (1, 2, 3)]
    stream.commit(announce(shape, 1), *[change("docs", "INSERT", row) for row in rows])
    stream.send()
    rig.drain()
    stream.commit(
        change("docs", "UPDATE", {**rows[0], "title": "new"}, old=rows[0]),
        change("docs", "UPDATE", {**rows[1], "id": 20}, old=rows[1]),
        change("docs", "DELETE", rows[2]),
    )
    stream.send()

    rig.drain()

    assert _without_text(rig.mirror("docs")) == [
        {"id": 1, "title": "new", "body": "b"}, {"id": 20, "title": "t", "body": "b"},
    ]  # fmt: skip
    assert rig.log("docs")[3]["old"] == {**rows[0], "_bridge_text": None}


def _die() -> None:
    raise ConnectionAbortedError


def test_a_batch_is_shown_whole_or_not_at_all(
    stream: HandMadeStream, rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its delete and its append are two commits, and a run may die or be overtaken between."""
    row = {"id": 1, "title": "a", "body": "b"}
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", row))
    stream.send()
    rig.drain()
    stream.commit(change("docs", "UPDATE", {**row, "title": "new"}))
    stream.send()

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "_fast_forward", lambda _: _die())
        with pytest.raises(ConnectionAbortedError):
            rig.drain()

    assert [r["title"] for r in rig.mirror("docs")] == ["a"]
    assert rig.branches("public.docs") == {"main", BRANCH}

    maintenance = ["CALL lake.system.rewrite_data_files(table => 'public.docs', "
                   "options => map('rewrite-all', 'true'))"]  # fmt: skip
    publish = Staging._fast_forward

    def overtaken(staging: Staging) -> None:
        if maintenance:
            rig.spark.sql(maintenance.pop())
        publish(staging)

    monkeypatch.setattr(Staging, "_fast_forward", overtaken)
    assert rig.drain() == 1

    assert [r["title"] for r in rig.mirror("docs")] == ["new"]
    assert rig.branches("public.docs") == {"main"}
    assert len(rig.log("docs")) == 2
    assert not maintenance


def test_two_consumers_on_one_lake_do_not_overwrite_each_other(
    stream: HandMadeStream, rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds that main has moved, and says so."""
    row = {"id": 1, "title": "a", "body": "b"}
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", row))
    stream.send()
    rig.drain()
    stream.commit(change("docs", "UPDATE", {**row, "title": "new"}))
    stream.send()
    publish = Staging._fast_forward

    def overtaken(staging: Staging) -> None:
        # The session's stamp makes this look like what it stands for: the same batch, by another.
        rig.spark.table("lake.public.docs").writeTo("lake.public.docs").append()
        publish(staging)

    monkeypatch.setattr(Staging, "_fast_forward", overtaken)
    with pytest.raises(LakeBusy, match="another consumer"):
        rig.drain()

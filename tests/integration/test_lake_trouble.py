"""What must not reach the lake, and what must in any form: bad input, odd bodies, rivals."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lake_consumer.errors import LakeBusy, ShapeUnknown, UndecodableMessage
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.mirror import MirrorWriter
from lake_consumer.iceberg.names import LakeName
from lake_consumer.iceberg.staging import BRANCH, Staging
from lake_consumer.iceberg.tables import LakeTables
from schemas.events import Change
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
    begin = stream.lsn
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
        stream.lsn = begin
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


@pytest.mark.parametrize(
    ("update", "left"),
    [
        (change("docs", "UPDATE", {"id": 1, "title": "new", "body": "b"}), {""}),
        (change("docs", "UPDATE", {"id": 1, "title": "new"}, unchanged=("body",)), {"", BRANCH}),
    ],
    ids=["files", "spark"],
)
def test_a_batch_is_shown_whole_or_not_at_all(
    stream: HandMadeStream,
    rig: LakeRig,
    monkeypatch: pytest.MonkeyPatch,
    update: Change,
    left: set[str],
) -> None:
    """A run may die or be overtaken before its end; what Spark writes takes several commits."""
    row = {"id": 1, "title": "a", "body": "b"}
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", row))
    stream.send()
    rig.drain()
    stream.commit(update)
    stream.send()

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "_fast_forward", lambda *_: _die())
        with pytest.raises(ConnectionAbortedError):
            rig.drain()

    assert [r["title"] for r in rig.mirror("docs")] == ["a"]
    assert [r["stream_seq"] for r in rig.log("docs")] == [2]
    assert {name.rpartition("_")[0] for name in rig.branches("public.docs")} == left

    maintenance = ["CALL lake.system.rewrite_data_files(table => 'public.docs', "
                   "options => map('rewrite-all', 'true'))"]  # fmt: skip
    publish = Staging._fast_forward

    def overtaken(staging: Staging, to: Any) -> None:
        if maintenance:
            rig.spark.sql(maintenance.pop())
        publish(staging, to)

    monkeypatch.setattr(Staging, "_fast_forward", overtaken)
    assert rig.drain() == 1

    assert _without_text(rig.mirror("docs")) == [{**row, "title": "new"}]
    assert rig.branches("public.docs") == {"main"}
    assert len(rig.log("docs")) == 2
    assert not maintenance


class Rival:
    """A second consumer of the same lake: it is through with a batch while the first is in it."""

    def __init__(self, rig: LakeRig) -> None:
        self._rig = rig
        self._lock = threading.Lock()
        self._first = ""
        self._through = threading.Event()
        self.is_due = False
        self.batches = 0

    def come(self, tables: LakeTables) -> None:
        """Be through with the batch now; whoever is the first goes on only then."""
        with self._lock:
            comes, self.is_due = self.is_due, False
            if comes:
                self._first = tables.consumer
        if comes:
            try:
                self.batches = self._rig.drain()
            finally:
                self._through.set()
        elif tables.consumer == self._first:
            self._through.wait()


@pytest.fixture
def rival(rig: LakeRig, monkeypatch: pytest.MonkeyPatch) -> Rival:
    """Comes when the first one knows what the tables have, and has yet to write."""
    rival = Rival(rig)
    add, finish = FileAdder.add, MirrorWriter.finish

    def add_late(adder: FileAdder, *args: Any, **options: Any) -> None:
        rival.come(adder._tables)
        add(adder, *args, **options)

    def finish_late(writer: MirrorWriter, *args: Any, **options: Any) -> None:
        rival.come(writer._tables)
        finish(writer, *args, **options)

    monkeypatch.setattr(FileAdder, "add", add_late)
    monkeypatch.setattr(MirrorWriter, "finish", finish_late)
    return rival


_A, _B = ({"id": key, "title": title, "body": "b"} for key, title in ((1, "a"), (2, "b")))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([change("docs", "INSERT", _B)], [_A, _B]),
        ([change("docs", "UPDATE", {**_A, "title": "c"})], [{**_A, "title": "c"}]),
        ([change("docs", "TRUNCATE", {}), change("docs", "INSERT", _B)], [_B]),
    ],
    ids=["insert", "update", "truncate"],
)
def test_two_consumers_at_once_write_nothing_twice(
    stream: HandMadeStream,
    rig: LakeRig,
    rival: Rival,
    changes: list[Change],
    left: list[dict[str, Any]],
) -> None:
    """Iceberg would let both of them append: the second must find that main has moved."""
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", _A))
    stream.send()
    rig.drain()
    stream.commit(*changes)
    end = stream.send()
    rival.is_due = True

    with pytest.raises(LakeBusy, match="another consumer"):
        rig.drain()

    assert rival.batches == 1
    assert [r["stream_seq"] for r in rig.log("docs")] == list(range(2, end + 1))
    assert _without_text(rig.mirror("docs")) == left
    cuts = [(r["stream_seq"], r["changes_snapshot_id"]) for r in rig.cuts()]
    assert len(cuts) == len(set(cuts)) == 2
    assert rig.drain() == 0


def test_two_consumers_at_once_begin_a_table_once(
    stream: HandMadeStream, rig: LakeRig, rival: Rival
) -> None:
    """A table without a snapshot has nothing that a branch could begin at."""
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", _A))
    stream.send()
    rival.is_due = True

    with pytest.raises(LakeBusy, match="another consumer"):
        rig.drain()

    assert [r["stream_seq"] for r in rig.log("docs")] == [2]
    assert _without_text(rig.mirror("docs")) == [_A]
    assert rig.drain() == 0


def test_a_branch_that_another_took_away_and_iceberg_made_anew_is_not_published(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """It lacks what was on it, and descends from main all the same."""
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", _A))
    stream.send()
    rig.drain()
    stream.commit(change("docs", "UPDATE", {**_A, "title": "c"}))
    stream.send()
    tables = LakeTables(rig.spark)
    mirror = tables.load(LakeName("public", "docs"))

    def stage(branch: str) -> None:
        name = branch.rpartition(".branch_")[2]
        mirror.newFastAppend().toBranch(name).commit()
        rig.drain()
        mirror.newFastAppend().toBranch(name).commit()

    with pytest.raises(LakeBusy, match="another consumer"):
        Staging(tables, mirror, "lake.public.docs").publish(stage)

    assert [r["title"] for r in rig.mirror("docs")] == ["c"]


def test_a_rival_that_dies_half_way_leaves_alone_what_is_staged(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """On a branch that both share, the first would publish half of the second's batch."""
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", _A))
    stream.send()
    rig.drain()
    sides = [LakeTables(rig.spark) for _ in range(2)]
    first, second = ((tables, tables.load(LakeName("public", "docs"))) for tables in sides)

    def write(mirror: Any, branch: str, by: str) -> None:
        name = branch.rpartition(".branch_")[2]
        mirror.newFastAppend().set("by", by).toBranch(name).commit()

    def stage_half(branch: str) -> None:
        write(second[1], branch, "second")
        _die()

    def stage(branch: str) -> None:
        write(first[1], branch, "first")
        second[1].refresh()
        with pytest.raises(ConnectionAbortedError):
            Staging(*second, "lake.public.docs").publish(stage_half)

    Staging(*first, "lake.public.docs").publish(stage)

    first[1].refresh()
    assert first[1].currentSnapshot().summary()["by"] == "first"
    assert rig.branches("public.docs") == {"main"}


def test_a_consumer_left_behind_names_no_cut(
    stream: HandMadeStream, rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds every table written; but by now they may be further than its batch."""
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", _A))
    stream.send()
    rig.drain()
    stream.commit(change("docs", "INSERT", _B))
    stream.send()
    apply, waiting = Lake._apply_tables, [True]

    def late(lake: Lake, *args: Any) -> Any:
        if waiting and waiting.pop():
            rig.drain()
            stream.commit(change("docs", "DELETE", _B))
            stream.send()
            rig.drain()
        return apply(lake, *args)

    monkeypatch.setattr(Lake, "_apply_tables", late)
    with pytest.raises(LakeBusy, match="stream sequence 4 already"):
        rig.drain()

    shown = [[row["id"] for row in rows["public.docs"]] for _, rows in rig.at_cuts("public.docs")]
    assert [sorted(ids) for ids in shown] == [[1], [1, 2], [1]]
    assert len(rig.cuts()) == 3

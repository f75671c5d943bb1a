"""A real stream, a real Spark: what the stream said is what the tables hold."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lake_consumer import app
from lake_consumer.batches import Batch
from lake_consumer.errors import MessagesMissing
from lake_consumer.iceberg.ahead import ReadAhead, Reading
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.table import Cut
from tests.support.lake import (
    HandMadeStream,
    LakeRig,
    announce,
    change,
    logical_message,
    make_shape,
)


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every batch be read ahead of its turn, as those of a long backlog are."""
    monkeypatch.setattr(app, "AHEAD_MESSAGES", 1)


# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


DOCS = make_shape("docs", {"id": "int64", "title": "text", "body": "text"})


class History:
    """Random changes of `docs`, and the table they leave, by PostgreSQL's rules."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.random = random.Random(seed)
        self.changes = 0

    def step(self) -> Any:
        self.changes += 1
        kinds = ["insert"] * 2 + ["update", "unchanged", "move", "move unchanged", "delete"]
        kind = self.random.choice(kinds) if self.rows else "insert"
        if len(self.rows) > 30:
            kind = "delete"
        if self.random.random() < 0.01:
            self.rows.clear()
            return change("docs", "TRUNCATE", {})
        if kind == "insert":
            return self._insert()
        key = self.random.choice(list(self.rows))
        if kind == "delete":
            del self.rows[key]
            return change("docs", "DELETE", {"id": key, "title": None, "body": None})
        return self._update(key, moved="move" in kind, unchanged="unchanged" in kind)

    def _free_key(self) -> int:
        return self.random.choice([n for n in range(40) if n not in self.rows])

    def _insert(self) -> Any:
        key = self._free_key()
        self.rows[key] = {"id": key, "title": self._text(), "body": self._text()}
        return change("docs", "INSERT", dict(self.rows[key]))

    def _update(self, key: int, *, moved: bool, unchanged: bool) -> Any:
        row = self.rows.pop(key)
        new = self._free_key() if moved else key
        row = {"id": new, "title": self._text(), "body": row["body"] if unchanged else self._text()}
        self.rows[new] = row
        sent = {k: v for k, v in row.items() if not (unchanged and k == "body")}
        return change(
            "docs",
            "UPDATE",
            sent,
            key={"id": key} if new != key else None,
            unchanged=("body",) if unchanged else (),
        )

    def _text(self) -> str:
        return f"v{self.random.randrange(10**9)}"


def test_any_history_in_any_batching_leaves_postgresqls_own_table(
    stream: HandMadeStream, rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fold, TOAST, changes of key and truncates, in batches that are read ahead of their turn."""
    taken: list[Reading | None] = []
    take = ReadAhead.take

    def counted(reads: ReadAhead) -> Reading | None:
        taken.append(take(reads))
        return taken[-1]

    monkeypatch.setattr(ReadAhead, "take", counted)
    history = History(seed=7)
    stream.commit(announce(DOCS, 1), history.step())
    while history.changes < 400:
        stream.commit(*[history.step() for _ in range(history.random.randrange(1, 12))])
    stream.send()

    batches = rig.drain(max_messages=120)

    expected = sorted(history.rows.values(), key=lambda row: row["id"])
    assert batches >= 3
    assert sum(reading is not None for reading in taken) == batches - 1
    assert _without_text(rig.mirror("docs")) == expected
    assert _without_text(rig.pyiceberg("public.docs")) == expected
    assert [row["stream_seq"] for row in rig.log("docs")] == list(range(2, history.changes + 2))


def _without_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(row.pop("_bridge_text") is None for row in rows)
    return sorted(rows, key=lambda row: row["id"])


def test_values_are_exact_for_spark_and_for_pyiceberg(stream: HandMadeStream, rig: LakeRig) -> None:
    """Native where the lake has the type, PostgreSQL's own text where it has not."""
    shape = make_shape(
        "Odd Table",
        {
            "id": "uuid", "n": "decimal(10,2)", "huge": "decimal", "day": "date", "ts": "timestamp",
            "tz": "timestamptz", "f": "float64", "b": "binary", "ok": "bool", "l": "list<int32>",
            "doc": "json", "Weird `name`": "int16",
        },
    )  # fmt: skip
    key = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
    plain: dict[str, Any] = {
        "id": key, "n": "-12.30", "huge": "1e-40", "day": "0001-01-01",
        "ts": "1582-10-10T00:00:00.000001", "tz": "2025-12-08T13:45:21.719719Z", "f": float("-inf"),
        "b": b"\x00\xff", "ok": True, "l": [1, None], "doc": {"z": 1, "a": [None, "é"]},
        "Weird `name`": -5,
    }  # fmt: skip
    odd = {
        **plain, "id": key[:-1] + "0", "n": "NaN", "day": "infinity", "ts": "-infinity",
        "tz": "0044-03-15 00:00:00+00 BC", "l": [[1, 2], [3, 4]],
        "doc": '{"n": 123456789012345678901}',
    }  # fmt: skip
    stream.commit(
        announce(shape, 1),
        change("Odd Table", "INSERT", plain),
        change("Odd Table", "INSERT", odd, text=("day", "ts", "tz", "doc")),
    )
    stream.send()

    rig.drain()

    rows = {row["id"]: row for row in rig.mirror("Odd Table")}
    native, text = rows[plain["id"]], rows[odd["id"]]
    assert native == {
        "id": key, "n": Decimal("-12.30"), "huge": "1e-40", "day": date(1, 1, 1),
        "ts": datetime(1582, 10, 10, 0, 0, 0, 1), "tz": native["tz"], "f": float("-inf"),
        "b": bytearray(b"\x00\xff"), "ok": True, "l": [1, None],
        "doc": '{"z":1,"a":[null,"é"]}', "Weird `name`": -5, "_bridge_text": None,
    }  # fmt: skip
    assert [text[name] for name in ("n", "day", "ts", "tz", "l")] == [None] * 5
    assert text["doc"] == '{"n":123456789012345678901}'
    assert text["_bridge_text"] == {
        "n": "NaN", "day": "infinity", "ts": "-infinity", "tz": "0044-03-15 00:00:00+00 BC",
        "l": "{{1,2},{3,4}}",
    }  # fmt: skip
    seen = {str(row["id"]): row for row in rig.pyiceberg("public.Odd Table")}
    assert seen[key]["tz"] == datetime(2025, 12, 8, 13, 45, 21, 719719, tzinfo=UTC)
    assert seen[key]["n"] == Decimal("-12.30")
    assert dict(seen[odd["id"]]["_bridge_text"])["n"] == "NaN"


def test_a_key_without_a_native_form_is_still_a_key(stream: HandMadeStream, rig: LakeRig) -> None:
    """Two such keys are both null in their column; their text tells them apart."""
    shape = make_shape("spans", {"id": "date", "note": "text"})
    dates = ("infinity", "-infinity", "2025-01-01")
    texts = {"infinity": ("id",), "-infinity": ("id",), "2025-01-01": ()}
    stream.commit(
        announce(shape, 1),
        *[change("spans", "INSERT", {"id": d, "note": d}, text=texts[d]) for d in dates],
    )
    stream.send()
    rig.drain()
    stream.commit(
        change("spans", "UPDATE", {"id": "infinity", "note": "new"}, text=("id",)),
        change("spans", "DELETE", {"id": "-infinity", "note": None}, text=("id",)),
    )
    stream.send()

    rig.drain()

    left = {
        (row["_bridge_text"] or {}).get("id", row["id"]): row["note"] for row in rig.mirror("spans")
    }
    assert left == {"infinity": "new", date(2025, 1, 1): "2025-01-01"}


def test_shapes_change_in_order_with_the_changes(stream: HandMadeStream, rig: LakeRig) -> None:
    """Added, renamed, widened and dropped columns, several of them within one batch."""
    first = make_shape("users", {"id": "int32", "name": "text", "age": "int32"})
    second = make_shape("users", {"id": "int64", "title": "text", "age": "int32", "mail": "text"})
    third = make_shape(
        "users",
        {"id": "int64", "title": "text", "name": "json"},
        positions={"id": 1, "title": 2, "name": 5},
    )
    stream.commit(
        announce(first, 1),
        change("users", "INSERT", {"id": 1, "name": "ann", "age": 30}),
        change("users", "INSERT", {"id": 2, "name": "bob", "age": 40}),
    )
    stream.send()
    rig.drain()
    big = 1 << 40
    stream.commit(
        change("users", "UPDATE", {"id": 2, "name": "bo", "age": 41}),
        announce(second, 2),
        change("users", "INSERT", {"id": big, "title": "cy", "age": 50, "mail": "m"}, 2),
        announce(third, 3),
        change("users", "INSERT", {"id": 3, "title": "dee", "name": {"a": 1}}, 3),
    )
    stream.send()

    rig.drain()

    assert _without_text(rig.mirror("users")) == [
        {"id": 1, "title": "ann", "name": None},
        {"id": 2, "title": "bo", "name": None},
        {"id": 3, "title": "dee", "name": '{"a":1}'},
        {"id": big, "title": "cy", "name": None},
    ]
    logged = [row["new"] for row in rig.log("users")]
    assert [row["age"] for row in logged] == [30, 40, 41, 50, None]
    assert logged[3]["mail"] == "m"


def test_an_incompatible_change_parks_one_mirror_and_its_log_goes_on(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text to int and back in one batch: no value is lost, no other table waits."""
    shapes = [make_shape("users", {"id": "int64", "v": kind}) for kind in ("text", "int32", "text")]
    other = make_shape("others", {"id": "int64"})
    stream.commit(announce(shapes[0], 1), change("users", "INSERT", {"id": 1, "v": "a"}))
    stream.commit(announce(other, 9), change("others", "INSERT", {"id": 1}, 9))
    stream.send()
    rig.drain()
    stream.commit(
        change("users", "INSERT", {"id": 2, "v": "b"}, 1),
        announce(shapes[1], 2),
        change("users", "INSERT", {"id": 3, "v": 3}, 2),
        change("others", "INSERT", {"id": 2}, 9),
    )
    stream.send()

    rig.drain()

    assert "column v changed from text to int32" in capsys.readouterr().out
    assert [row["id"] for row in rig.mirror("others")] == [1, 2]
    assert _without_text(rig.mirror("users")) == [{"id": 1, "v": "a"}]
    assert rig.cuts()[-1]["table_name"] == "public.users"
    assert rig.cuts()[-1]["snapshot_id"] is None
    stream.commit(announce(shapes[2], 3), change("users", "INSERT", {"id": 4, "v": "d"}, 3))
    stream.send()
    rig.drain()
    logged = [(r["new"]["v__2"], r["new"]["v__2_"], r["new"]["v"]) for r in rig.log("users")]
    assert logged == [("a", None, None), ("b", None, None), (None, 3, None), (None, None, "d")]
    anew = replace(make_shape("users", {"v": "text"}, key=("v",)), relation_id=20_000)
    stream.commit(
        change("users", "INSERT", {"id": 5, "v": "e"}, 3),
        announce(anew, 4),
        replace(change("users", "INSERT", {"v": "f"}, 4), relation_id=20_000),
    )
    stream.send()
    rig.drain()
    logged = [(r["new"]["id"], r["new"]["v__2__"], r["new"]["v"]) for r in rig.log("users")]
    assert logged[3:] == [(4, "d", None), (5, "e", None), (None, None, "f")]


def test_a_table_without_a_key_has_a_change_log(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can say which row an update means; what happened is still worth keeping."""
    shape = make_shape("sales.events", {"what": "text"}, key=(), identity="full")
    stream.commit(
        announce(shape, 1),
        change("sales.events", "INSERT", {"what": "a"}),
        change("sales.events", "UPDATE", {"what": "b"}, old={"what": "a"}),
    )
    stream.commit(logical_message("note"))
    stream.send()

    rig.drain()

    rows = rig.log("sales.events")
    assert [(row["operation"], row["new"]["what"]) for row in rows] == [
        ("INSERT", "a"), ("UPDATE", "b"),
    ]  # fmt: skip
    assert rows[1]["old"]["what"] == "a"
    assert "has no key" in capsys.readouterr().out


class DiesBeforeTheCut(Lake):
    """Commits its tables and is gone before it can say so."""

    def _cut(self, batch: Batch, cuts: list[Cut]) -> None:  # noqa: ARG002 - it dies
        raise ConnectionAbortedError


def test_a_batch_interrupted_before_its_cut_is_in_the_lake_once(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Tables have it, the cuts do not know: each table's own watermark must leave it out."""
    two = make_shape("two", {"id": "int64", "title": "text", "body": "text"})
    row = {"id": 1, "title": "a", "body": "b"}
    last = stream.commit(announce(DOCS, 1), change("docs", "INSERT", row), announce(two, 2),
                         change("two", "INSERT", row, 2))  # fmt: skip
    end = stream.send()
    with pytest.raises(ConnectionAbortedError):
        rig.drain(lake_class=DiesBeforeTheCut)
    later = stream.commit(change("docs", "INSERT", {**row, "id": 2}))
    stream.send()

    assert rig.drain() == 2

    assert len(rig.log("docs")) == 2
    assert len(rig.log("two")) == 1
    assert [r["id"] for r in rig.mirror("docs")] == [1, 2]
    assert [(c["table_name"], c["commit_lsn"], c["stream_seq"]) for c in rig.cuts()] == [
        ("public.docs", last, end),
        ("public.two", last, end),
        ("public.docs", later, end + 1),
    ]
    assert rig.drain() == 0
    assert rig.versions("public.docs") == 2
    assert stream.durable_position() == end + 1


def test_missing_messages_stop_the_lake_and_are_named(stream: HandMadeStream, rig: LakeRig) -> None:
    """A hole inside a batch and an expired beginning: going on would hide the loss."""
    row = {"id": 1, "title": "a", "body": "b"}
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", row))
    stream.send()
    rig.drain()
    for key in range(2, 12):
        stream.commit(change("docs", "INSERT", {**row, "id": key}))
    stream.send()
    stream.forget(6)

    with pytest.raises(MessagesMissing, match="lacks sequence 6: they were deleted"):
        rig.drain()
    stream.forget(8, before=True)
    with pytest.raises(MessagesMissing, match="lacks sequence 6-7: they expired"):
        rig.drain()

    assert [row["stream_seq"] for row in rig.log("docs")] == [2, 3, 4, 5]

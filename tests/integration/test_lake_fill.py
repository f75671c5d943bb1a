"""DDL that gives existing rows values: added columns with a constant, and `rewritten` tables.

A constant is Iceberg's `initial-default`, and every reader must show it in rows that were written
before the column existed. What only a snapshot can tell makes the mirror wait for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from lake_consumer.batches import Batch
from lake_consumer.care import CareOptions
from lake_consumer.cli import main
from lake_consumer.formats import FORMAT_SETTING
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.maintenance import STEPS, Caretaker
from lake_consumer.iceberg.table import Cut, TableApplier
from lake_consumer.tablestates import SINCE_PROPERTY, STATE_PROPERTY
from schemas.shapes import NO_FILL, TableShape
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

DOCS = make_shape("docs", {"id": "int64", "body": "text"})
FILLS: dict[str, tuple[str, Any, Any]] = {
    "truth": ("bool", True, True),
    "small": ("int16", -3, -3),
    "whole": ("int32", 5, 5),
    "large": ("int64", 9_007_199_254_740_993, 9_007_199_254_740_993),
    "half": ("float32", 0.5, 0.5),
    "real": ("float64", -0.1, -0.1),
    "price": ("decimal(12,2)", "19.90", Decimal("19.90")),
    "digits": ("decimal", "2.50", "2.50"),
    "note": ("text", 'it\'s "é"', 'it\'s "é"'),
    "empty": ("text", "", ""),
    "day": ("date", "2020-02-29", date(2020, 2, 29)),
    "local": ("timestamp", "2020-02-29T12:00:00.000001", datetime(2020, 2, 29, 12, 0, 0, 1)),
    "moment": (
        "timestamptz",
        "2020-02-29T12:00:00.5Z",
        datetime(2020, 2, 29, 12, 0, 0, 500_000, tzinfo=UTC),
    ),
    "who": (
        "uuid",
        "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    ),
    "raw": ("binary", b"\x00\xff", b"\x00\xff"),
    "doc": ("json", {"a": [1, None]}, '{"a":[1,null]}'),
    "nothing": ("int32", None, None),
}
"""Column, contract type, `fill` on the wire, and what the lake shows."""

SHOWN = {name: shown for name, (_, _, shown) in FILLS.items()}


def with_fills(shape: TableShape, fills: dict[str, Any], **more: Any) -> TableShape:
    columns = (
        replace(column, fill=fills[column.name]) if column.name in fills else column
        for column in shape.columns
    )
    return replace(shape, columns=tuple(columns), **more)


FILLED = with_fills(
    make_shape("docs", {"id": "int64", "body": "text"} | {n: t for n, (t, _, _) in FILLS.items()}),
    {name: fill for name, (_, fill, _) in FILLS.items()},
)
OWN = {name: fill for name, (_, fill, _) in FILLS.items()} | {"whole": 7, "note": None}


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _shown(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        row["id"]: {name: _plain(row[name]) for name in ("body", *FILLS)}
        for row in rows
    }  # fmt: skip


def _spark(rig: LakeRig, *, vectorised: bool) -> list[dict[str, Any]]:
    rig.spark.conf.set("spark.sql.iceberg.vectorization.enabled", str(vectorised).lower())
    rig.spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        # A collected timestamp comes in the process's own zone, without saying so.
        rows = rig.spark.sql("SELECT * FROM lake.public.docs").toArrow().to_pylist()
        return [{**row} for row in rows]
    finally:
        rig.spark.conf.unset("spark.sql.iceberg.vectorization.enabled")


def _duckdb(rig: LakeRig, capsys: pytest.CaptureFixture[str], sql: str) -> list[dict[str, Any]]:
    folder = rig.warehouse.removeprefix("file://")
    capsys.readouterr()
    assert main(["query", "--json", sql, "--warehouse", folder], {}) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _assert_right(
    rig: LakeRig, expected: dict[int, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {key: {k: _plain(v) for k, v in row.items()} for key, row in expected.items()}
    readers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "Spark, vectorised": lambda: _spark(rig, vectorised=True),
        "Spark, row by row": lambda: _spark(rig, vectorised=False),
        "pyiceberg": lambda: rig.pyiceberg("public.docs"),
    }
    for reader, read in readers.items():
        found = _shown(read())
        assert found == expected, reader
    of_default = [key for key, row in expected.items() if row["whole"] == 5]
    asked = "SELECT id FROM docs WHERE whole = 5 AND price = 19.90 AND day = DATE '2020-02-29'"
    assert sorted(row["id"] for row in _duckdb(rig, capsys, asked)) == sorted(of_default)
    asked = "SELECT id, body, note, whole FROM docs"
    found = {row.pop("id"): row for row in _duckdb(rig, capsys, asked)}
    assert found == {
        key: {name: row[name] for name in ("body", "note", "whole")}
        for key, row in expected.items()
    }


def test_rows_that_existed_hold_the_constant_for_every_reader(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of older files, of older revisions in the same batch, healed, merged and compacted."""
    stream.commit(
        announce(DOCS, 1),
        *(change("docs", "INSERT", {"id": key, "body": f"b{key}"}) for key in range(1, 7)),
    )
    stream.send()
    rig.drain()
    stream.commit(
        change("docs", "UPDATE", {"id": 1, "body": "before the column"}),
        change("docs", "INSERT", {"id": 7, "body": "new, before the column"}),
        announce(FILLED, 2),
        change("docs", "INSERT", {"id": 8, "body": "after", **OWN}, 2),
    )
    stream.send()
    rig.drain()
    expected: dict[int, dict[str, Any]] = {
        **{key: {"body": f"b{key}", **SHOWN} for key in range(2, 7)},
        1: {"body": "before the column", **SHOWN},
        7: {"body": "new, before the column", **SHOWN},
        8: {"body": "after", **SHOWN, "whole": 7, "note": None},
    }
    _assert_right(rig, expected, capsys)

    sent = {name: fill for name, (_, fill, _) in FILLS.items() if name != "note"}
    stream.commit(
        # A column that PostgreSQL did not send, of a row that has nothing but the default.
        change("docs", "UPDATE", {"id": 2, "body": "x", **sent}, 2, unchanged=("note",)),
        change("docs", "UPDATE", {"id": 3, "body": "own", **OWN}, 2),
        change("docs", "DELETE", {"id": 4, "body": None, **dict.fromkeys(FILLS)}, 2),
        change("docs", "UPDATE", {"id": 50, "body": "moved", **OWN}, 2, key={"id": 5}),
    )
    stream.send()
    rig.drain()
    expected[2]["body"] = "x"
    expected[3] = {**expected[8], "body": "own"}
    del expected[4], expected[5]
    expected[50] = {**expected[8], "body": "moved"}
    _assert_right(rig, expected, capsys)

    care = Caretaker(rig.spark, CareOptions(small_files=1, budget_seconds=300), lambda _: None)
    assert care.care(steps=STEPS)
    _assert_right(rig, expected, capsys)
    first, *_ = (rows["public.docs"] for _, rows in rig.at_cuts("public.docs"))
    assert [set(row) for row in first] == [{"id", "body", "_bridge_text"}] * 6


def test_a_column_of_a_quiet_table_is_in_the_lake_at_the_cut_that_announces_it(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """No change needs the new schema yet; readers of the cut see it nevertheless.

    Older bridges may announce the columns again without what existing rows hold.
    """
    forgotten = with_fills(FILLED, dict.fromkeys(FILLS, NO_FILL))
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", {"id": 1, "body": "b"}))
    stream.send()
    rig.drain()
    stream.commit(announce(FILLED, 2, alone=True))
    stream.commit(announce(forgotten, 3, alone=True))
    stream.send()

    rig.drain()

    _assert_right(rig, {1: {"body": "b", **SHOWN}}, capsys)
    assert [rows["public.docs"][0].get("whole") for _, rows in rig.at_cuts("public.docs")] == [
        None,
        5,
    ]


def test_a_schema_that_no_change_of_its_batch_needs_is_followed_too(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """The change log has the new names already when older changes of the batch are folded."""
    renamed = make_shape("docs", {"id": "int64", "title": "text"})
    anew = make_shape("docs", {"id": "int64", "title": "int32"}, positions={"id": 1, "title": 3})
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", {"id": 1, "body": "b"}))
    stream.send()
    rig.drain()
    stream.commit(announce(DOCS, 1), change("docs", "UPDATE", {"id": 1, "body": "c"}))
    stream.commit(announce(renamed, 2, alone=True))
    stream.send()
    rig.drain()
    assert [(row["id"], row["title"]) for row in rig.mirror("docs")] == [(1, "c")]

    stream.commit(change("docs", "INSERT", {"id": 2, "title": "d"}, 2))
    stream.commit(announce(with_fills(anew, {"title": 7}), 3, alone=True))
    stream.send()
    rig.drain()
    assert [(row["id"], row["title"]) for row in rig.mirror("docs")] == [(1, 7), (2, 7)]


def _state(rig: LakeRig) -> tuple[str, int]:
    rows = rig.spark.sql("SHOW TBLPROPERTIES lake.public__changes.docs").collect()
    properties = {row["key"]: row["value"] for row in rows}
    return properties[STATE_PROPERTY], int(properties[SINCE_PROPERTY])


@pytest.mark.parametrize("why", ["format v2", "a list"])
def test_a_constant_that_iceberg_cannot_hold_waits_for_a_snapshot(
    stream: HandMadeStream, rig: LakeRig, why: str
) -> None:
    kind, fill = ("int32", 5) if why == "format v2" else ("list<int32>", [1, 2])
    if why == "format v2":
        rig.spark.conf.set(FORMAT_SETTING, "v2-cow")
    shape = make_shape("docs", {"id": "int64", "body": "text", "added": kind})
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", {"id": 1, "body": "b"}))
    stream.send()
    rig.drain()
    stream.commit(announce(with_fills(shape, {"added": fill}), 2, alone=True))
    place = stream.send()

    with rig.following() as follower:
        assert follower.step(None)

    assert _state(rig) == ("loading", place)


class DiesBeforeTheCut(Lake):
    """Has followed the shapes of a batch, and is gone before any cut says so."""

    def _cut(self, batch: Batch, cuts: list[Cut]) -> None:
        del batch, cuts
        raise ConnectionAbortedError


def test_rewritten_rows_wait_for_a_snapshot_from_after_the_mark(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Whatever came before in the batch; a batch taken again neither loses nor repeats it."""
    rewritten = replace(DOCS, rewritten=True)
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", {"id": 1, "body": "b"}))
    stream.send()
    rig.drain()
    # Announced again, as after a restart of the bridge: it is nowhere else to be found here.
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", {"id": 2, "body": "b"}))
    stream.commit(announce(rewritten, 2, alone=True))
    place = stream.send()
    stream.commit(change("docs", "INSERT", {"id": 3, "body": "b"}, 2))
    stream.send()

    with rig.following(lake_class=DiesBeforeTheCut) as follower:
        with pytest.raises(ConnectionAbortedError):
            follower.step(None)
        assert _state(rig) == ("loading", place)
    with rig.following() as follower:
        assert follower.step(None)
        assert _state(rig) == ("loading", place)
    assert [row["new"]["id"] for row in rig.log("docs")] == [1, 2, 3]

    stream.commit(announce(rewritten, 3, alone=True))
    later = stream.send()
    with rig.following() as follower:
        assert follower.step(None)
    assert _state(rig) == ("loading", later), "a snapshot from between the marks would count"


def test_a_mark_counts_although_a_snapshot_taught_the_shape_first(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """A snapshot names the newest revision of its columns, which may be announced later only."""
    rewritten = replace(DOCS, rewritten=True)
    stream.commit(announce(DOCS, 1), change("docs", "INSERT", {"id": 1, "body": "b"}))
    stream.send()
    with rig.following() as follower:
        assert follower.step(None)
        lake = follower._lake
        lake.states.set(rewritten.name, replace(lake.states.get(rewritten.name), kind="live"))
        applier: TableApplier = lake._applier(rewritten.name)
        lake._shapes.learn(rewritten.to_map(timestamp="", lsn=0, source=""), 2)
        applier.follow([2])
        assert _state(rig)[0] == "live"
        stream.commit(announce(rewritten, 2, alone=True))
        place = stream.send()

        assert follower.step(None)

        assert _state(rig) == ("loading", place)

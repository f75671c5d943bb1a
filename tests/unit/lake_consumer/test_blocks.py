"""From decoded messages to blocks and back, and the fold of blocks: pure of Spark and servers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_consumer.columns import columns_of
from lake_consumer.fold import Event, fold
from lake_consumer.iceberg import blocks as blocks_module
from lake_consumer.iceberg.blocks import BLOCKS, FOLDED_COLUMNS, BlockMaker, TablePlan
from lake_consumer.iceberg.datafiles import FIELD_ID, FileTarget
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.folding import Folders
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.opening import OpenBlocks, read_ipc
from lake_consumer.iceberg.outcomes import Folder
from tests.support.lake import make_shape

PLACE = {
    "lsn": 1, "commit_lsn": 2, "commit_ts": "2025-12-08T13:45:21.719719Z", "xid": 3, "seq": 0,
    "last": True, "schema_revision": 1, "msg_id": "1-t-insert",
}  # fmt: skip


def keyed(kind: str = "int64") -> KeyedRows:
    columns = columns_of(make_shape("t", {"id": kind, "v": "text", "big": "text"}))
    return KeyedRows(columns, columns[:1])


def plan(kind: str = "int64", buckets: int = 1) -> TablePlan:
    shape = make_shape("t", {"id": kind, "v": "text", "big": "text"})
    return TablePlan(Decoder(columns_of(shape), {1: shape}), keyed(kind), buckets)


def message(operation: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**PLACE, "operation": operation, "data": data, **more}


def make(maker: BlockMaker, messages: list[dict[str, Any]], first: int = 1) -> pa.RecordBatch:
    for sequence, one in enumerate(messages, first):
        maker.add(sequence, f"cdc.t.{one['operation'].lower()}".encode(), one, 10)
    assert maker.decode(all=True) == []
    [batch] = list(maker.emit())
    return batch


def row(key: Any, v: str = "v", big: str = "b") -> dict[str, Any]:
    return {"id": key, "v": v, "big": big}


def test_facts_say_what_the_blocks_hold() -> None:
    """The driver decides by them alone."""
    messages = [
        message("INSERT", row(5)),
        message("TRUNCATE", {}),
        message("INSERT", row(7)),
        message("UPDATE", {"id": 9, "v": "x"}, key={"id": 7}, unchanged=["big"]),
        message("DELETE", {"id": -3, "v": None, "big": None}),
    ]

    blocks = make(BlockMaker({"t": plan(buckets=3)}), messages, first=10)

    facts = Facts.of(blocks.to_pylist())
    assert facts == Facts(
        first=10, last=14, rows=5, bytes=50, inserts=2, truncated=11, unchanged=True, moved=True,
        lowest=-3, highest=9, revision=1,
    )  # fmt: skip
    opened = pa.Table.from_batches(list(OpenBlocks(11)([blocks.select(["block"])])))
    assert sorted(opened["stream_seq"].to_pylist()) == [12, 13, 14]


def test_keys_that_postgresql_calls_equal_are_in_one_bucket() -> None:
    """-0.0 is 0.0 and NaN is NaN, alone and in a list; Python's hashes of them differ."""
    equal: list[tuple[str, Any, Any]] = [
        ("float64", 0.0, -0.0),
        ("float64", float("nan"), -float("nan")),
        ("list<float64>", [-0.0, float("nan")], [0.0, float("nan")]),
    ]
    for kind, one, other in equal:
        made = plan(kind, buckets=1 << 16)
        blocks = make(
            BlockMaker({"t": made}), [message("INSERT", row(key)) for key in (one, other)]
        )

        assert blocks.num_rows == 1, kind


def test_files_of_the_log_are_named_once_whatever_the_buckets(tmp_path: Path) -> None:
    """Iceberg takes a file twice, and then every change in it is in the log twice."""
    log = FileTarget(schema=with_ids(plan().decoder.schema), folder=f"{tmp_path}/")
    made = replace(plan(buckets=4), log=log, above=2)

    blocks = make(BlockMaker({"t": made}), [message("INSERT", row(key)) for key in range(20)])

    assert blocks.num_rows == 4
    # Spark gives structs as tuples.
    rows = [
        {**one, "files": [tuple(file.values()) for file in one["files"]]}
        for one in blocks.to_pylist()
    ]
    [file] = Facts.of(rows).files
    stored = pq.read_table(file.path)
    assert stored["stream_seq"].to_pylist() == list(range(3, 21))
    assert file.rows == 18
    opened = read_ipc(blocks["block"][0].as_buffer())
    assert tuple(opened.column_names) == FOLDED_COLUMNS


def with_ids(schema: pa.Schema) -> pa.Schema:
    """Give every field an id, as Iceberg does."""
    numbers = count(1)

    def field(one: pa.Field) -> pa.Field:
        kind = one.type
        if pa.types.is_struct(kind):
            kind = pa.struct([field(inner) for inner in kind])
        return pa.field(one.name, kind, metadata={FIELD_ID: str(next(numbers))})

    return pa.schema([field(one) for one in schema])


def test_what_comes_before_a_truncate_is_gone() -> None:
    """Rows of before must come back neither as rows nor as keys to delete."""
    messages = [
        message("INSERT", row(1)),
        message("UPDATE", row(2, "old")),
        message("TRUNCATE", {}),
        message("INSERT", row(2, "new")),
    ]
    keys = keyed()
    blocks = make(BlockMaker({"t": plan(buckets=3)}), messages, first=10)
    facts = Facts.of(blocks.to_pylist())
    folder = Folder(keys, keys.columns, facts.truncated or 0)

    [folded] = Folders({"t": folder})([blocks.select(["token", "first", "block"])])

    [part] = folded.to_pylist()
    assert part["held"] is None
    assert [(r["id"], r["v"]) for r in read_ipc(part["rows"]).to_pylist()] == [(2, "new")]


def test_the_last_change_of_a_key_is_the_one_that_stays() -> None:
    """Over several buckets and ranges, and given in the wrong order."""
    keys = keyed()
    first = make(BlockMaker({"t": plan(buckets=3)}), [message("UPDATE", row(k)) for k in range(9)])
    changes = [
        *[message("UPDATE", row(k, "last")) for k in range(6)],
        *[message("DELETE", {"id": k, "v": None, "big": None}) for k in range(6, 9)],
    ]
    second = make(BlockMaker({"t": plan(buckets=3)}), changes, first=10)
    folders = Folders({"t": Folder(keys, keys.columns, 0)})

    [folded] = folders(part.select(["token", "first", "block"]) for part in (second, first))

    [part] = folded.to_pylist()
    assert read_ipc(part["held"])["_k0"].to_pylist() == list(range(9))
    left = [(r["id"], r["v"]) for r in read_ipc(part["rows"]).to_pylist()]
    assert left == [(k, "last") for k in range(6)]


@pytest.mark.parametrize("kind", ["int64", "text", "float64"])
def test_all_changes_of_a_key_are_in_one_bucket(kind: str) -> None:
    """Whichever range of the stream, and whichever executor, they were read in."""
    keys: list[Any] = [1, 2, 3, 400, -5] if kind != "text" else ["a", "", "é", "b" * 99, "c"]
    found: dict[Any, set[int]] = {}
    for _ in range(2):
        blocks = make(
            BlockMaker({"t": plan(kind, buckets=4)}), [message("INSERT", row(k)) for k in keys]
        )
        for block in blocks.to_pylist():
            for new in read_ipc(block["block"])["new"].to_pylist():
                found.setdefault(new["id"], set()).add(block["bucket"])

    assert len(found) == len(keys)
    assert all(len(buckets) == 1 for buckets in found.values())


def test_an_unknown_revision_is_asked_for_and_a_lost_one_refused() -> None:
    change = message("INSERT", row(1), schema_revision=9)
    lacking = make(BlockMaker({"t": plan()}), [change])

    assert [(r["token"], r["revision"], r["first"]) for r in lacking.to_pylist()] == [("t", 9, 1)]
    assert lacking.schema == BLOCKS
    assert lacking["is_lacking"].to_pylist() == [True]
    maker = BlockMaker({"t": plan()}, frozenset({("t", 9)}))
    maker.add(1, b"cdc.t.insert", change, 10)
    maker.add(2, b"cdc.t.insert", message("INSERT", row(2)), 10)
    [refused] = maker.decode(all=True)
    assert refused.sequence == 1
    assert "revision 9" in refused.reason
    [left] = list(maker.emit())
    assert (left["rows"].to_pylist(), left["is_lacking"].to_pylist()) == ([1], [False])


def test_one_bad_value_among_many_is_found() -> None:
    """A column is read at once; what it refuses must still be one message."""
    maker = BlockMaker({"t": plan()})
    for sequence in range(1, 101):
        value: Any = "x" if sequence == 37 else sequence
        maker.add(sequence, b"cdc.t.insert", message("INSERT", row(value)), 10)

    [refused] = maker.decode(all=True)

    assert refused.sequence == 37
    assert refused.subject == "cdc.t.insert"
    with pytest.raises(ValueError, match="not a subject"):
        maker.add(101, b"cdc.t.upsert", message("INSERT", row(1)), 10)


def histories(seed: int, kind: str) -> Iterator[dict[str, Any]]:
    """Changes as PostgreSQL would send them of a table of a few keys."""
    dice = random.Random(seed)
    spell = {"int64": int, "text": str, "float64": float}[kind]
    there: set[int] = set()
    for number in range(200):
        key = dice.randrange(12)
        if key not in there:
            there.add(key)
            yield message("INSERT", row(spell(key), f"v{number}", f"b{number}"))
            continue
        draw = dice.random()
        if draw < 0.2:
            there.remove(key)
            yield message("DELETE", {"id": spell(key), "v": None, "big": None})
        elif draw < 0.5:
            yield message("UPDATE", {"id": spell(key), "v": f"v{number}"}, unchanged=["big"])
        elif draw < 0.6 and len(there) < 12:
            free = dice.choice([k for k in range(12) if k not in there])
            there.remove(key)
            there.add(free)
            yield message("UPDATE", row(spell(free), f"v{number}"), key={"id": spell(key)})
        else:
            yield message("UPDATE", row(spell(key), f"v{number}", f"c{number}"))


@pytest.mark.parametrize("kind", ["int64", "text", "float64"])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("buckets", [1, 5])
def test_blocks_fold_to_what_their_changes_fold_to(seed: int, kind: str, buckets: int) -> None:
    """Arrow's way for most keys and Python's for the rest are one fold.

    A key change brings the blocks of all buckets into one fold, and those overlap.
    """
    changes = list(histories(seed, kind))[seed * 20 :]
    expected = fold(
        Event(
            key=change["data"]["id"],
            row=None if change["operation"] == "DELETE" else change["data"],
            before=change["key"]["id"] if "key" in change else None,
            unchanged=frozenset(change.get("unchanged", ())),
            inserted=change["operation"] == "INSERT",
        )
        for change in changes
    )
    maker = BlockMaker({"t": plan(kind, buckets)})
    halves = [make(maker, changes[:90]), make(maker, changes[90:], first=91)]

    keys = keyed(kind)
    folders = Folders({"t": Folder(keys, keys.columns, 0)})
    [folded] = folders(half.select(["token", "first", "block"]) for half in reversed(halves))

    parts = folded.to_pylist()[0]
    held = read_ipc(parts["held"])["_k0"].to_pylist()
    assert len(held) == len(set(held))
    assert set(held) == {o.key for o in expected.values() if o.held}
    rows = {r["id"]: r for r in read_ipc(parts["rows"]).to_pylist()}
    ready = {k: o for k, o in expected.items() if o.row is not None and not o.kept}
    assert {k: (r["v"], r["big"]) for k, r in rows.items()} == {
        k: ((o.row or {})["v"], (o.row or {})["big"]) for k, o in ready.items()
    }
    healing = read_ipc(parts["healing"]).to_pylist() if parts["healing"] else []
    assert {r["row"]["id"]: r["base"]["id"] for r in healing} == {
        k: o.base for k, o in expected.items() if o.kept
    }


def test_messages_are_decoded_when_there_are_enough_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table with many is decoded at once; the few of many tables when they are many together."""
    monkeypatch.setattr(blocks_module, "DECODE_ROWS", 3)
    monkeypatch.setattr(blocks_module, "HELD_CHANGES", 4)
    monkeypatch.setattr(blocks_module, "EMIT_BYTES", 50)
    maker = BlockMaker({"t": plan(), "u": plan()})

    def add(sequence: int, table: str) -> list[tuple[str, int]]:
        maker.add(sequence, f"cdc.{table}.insert".encode(), message("INSERT", row(sequence)), 10)
        assert maker.decode() == []
        return [(one["token"], one["rows"]) for batch in maker.emit() for one in batch.to_pylist()]

    assert [add(n, "t") for n in (1, 2)] == [[], []]
    assert add(3, "t") == [("t", 3)]
    assert [add(n, table) for n, table in ((4, "t"), (5, "t"), (6, "u"), (7, "u"))] == [[]] * 4
    assert add(8, "v") == [("t", 2), ("u", 2), ("v", None)], "an unknown table is asked for"
    assert [add(n, "t") for n in (9, 10)] == [[], []]


def test_a_maker_is_full_by_the_bytes_since_it_gave_out_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks_module, "EMIT_BYTES", 30)
    maker = BlockMaker({"t": plan(buckets=4)})
    for _ in range(2):
        seen = []
        for sequence in range(1, 4):
            maker.add(sequence, b"cdc.t.insert", message("INSERT", row(sequence)), 10)
            seen.append(maker.is_full)
        assert seen == [False, False, True]
        maker.decode(all=True)
        [blocks] = list(maker.emit())
        assert sum(blocks["bytes"].to_pylist()) == 30
    assert list(maker.emit()) == []


def test_facts_of_a_table_without_a_key_say_nothing_of_keys() -> None:
    made = replace(plan(), key=None)
    update = message("UPDATE", row(2), key={"id": 1})

    keyless = Facts.of(make(BlockMaker({"t": made}), [update]).to_pylist())
    plain = Facts.of(make(BlockMaker({"t": plan()}), [message("INSERT", row(2))]).to_pylist())

    assert (keyless.moved, keyless.edges) == (False, None)
    assert (plain.moved, plain.unchanged, plain.edges, plain.inserts) == (False, False, (2, 2), 1)
    assert plain.truncated is None


def test_keys_spread_over_all_buckets() -> None:
    """Neighbours too, which is what keys mostly are; a bucket for all would fold in one task."""
    keys = keyed()
    parts = [pa.array(range(1_000), type=pa.int64())]

    sizes = Counter(keys.buckets(parts, 8).tolist())

    assert sorted(sizes) == list(range(8))
    assert max(sizes.values()) < 200

"""Any history, cut into any ranges, blocks, buckets and batches, leaves PostgreSQL's own table.

The judge is a dict to which one change at a time is applied. The other side is the code of the
executors on Arrow, without Spark: blocks are made, spread over tasks and folded as Spark would do
it, and a mirror that is a list of rows takes what comes out.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_consumer.columns import TEXT_COLUMN, columns_of
from lake_consumer.evolution import renames_in
from lake_consumer.iceberg.blocks import BlockMaker, TablePlan
from lake_consumer.iceberg.decode import Decoder, log_arrow_schema
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.folding import Folders, FoldPlan, plan_spread
from lake_consumer.iceberg.keys import KeyedRows, hashable
from lake_consumer.iceberg.mirror import Write, _above, plan_write
from lake_consumer.iceberg.opening import read_ipc
from lake_consumer.iceberg.outcomes import Folder, LogFolder
from schemas.shapes import TableShape
from tests.support.lake import make_shape

NAN, INF = math.nan, math.inf
FEW = os.environ.get("FEW_EXAMPLES") == "1"
"""For trials of mutants: a failure is enough, and need not be the simplest."""

thorough = settings(
    max_examples=6 if FEW else 60,
    phases=(Phase.generate,) if FEW else tuple(Phase),
    suppress_health_check=[HealthCheck.too_slow],
)

KEYS: dict[tuple[str, ...], list[tuple[Any, ...]]] = {
    ("int64",): [(n,) for n in (0, 1, 2, 3, -1, 7, 1 << 40, -(1 << 63))],
    ("text",): [(t,) for t in ("", "a", "A", "é", "NaN", "0", "a" * 40, "日")],
    ("uuid",): [(f"f47ac10b-58cc-4372-a567-0e02b2c3d47{n}",) for n in range(8)],
    ("binary",): [(b,) for b in (b"", b"\x00", b"a", b"\xff", b"aa", b"b", b"c", b"d")],
    ("float64",): [(f,) for f in (0.0, -0.0, NAN, INF, -INF, 1.5, 2.5, 1e300)],
    ("date",): [(d,) for d in ("infinity", "-infinity", "2025-01-01", "0044-03-15 BC", "1999-01-01",
                               "0001-01-01", "9999-12-31", "2000-02-29")],
    ("decimal(10,2)",): [(d,) for d in ("NaN", "0.00", "1.00", "-1.00", "99.99", "7.00", "8.50")],
    ("list<float64>",): [(x,) for x in ([], [NAN], [0.0], [-0.0], [None], [1.5, NAN], [2.5])],
    ("text", "int32"): [(t, n) for t in ("a", "b", "") for n in (1, 2, 3)],
    ("float64", "text"): [(f, t) for f in (0.0, -0.0, NAN, 1.0) for t in ("a", "b")],
}  # fmt: skip
OPERATIONS = ("insert", "insert", "insert", "update", "toast", "move", "move toast", "swap",
              "delete", "respell", "truncate")  # fmt: skip


def shape_of(kinds: tuple[str, ...], revision: int) -> TableShape:
    """Two revisions in which every column has another name, and two exchange theirs."""
    names = {1: ("id", "v", "big"), 2: ("key", "big", "v")}[revision]
    key = dict(zip((names[0], "part"), kinds, strict=False))
    columns = {**key, names[1]: "text", names[2]: "text"}
    return make_shape("t", columns, key=tuple(key))


@dataclass
class History:
    """Changes as the bridge sends them, and the table they leave by PostgreSQL's rules."""

    kinds: tuple[str, ...]
    full: bool
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[Any, tuple[Any, ...]]] = field(default_factory=list)
    revision: int = 1

    @property
    def names(self) -> list[str]:
        return [column.name for column in shape_of(self.kinds, self.revision).columns]

    def _send(self, operation: str, row: tuple[Any, ...] | None, **more: Any) -> None:
        number = len(self.messages) + 1
        names, width = self.names, len(self.kinds)
        data = {} if row is None else dict(zip(names, row, strict=True))
        images = [data, more.get("key") or {}]
        text = [n for n, k in zip(names, self.kinds, strict=False) if k == "date"
                and any(str(image.get(n, "2"))[:1] in "i-" or "BC" in str(image.get(n))
                        for image in images)]  # fmt: skip
        for name in more.get("unchanged", ()):
            data.pop(name)
        self.messages.append({
            "lsn": number, "commit_lsn": number, "commit_ts": "2025-12-08T13:45:21.719719Z",
            "xid": number, "seq": 0, "last": True, "msg_id": str(number),
            "schema_revision": self.revision, "operation": operation, "data": data, **more,
            **({"text": text} if text and width else {}),
        })  # fmt: skip
        self.states.append(dict(self.rows))

    def insert(self, key: tuple[Any, ...]) -> None:
        number = len(self.messages)
        row = (*key, f"v{number}", f"b{number}")
        self.rows[hashable(key)] = row
        self._send("INSERT", row)

    def delete(self, key: Any) -> None:
        row = self.rows.pop(key)
        width = len(self.kinds)
        sent = row if self.full else (*row[:width], None, None)
        old = {"old": dict(zip(self.names, row, strict=True))} if self.full else {}
        self._send("DELETE", sent, **old)

    def truncate(self) -> None:
        self.rows.clear()
        self._send("TRUNCATE", None)

    def update(self, key: Any, to: tuple[Any, ...] | None = None, *, toast: bool = False) -> None:
        """Change a row, and its key or only the spelling of it."""
        before, width, number = self.rows.pop(key), len(self.kinds), len(self.messages)
        toast = toast and not self.full
        after = (
            *(before[:width] if to is None else to),
            f"v{number}",
            before[-1] if toast else f"b{number}",
        )
        self.rows[hashable(after[:width])] = after
        more: dict[str, Any] = {}
        if self.full:
            more["old"] = dict(zip(self.names, before, strict=True))
        if hashable(after[:width]) != key:
            more["key"] = dict(zip(self.names, before[:width], strict=False))
        if toast:
            more["unchanged"] = [self.names[-1]]
        self._send("UPDATE", after, **more)


def tell(
    kinds: tuple[str, ...], steps: list[tuple[str, int, int]], *, full: bool, renamed: int
) -> History:
    """Let a history happen; from the step `renamed` on, columns have other names."""
    history, pool = History(kinds, full), KEYS[kinds]
    for number, (operation, one, other) in enumerate(steps):
        if number == renamed:
            history.revision = 2
        free = [key for key in pool if hashable(key) not in history.rows]
        there = list(history.rows)
        if operation == "insert" or not there:
            if free:
                history.insert(free[one % len(free)])
            continue
        key = there[one % len(there)]
        if operation == "delete":
            history.delete(key)
        elif operation == "truncate":
            history.truncate()
        elif "move" in operation and free:
            history.update(key, free[other % len(free)], toast="toast" in operation)
        elif operation == "swap" and free and len(there) > 1:
            second = there[(one + 1) % len(there)]
            detour, width = free[other % len(free)], len(kinds)
            first_key, second_key = (history.rows[k][:width] for k in (key, second))
            history.update(key, detour, toast=True)
            history.update(second, first_key)
            history.update(hashable(detour), second_key, toast=True)
        elif operation == "respell":
            same = [k for k in pool if hashable(k) == key]
            history.update(key, same[other % len(same)], toast=other % 2 == 0)
        else:
            history.update(key, toast="toast" in operation)
    return history


@dataclass
class Mirror:
    """What the driver does with the outcome of folds, on a list of rows."""

    kinds: tuple[str, ...]
    rows: list[tuple[Any, ...]] | None = None
    mark: int = 0

    def apply(self, messages: list[dict[str, Any]], first: int, random: Random) -> None:
        """Bring in a batch; what is up to the mark was brought in before."""
        revision = max(message["schema_revision"] for message in messages)
        shapes = {r: shape_of(self.kinds, r) for r in range(1, revision + 1)}
        columns = columns_of(shapes[revision])
        keyed = KeyedRows(columns, columns[: len(self.kinds)])
        buckets = random.choice((1, 2, 3, 7))
        plan = TablePlan(Decoder(columns, shapes), keyed, buckets)
        blocks = [row for part in _read(messages, first, plan, random) for row in part.to_pylist()]
        facts = Facts.of(blocks)
        write = plan_write(facts, self.mark, is_empty=self.rows is None)
        if write is Write.NOTHING:
            return
        above = _above(facts, self.mark)
        folder = Folder(keyed, columns, above, renames_in(shapes, columns))
        fold = FoldPlan(folder=folder, rows=facts.rows, buckets=buckets, is_tied=facts.moved)
        folded = _fold(blocks, fold, random)
        for key in (key for part in folded for key in _keys(part["held"], keyed)):
            # Files whose keys are all outside of these are not searched.
            assert facts.edges is None or facts.edges[0] <= key[0] <= facts.edges[1]
        self._take(write, folded, keyed)
        self.mark = facts.last

    def _take(self, write: Write, folded: list[dict[str, Any]], keyed: KeyedRows) -> None:
        before = self.rows or []
        width = len(self.kinds)
        by_key = {hashable(row[:width]): row for row in before}
        left = [] if write is Write.OVERWRITE else list(before)
        held = [key for part in folded for key in _keys(part["held"], keyed)]
        if write is Write.REPLACE:
            assert len(held) == len(set(held)), "a key is deleted twice"
            assert set(held) <= by_key.keys(), "a key is held that the mirror has not"
            left = [row for row in before if hashable(row[:width]) not in set(held)]
        for part in folded:
            left += [_row(row, keyed) for row in read_ipc(part["rows"]).to_pylist()]
            waiting = read_ipc(part["healing"]).to_pylist() if part["healing"] else []
            left += [_heal(one, keyed, by_key) for one in waiting]
        self.rows = left


def _read(
    messages: list[dict[str, Any]], first: int, plan: TablePlan, random: Random
) -> list[pa.RecordBatch]:
    """Read ranges as executors do, each of which emits blocks more than once."""
    made: list[pa.RecordBatch] = []
    maker = BlockMaker({"t": plan})
    for sequence, message in enumerate(messages, first):
        maker.add(sequence, f"cdc.t.{message['operation'].lower()}".encode(), message, 10)
        if random.random() < 0.1:
            assert maker.decode(all=True) == []
        if random.random() < 0.1:
            assert maker.decode(all=True) == []
            made += maker.emit()
            maker = random.choice((maker, BlockMaker({"t": plan})))
    assert maker.decode(all=True) == []
    return [*made, *maker.emit()]


def _fold(blocks: list[dict[str, Any]], plan: FoldPlan, random: Random) -> list[dict[str, Any]]:
    """Spread blocks over tasks, which get them in any order."""
    parts = random.randint(1, max(1, plan_spread({"t": plan}, cores=8).parts))
    tasks: dict[int, list[dict[str, Any]]] = {}
    for block in blocks:
        place = (0 if plan.is_tied else block["bucket"]) % parts
        tasks.setdefault(place, []).append(block)
    folded: list[dict[str, Any]] = []
    for some in tasks.values():
        random.shuffle(some)
        rows = [{name: one[name] for name in ("token", "first", "block")} for one in some]
        schema = pa.schema([("token", pa.string()), ("first", pa.int64()), ("block", pa.binary())])
        batches = [pa.RecordBatch.from_pylist([row], schema=schema) for row in rows]
        folded += [row for made in Folders({"t": plan.folder})(batches) for row in made.to_pylist()]
    return folded


def _keys(held: bytes | None, keyed: KeyedRows) -> list[Any]:
    """Keys that go, as a history writes them."""
    if held is None:
        return []
    table = read_ipc(held)
    parts = iter(table.columns)
    cells = []
    for column in keyed.key:
        values = next(parts).to_pylist()
        if len(keyed.aliases) > len(keyed.key):
            texts = next(parts).to_pylist()
            values = [v if t is None else t for v, t in zip(values, texts, strict=True)]
        cells.append([_plain(value, column.type.kind) for value in values])
    return [hashable(key) for key in zip(*cells, strict=True)]


def _row(row: dict[str, Any], keyed: KeyedRows) -> tuple[Any, ...]:
    texts = dict(row[TEXT_COLUMN] or ())
    return tuple(
        texts[c.name] if c.name in texts else _plain(row[c.name], c.type.kind)
        for c in keyed.columns
    )


def _heal(
    waiting: dict[str, Any], keyed: KeyedRows, mirror: dict[Any, tuple[Any, ...]]
) -> tuple[Any, ...]:
    base = mirror[hashable(_row(waiting["base"], keyed)[: len(keyed.key)])]
    kept = waiting["kept"]
    cells = zip(keyed.columns, _row(waiting["row"], keyed), base, strict=True)
    return tuple(old if column.name in kept else new for column, new, old in cells)


def _plain(value: Any, kind: str) -> Any:
    return str(value) if kind in ("date", "decimal") and value is not None else value


def _spelled(rows: Any) -> list[str]:
    """Rows to compare: NaN is NaN, and -0.0 is not 0.0 outside of a key."""
    return sorted(map(repr, rows))


STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 20), st.integers(0, 20)),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("kinds", sorted(KEYS), ids="-".join)
@thorough
@given(
    steps=STEPS,
    full=st.booleans(),
    renamed=st.integers(0, 60),
    random=st.randoms(use_true_random=False),
)
def test_any_history_folds_to_what_one_change_at_a_time_gives(
    kinds: tuple[str, ...],
    steps: list[tuple[str, int, int]],
    full: bool,
    renamed: int,
    random: Random,
) -> None:
    """After every batch, however it is cut, and if a part of it was applied before."""
    history = tell(kinds, steps, full=full, renamed=renamed)
    mirror, start = Mirror(kinds), 0
    while start < len(history.messages):
        stop = min(len(history.messages), start + random.randint(1, 30))
        # An interrupted batch is read again; the mirror may have the whole of it or none.
        again = random.choice((start, start, random.randint(0, start)))

        mirror.apply(history.messages[again:stop], again + 1, random)

        assert _spelled(mirror.rows or ()) == _spelled(history.states[stop - 1].values())
        start = stop


@pytest.mark.parametrize("kinds", sorted(KEYS), ids="-".join)
@thorough
@given(steps=STEPS, renamed=st.integers(0, 60), random=st.randoms(use_true_random=False))
def test_a_change_log_folds_over_a_snapshot_in_any_order_of_its_rows(
    kinds: tuple[str, ...], steps: list[tuple[str, int, int]], renamed: int, random: Random
) -> None:
    """Spark gives a partition's rows in any order; a snapshot was taken somewhere in between."""
    history = tell(kinds, steps, full=False, renamed=renamed)
    taken = random.randint(0, len(history.messages))
    later = history.messages[taken:]
    if not later:
        return
    revision = history.revision
    shapes = {r: shape_of(history.kinds, r) for r in range(1, revision + 1)}
    columns = columns_of(shapes[revision])
    keyed = KeyedRows(columns, columns[: len(history.kinds)])
    decoder = Decoder(columns, shapes)
    truncates = [n for n, m in enumerate(later, taken + 1) if m["operation"] == "TRUNCATE"]
    above = max(truncates, default=0)
    folder = Folder(keyed, columns, above, renames_in(shapes, columns))
    rows = [decoder.decode([n], [m]) for n, m in enumerate(later, taken + 1)]
    random.shuffle(rows)

    folded = [row for made in LogFolder(folder)(rows) for row in made.to_pylist()]

    assert rows[0].schema == log_arrow_schema(columns)
    before = list(history.states[taken - 1].values()) if taken else []
    mirror = Mirror(kinds, before)
    mirror._take(Write.OVERWRITE if truncates else Write.REPLACE, folded, keyed)
    assert _spelled(mirror.rows or ()) == _spelled(history.states[-1].values())

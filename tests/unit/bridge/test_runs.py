"""Changes that follow one another: in Python and compiled they are the same messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from bridge.native import native
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import TableFacts, shape_of
from bridge.rowcode import compiled
from bridge.rowparts import OPERATIONS, Encode, PackedRow, RowParts, row_parts
from bridge.rowsource import generated
from bridge.runs import encode_one_by_one
from schemas.codecs import MSGPACK
from tests.support import wal
from tests.support.native import both_ways, needs_native


def parts_of(relation_id: int, name: str) -> list[RowParts]:
    message = decode_message(wal.relation(relation_id, name, [("id", 20, True)]))
    shape = shape_of(cast("Relation", message), TableFacts(key=(1,)))
    return [row_parts(shape, 1, letter) for letter in OPERATIONS]


PARTS = [*parts_of(9, "a"), *parts_of(10, "b")]
TRANSACTION = b"".join(
    MSGPACK.encode(part) for part in ("commit_lsn", 9, "commit_ts", "2025", "xid", 5, "seq")
)


@dataclass
class Standing:
    """Where a transaction stands before a run."""

    ordinal: int = 3
    record: bytes = b""
    repeats: dict[bytes, int] = field(default_factory=dict)


def run(way: str, frames: list[bytes], standing: Standing) -> tuple[int, list[PackedRow]]:
    rows: list[PackedRow] = []
    make, encode = (
        (compiled, native("encode_run")) if way == "compiled" else (generated, encode_one_by_one)
    )
    codes: dict[bytes, Encode] = {parts.key: make(parts) for parts in PARTS}
    at = encode(frames, 1, codes, rows, TRANSACTION, standing)
    return at, rows


CHANGES = st.sampled_from(
    [
        wal.insert(9, ["1"]),
        wal.insert(10, ["2"]),
        wal.update(9, ["3"]),
        wal.delete(10, ["4"]),
    ]
)
OTHERS = st.sampled_from([wal.insert(9, ["x"]), wal.insert(77, ["1"]), b"", b"C", b"I\0\0\0\x09N"])
LSNS = st.integers(1, 3)


def frame(lsn: int, payload: bytes) -> bytes:
    return b"w" + lsn.to_bytes(8) + bytes(16) + payload


@both_ways
@given(
    st.lists(st.tuples(LSNS, CHANGES)),
    st.lists(st.tuples(LSNS, OTHERS), max_size=1),
    LSNS,
)
@example([(1, wal.insert(9, ["1"]))] * 3, [], 1)
def test_ids_count_the_changes_of_a_record(
    way: str,
    plain: list[tuple[int, bytes]],
    other: list[tuple[int, bytes]],
    before: int,
) -> None:
    """What a run leaves behind is what the next change, of whichever way, must know."""
    frames = [b"", *(frame(*change) for change in plain), *(frame(*change) for change in other)]
    standing = Standing(record=before.to_bytes(8), repeats={b"I\0\0\0\x09": 4})

    at, rows = run(way, frames, standing)

    record, repeats, ids = before, {b"I\0\0\0\x09": 4}, []
    for lsn, payload in plain:
        if lsn != record:
            record, repeats = lsn, {}
        count = repeats.get(payload[:5], 0)
        repeats[payload[:5]] = count + 1
        ids.append(f"{lsn:x}-" + (f"-{count}" if count else ""))
    assert at == 1 + len(plain)
    assert standing == Standing(3 + len(plain), record.to_bytes(8), repeats)
    found = [msg_id.decode() for _, msg_id, _ in rows]
    middles = ("a-insert", "b-insert", "a-update", "b-delete")
    for middle in middles:
        found = [msg_id.replace(middle, "") for msg_id in found]
    assert found == ids
    decoded = [cast("dict[str, object]", MSGPACK.decode(body)) for _, _, body in rows]
    assert [fields["seq"] for fields in decoded] == list(range(3, 3 + len(rows)))


@needs_native
@given(st.lists(st.binary() | st.builds(frame, LSNS, CHANGES)))
def test_the_compiled_way_survives_any_frames(frames: list[bytes]) -> None:
    at, rows = run("compiled", [b"", *frames], Standing())

    assert len(rows) == at - 1

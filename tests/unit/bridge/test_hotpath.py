"""The short way gives what the long way gives, or nothing: in Python and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.errors import MalformedWal
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import Encoder, TableFacts, shape_of
from bridge.rowcode import compiled
from bridge.rowparts import OPERATIONS, Encode, PackedRow, RowParts, row_parts
from bridge.rowsource import generated
from bridge.transactions import Placed, TransactionPart
from schemas.codecs import MSGPACK
from schemas.events import Place
from schemas.shapes import TableShape
from tests.property.cases import JSON
from tests.support import wal
from tests.support.native import both_ways, needs_native

LSN, SEQ, REPEAT = 0x1234, 7, 2
PLACE = Place(lsn=LSN, commit_lsn=99, commit_ts="2025-01-01T", xid=5, seq=SEQ, last=False)
TRANSACTION = b"".join(
    MSGPACK.encode(part) for part in ("commit_lsn", 99, "commit_ts", "2025-01-01T", "xid", 5, "seq")
)

# A column of every kind of packer, with texts PostgreSQL writes for it.
COLUMNS: list[tuple[str, int, st.SearchStrategy[str]]] = [
    ("id", 20, st.integers(-(2**63), 2**63 - 1).map(str)),
    ("ok", 16, st.sampled_from(["t", "f"])),
    ('name "é"', 25, st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
    (
        "long",
        1043,
        st.sampled_from([0, 31, 32, 255, 256, 65_535, 65_536]).map(lambda size: "x" * size),
    ),
    ("amount", 1700, st.decimals(allow_nan=True, places=3).map(str)),
    ("share", 701, st.floats().map(repr)),
    ("born", 1082, st.dates().map(str) | st.sampled_from(["infinity", "0044-03-15 BC"])),
    (
        "at",
        1184,
        st.sampled_from(["2025-12-08 13:45:21.5+00", "-infinity", "10000-01-01 00:00:00+00"]),
    ),
    ("local", 1114, st.datetimes().map(str) | st.sampled_from(["infinity", "0044-03-15 00:00 BC"])),
    ("raw", 17, st.binary().map(lambda raw: f"\\x{raw.hex()}")),
    ("doc", 3802, JSON | st.sampled_from(['{"a": [1, 2.5]}', '{"a": 2.50}', "null"])),
    ("list", 1007, st.sampled_from(["{1,NULL,3}", "{}", "[0:1]={1,2}", "{{1},{2}}"])),
]
DESCRIBED = cast(
    "Relation",
    decode_message(wal.relation(9, "t", [(name, oid, name == "id") for name, oid, _ in COLUMNS])),
)
SHAPE = shape_of(DESCRIBED, TableFacts(key=(1,)))
LONG = Encoder(SHAPE, 3, "msgpack")
MAKERS: Mapping[str, Callable[[RowParts], Encode]] = {"python": generated, "compiled": compiled}

ROWS = st.tuples(*(texts | st.none() | st.just(b"u") for _, _, texts in COLUMNS))
PLAIN = (
    "1",
    "t",
    "a",
    "b",
    "1.5",
    "0.5",
    "2025-01-01",
    "2025-12-08 13:45:21+00",
    "2025-12-08 13:45:21.5",
    "\\x00",
    "1",
    "{1}",
)


CHANGES: dict[str, Callable[[Sequence[wal.Column]], bytes]] = {
    "I": lambda row: wal.insert(9, row),
    "U": lambda row: wal.update(9, row),
    "D": lambda row: wal.delete(9, row),
}


def canonical(fields: Mapping[str, object]) -> bytes:
    """Make maps comparable byte by byte, where NaN equals NaN and 0.0 is not -0.0."""
    return MSGPACK.encode(dict(sorted(fields.items())))


def frame(payload: bytes) -> bytes:
    return b"w" + LSN.to_bytes(8) + bytes(16) + payload


@cache
def row_codes(way: str, shape: TableShape) -> dict[bytes, Encode]:
    made = [row_parts(shape, 3, letter) for letter in OPERATIONS]
    return {parts.key: MAKERS[way](parts) for parts in made}


def hot(way: str, payload: bytes, shape: TableShape = SHAPE) -> PackedRow | None:
    encode = row_codes(way, shape).get(payload[:8])
    return encode and encode(frame(payload), LSN.to_bytes(8), SEQ, REPEAT, TRANSACTION)


def long(payload: bytes) -> dict[str, object]:
    message = cast("TransactionPart", decode_message(payload))
    return LONG.encode(Placed(message, PLACE, REPEAT)).to_map()


@both_ways
@given(row=ROWS, kind=st.sampled_from("IUD"))
@example(row=PLAIN, kind="I")
def test_the_short_way_equals_the_long_way(
    way: str, row: tuple[wal.Column, ...], kind: str
) -> None:
    payload = CHANGES[kind](row)

    packed = hot(way, payload)

    if packed is not None:
        subject, msg_id, body = packed
        assert canonical(MSGPACK.decode(body)) == canonical(long(payload))
        assert msg_id.decode() == long(payload)["msg_id"]
        assert subject.decode() == long(payload)["subject"]


@both_ways
@pytest.mark.parametrize(
    ("payload", "is_hot"),
    [
        (wal.insert(9, PLAIN), True),
        (wal.insert(9, [None] * len(PLAIN)), True),
        (wal.insert(9, [*PLAIN[:2], None, "y" * 300, *PLAIN[4:]]), True),
        (wal.insert(9, [*PLAIN[:2], "", "t", *PLAIN[4:]]), True),
        (wal.update(9, PLAIN), True),
        (wal.delete(9, PLAIN), True),
        (wal.update(9, PLAIN, PLAIN), False),
        (wal.update(9, PLAIN, PLAIN, "O"), False),
        (wal.delete(9, PLAIN, "O"), False),
        (wal.update(9, [*PLAIN[:2], b"u", None, b"u", *PLAIN[5:]]), True),
        (wal.update(9, [b"u", *PLAIN[1:]]), True),
        (wal.insert(9, [*PLAIN[:6], "infinity", *PLAIN[7:]]), False),
        (wal.insert(9, ["x", *PLAIN[1:]]), False),
        (wal.insert(9, PLAIN[:-1]), False),
        (wal.insert(9, PLAIN) + b"!", False),
        (wal.insert(9, PLAIN)[:-1], False),
    ],
)
def test_what_is_not_plain_goes_the_long_way(way: str, payload: bytes, is_hot: bool) -> None:
    """The long way knows old rows, values without native form and every error; the short none."""
    assert (hot(way, payload) is not None) == is_hot


@needs_native
@pytest.mark.parametrize("unchanged", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kind", "IUD")
@pytest.mark.parametrize(
    ("doc", "items"), [('{"a": 2.50}', "{1}"), ("1", "[0:1]={1,2}"), ("null", "[0:1]={1,2}")]
)
def test_values_that_are_text_stay_on_the_short_way(
    kind: str, unchanged: tuple[int, ...], doc: str, items: str
) -> None:
    """Documents with a price in them are common, and the long way costs eight times as much."""
    row: list[wal.Column] = [*PLAIN[:-2], doc, items]
    for column in unchanged:
        row[column] = b"u"
    payload = CHANGES[kind](row)

    packed = hot("compiled", payload)

    assert packed is not None
    assert "text" in MSGPACK.decode(packed[2])
    assert canonical(MSGPACK.decode(packed[2])) == canonical(long(payload))


@both_ways
@given(row=ROWS, data=st.data())
@example(row=PLAIN, data=None)
def test_sizes_that_do_not_fit_are_never_packed(
    way: str, row: tuple[wal.Column, ...], data: st.DataObject | None
) -> None:
    """A row is split at its marks: a size that lies must be seen, also where another makes up."""
    payload = bytearray(wal.insert(9, row))
    if data is None:
        # The sizes of `name` and `long`, which are copied as they are.
        payload[24], payload[30] = payload[24] + 1, payload[30] - 1
    else:
        place = data.draw(st.integers(8, len(payload) - 1))
        payload[place] = data.draw(st.integers(0, 255))
    packed = hot(way, bytes(payload))
    if packed is not None:
        try:
            expected = long(bytes(payload))
        except MalformedWal as error:
            # PostgreSQL converts to UTF-8; that it does is not checked once more.
            if "not UTF-8" not in str(error):
                raise
            return
        assert canonical(MSGPACK.decode(packed[2])) == canonical(expected)


@both_ways
@given(data=st.binary())
def test_any_bytes_are_packed_or_left_alone(way: str, data: bytes) -> None:
    """It must not die of what the decoder would name."""
    for kind in (b"I", b"U", b"D"):
        hot(way, kind + bytes([0, 0, 0, 9]) + b"N\0\x0c" + data)


WIDE = 70
WIDE_DESCRIBED = cast(
    "Relation",
    decode_message(
        wal.relation(9, "wide", [(f"c{n}", (20, 25)[n % 2], n == 0) for n in range(WIDE)])
    ),
)
WIDE_SHAPE = shape_of(WIDE_DESCRIBED, TableFacts(key=(1,)))


@both_ways
@given(
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=35, max_size=35),
    text=st.sampled_from(["", "x" * 31, "x" * 32, "x" * 70_000]),
    unchanged=st.sets(st.integers(1, WIDE - 1)),
)
@example(numbers=[2**n - 1 for n in range(35)], text="", unchanged=set())
@example(numbers=[-(2**n) for n in range(29, 64)], text="y", unchanged=set(range(1, 17)))
def test_wide_and_long_rows_have_room(
    way: str, numbers: list[int], text: str, unchanged: set[int]
) -> None:
    """More columns than a short header counts, and more bytes than fit on a stack."""
    values = [str(number) if n % 2 else text for number in numbers for n in (1, 0)]
    row: list[wal.Column] = [b"u" if n in unchanged else v for n, v in enumerate(values)]
    payload = wal.update(9, row)
    message = cast("TransactionPart", decode_message(payload))
    expected = Encoder(WIDE_SHAPE, 3, "msgpack").encode(Placed(message, PLACE, REPEAT)).to_map()

    packed = hot(way, payload, WIDE_SHAPE)

    assert packed is not None
    assert canonical(MSGPACK.decode(packed[2])) == canonical(expected)


@both_ways
@pytest.mark.parametrize(
    ("lsn", "repeat", "expected"),
    [
        (0, 0, b"0-t-insert"),
        (0x1, 1, b"1-t-insert-1"),
        (0xABCDEF0123456789, 0, b"abcdef0123456789-t-insert"),
        (0x10, 1_234_567_890, b"10-t-insert-1234567890"),
    ],
)
def test_ids_are_the_lsn_in_hexadecimal(way: str, lsn: int, repeat: int, expected: bytes) -> None:
    payload = wal.insert(9, PLAIN)
    encode = row_codes(way, SHAPE)[payload[:8]]

    packed = encode(frame(payload), lsn.to_bytes(8), SEQ, repeat, TRANSACTION)

    assert packed is not None
    assert packed[1] == expected
    fields = cast("dict[str, object]", MSGPACK.decode(packed[2]))
    assert (fields["msg_id"], fields["lsn"]) == (expected.decode(), lsn)

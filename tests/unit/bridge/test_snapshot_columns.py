"""Columns at once and values one by one come to the same bytes, whatever a column holds."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import MalformedWal
from bridge.packing import packer_for
from bridge.protocol.copylines import Lines
from bridge.snapshot.columns import Block, BlockPacker, cut_lines, plain_packer
from schemas.shapes import Column
from schemas.types import TEXT, ContractType, Kind
from tests.property.cases import HARD_JSON, JSON
from tests.support.native import both_ways, needs_native
from tests.unit.bridge.test_snapshot_chunks import escape

INTEGERS = st.integers(-(2**63), 2**63 - 1).map(str)
DATES = st.dates().map(date.isoformat) | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"]
)
MOMENTS = st.datetimes().map(lambda at: datetime.isoformat(at, " "))
ODD_MOMENTS = [
    *("infinity", "-infinity", "10000-01-01 00:00:00", "0044-03-15 00:00:00 BC"),
    "99999-12-31 23:59:59.9",
]
VALUES: dict[Kind, st.SearchStrategy[str]] = {
    "bool": st.sampled_from("tf"),
    "int64": INTEGERS,
    "decimal": st.decimals(allow_nan=False, allow_infinity=False).map(Decimal.__str__),
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    "float64": st.floats().map(repr),
    "json": JSON | st.sampled_from(HARD_JSON),
    "date": DATES,
    "timestamp": MOMENTS | st.sampled_from(ODD_MOMENTS),
    "timestamptz": MOMENTS.map(lambda at: f"{at}+00")
    | st.sampled_from(
        [odd.replace(" BC", "+00 BC") if "BC" in odd else f"{odd}+00" for odd in ODD_MOMENTS[2:]]
        + ODD_MOMENTS[:2]
    ),
}


def column(name: str, kind: Kind) -> Column:
    return Column(
        name=name,
        position=1,
        data_type="",
        type_oid=0,
        type_modifier=-1,
        type=ContractType(kind),
    )


def pack(way: str, columns: list[Column], lines: list[bytes]) -> Block:
    packer = BlockPacker(columns)
    return (packer.pack_columns if way == "python" else packer.pack)(Lines.of(lines))


def pack_one(kind: Kind, text: str | None) -> bytes:
    """Pack a value as a single change carries it; as text, where it has no native form."""
    if text is None:
        return b"\xc0"
    packed = packer_for(ContractType(kind))(text.encode())
    return packed if packed is not None else packer_for(TEXT)(text.encode()) or b""


@both_ways
@pytest.mark.parametrize("kind", list(VALUES))
@given(data=st.data())
def test_a_column_at_once_is_what_its_values_are_one_by_one(
    way: str, kind: Kind, data: st.DataObject
) -> None:
    """NULL, escapes, infinity and BC among plain values change neither these nor those."""
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=12))
    lines = [(rb"\N" if v is None else escape(v)) + b"\t7\n" for v in values]

    block = pack(way, [column("a", kind), column("b", "int64")], lines)

    head = b"\x82" + msgpack.packb("a")
    seven = msgpack.packb("b") + b"\x07"
    assert block.body == b"".join(head + pack_one(kind, value) + seven for value in values)
    plain = packer_for(ContractType(kind))
    odd = [n for n, v in enumerate(values) if v is not None and plain(v.encode()) is None]
    assert block.texts == {number: ["a"] for number in odd}
    assert block.rows == len(values)


EVEN_VALUES: dict[Kind, st.SearchStrategy[str]] = {
    "int64": st.sampled_from(
        [0, -1, *(2**bits + step for bits in (7, 8, 16, 32, 62) for step in (-1, 0, 1))]
    ).map(str),
    "timestamp": st.sampled_from(
        ["2025-01-01 00:00:00", "9999-12-31 23:59:59", "10000-01-01 00:00:0", "44-03-15 00:00:0 BC"]
    ),
    "timestamptz": st.sampled_from(
        ["2025-01-01 00:00:00+00", "9999-12-31 23:59:59+00", "2025-01-01 00:00:00+01",
         "2025-01-01 00:00:00-00", "0044-03-15 00:00:00 BC", "2025-01-0100:00:00 +00"]
    ),
}  # fmt: skip


@both_ways
@pytest.mark.parametrize("kind", list(EVEN_VALUES))
@given(data=st.data())
def test_values_of_one_size_are_cut_where_they_end(
    way: str, kind: Kind, data: st.DataObject
) -> None:
    """What is changed in all of them at once must be there in every one; also past a cut's lot."""
    few = data.draw(st.lists(EVEN_VALUES[kind], min_size=1, max_size=3))
    values = few * data.draw(st.sampled_from([1, 21, 64, 65]))

    block = pack(way, [column("a", kind)], [v.encode() + b"\n" for v in values])

    assert block.body == b"".join(b"\x81\xa1a" + pack_one(kind, value) for value in values)


@both_ways
@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_text_of_any_length_has_its_header(way: str, size: int) -> None:
    block = pack(way, [column("a", "text")], [b"short\n", b"x" * size + b"\n"])

    assert block.body == msgpack.packb({"a": "short"}) + msgpack.packb({"a": "x" * size})


def test_rows_without_columns_are_empty_maps() -> None:
    assert BlockPacker([]).pack(Lines.of([b"\n", b"\n"])).body == b"\x80\x80"


@pytest.mark.parametrize(
    "lines",
    [
        [b"1\t2\n", b"3\n"],
        [b"1\t2\t3\n", b"4\n"],
        [b"1\n", b"2\t3\t4\n"],
        [b"1\t2"],
        [b"1\t2\n\n"],
        [b"1\t2\n3"],
        [b""],
    ],
)
def test_a_line_with_other_values_than_belong_there_is_refused(lines: list[bytes]) -> None:
    """One value too many here and one too few there must not shift the rows between them."""
    with pytest.raises(MalformedWal):
        cut_lines(Lines.of(lines), 2)


@needs_native
@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        (b"1\tx\t\n\t", True),
        (b"\\N\t\\\\\\t\t\n\t", True),
        (b"1\t\t\n\t", True),
        (b"1\tx\t\n", False),
        (b"1\tx\t\n\t2", False),
        (b"1\tx\ty\t\n\t", False),
        (b"1\t\n\t", False),
        (b"1\tx", False),
        (b"1\t\\q\t\n\t", False),
        (b"1\t\\", False),
        (b"1\tx\\\t\n\t", False),
        (b"one\tx\t\n\t", False),
        (b"", False),
    ],
)
def test_the_compiled_way_takes_plain_lines_and_leaves_all_others(
    text: bytes, is_plain: bool
) -> None:
    pack_plain = plain_packer([column("a", "int64"), column("b", "text")])

    assert (pack_plain(text, 1) is not None) == is_plain
    assert pack_plain(text, 2) is None
    assert pack_plain(text, -1) is None


@needs_native
@given(st.binary(), st.integers(0, 4))
def test_the_compiled_way_survives_any_bytes(text: bytes, count: int) -> None:
    pack_plain = plain_packer([column("a", "int64"), column("b", "float64"), column("c", "text")])

    for data in (text, b"1\t2.5\t" + text + b"\t\n\t"):
        pack_plain(data, count)


def test_what_a_value_should_have_been_is_said() -> None:
    with pytest.raises(MalformedWal, match=r"column a .* b'one'"):
        BlockPacker([column("a", "int64")]).pack(Lines.of([b"1\n", b"one\n"]))

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
from bridge.snapshot.columns import BlockPacker, cut_lines
from schemas.shapes import Column
from schemas.types import TEXT, ContractType, Kind
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


def pack_one(kind: Kind, text: str | None) -> bytes:
    """Pack a value as a single change carries it; as text, where it has no native form."""
    if text is None:
        return b"\xc0"
    packed = packer_for(ContractType(kind))(text.encode())
    return packed if packed is not None else packer_for(TEXT)(text.encode()) or b""


@pytest.mark.parametrize("kind", list(VALUES))
@given(data=st.data())
def test_a_column_at_once_is_what_its_values_are_one_by_one(
    kind: Kind, data: st.DataObject
) -> None:
    """NULL, escapes, infinity and BC among plain values change neither these nor those."""
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=12))
    lines = [(rb"\N" if v is None else escape(v)) + b"\t7\n" for v in values]

    block = BlockPacker([column("a", kind), column("b", "int64")]).pack(lines)

    head = b"\x82" + msgpack.packb("a")
    seven = msgpack.packb("b") + b"\x07"
    assert block.body == b"".join(head + pack_one(kind, value) + seven for value in values)
    plain = packer_for(ContractType(kind))
    odd = [n for n, v in enumerate(values) if v is not None and plain(v.encode()) is None]
    assert block.texts == {number: ["a"] for number in odd}
    assert block.rows == len(values)


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_text_of_any_length_has_its_header(size: int) -> None:
    block = BlockPacker([column("a", "text")]).pack([b"short\n", b"x" * size + b"\n"])

    assert block.body == msgpack.packb({"a": "short"}) + msgpack.packb({"a": "x" * size})


def test_rows_without_columns_are_empty_maps() -> None:
    assert BlockPacker([]).pack([b"\n", b"\n"]).body == b"\x80\x80"


@pytest.mark.parametrize(
    "lines",
    [
        [b"1\t2\n", b"3\n"],
        [b"1\t2\t3\n", b"4\n"],
        [b"1\n", b"2\t3\t4\n"],
        [b"1\t2"],
        [b"1\t2\n\n"],
        [b""],
    ],
)
def test_a_line_with_other_values_than_belong_there_is_refused(lines: list[bytes]) -> None:
    """One value too many here and one too few there must not shift the rows between them."""
    with pytest.raises(MalformedWal):
        cut_lines(b"".join(lines), len(lines), 2)


def test_what_a_value_should_have_been_is_said() -> None:
    with pytest.raises(MalformedWal, match=r"column a .* b'one'"):
        BlockPacker([column("a", "int64")]).pack([b"1\n", b"one\n"])

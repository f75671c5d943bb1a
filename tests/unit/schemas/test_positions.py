"""WAL positions: integers that compare, in the form people read."""

from __future__ import annotations

import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.positions import ORIGIN, Lsn, Position

lsns = st.integers(0, 2**64 - 1)


def test_an_lsn_reads_as_postgresql_writes_it() -> None:
    """People compare it with pg_lsn in psql, so it must look the same."""
    assert str(Lsn(0x191BFD0)) == "0/191BFD0"
    assert str(Lsn(0x16_B374D848)) == "16/B374D848"
    assert Lsn.parse("16/b374d848") == 0x16_B374D848


@given(lsns)
def test_every_lsn_round_trips_through_its_readable_form(value: int) -> None:
    """An operator's copy and paste must name the same byte."""
    assert Lsn.parse(str(Lsn(value))) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "0", "0/", "/0", "0/0/0", "g/0", "-1/0", "+1/0", "0x1/2", "1_0/0", " 0/0"),
        *("0/0\n", "100000000/0", "0/100000000", "\N{ARABIC-INDIC DIGIT THREE}/0"),
    ],
)
def test_what_postgresql_would_not_write_is_refused(text: str) -> None:
    """A typing error taken for a position would skip or repeat WAL."""
    with pytest.raises(ValueError, match="not a WAL position"):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_position_outside_64_bits_is_refused(value: int) -> None:
    """The protocol has eight bytes for it."""
    with pytest.raises(ValueError, match="64 bits"):
        Lsn(value)


@given(lsns)
def test_an_lsn_goes_over_the_wire_as_a_plain_integer(value: int) -> None:
    """Consumers compare it as a number, in any language."""
    assert msgpack.unpackb(msgpack.packb(Lsn(value))) == value
    assert json.loads(json.dumps(Lsn(value))) == value


@given(st.lists(st.builds(Position, lsns, st.integers(0, 2**31)), min_size=2))
def test_positions_order_by_commit_then_ordinal(positions: list[Position]) -> None:
    """Commit order is stream order; the LSN of a change alone is not."""
    expected = sorted(positions, key=lambda p: (p.commit_lsn, p.ordinal))

    assert sorted(positions) == expected


@given(st.builds(Position, lsns, st.integers(0, 2**31)))
def test_the_origin_is_before_every_change(position: Position) -> None:
    """A consumer that has nothing starts there, the first change of position (0, 0) included."""
    assert position > ORIGIN

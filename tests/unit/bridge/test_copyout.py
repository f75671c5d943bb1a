"""The answer to a COPY: whatever way the network cuts it, its lines and its end are the same."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import MalformedWal
from bridge.protocol.answers import query_message
from bridge.protocol.copyout import BYTES_AT_ONCE, LINES_AT_ONCE, CopyOut
from tests.unit.bridge.test_snapshot_chunks import escape


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


BEGIN = message(b"H", b"\0\0\2\0\0\0\0")
END = message(b"c") + message(b"C", b"COPY 2\0") + message(b"Z", b"T")
# A setting whose value ends like the header of a row begins, in the middle of it all.
SETTING = message(b"S", b"TimeZone\0Iceland\0")
NOTICE = message(b"N", b"SNOTICE\0C00000\0Mit is said\0\0")
FAILURE = message(b"E", b"SERROR\0VERROR\0C72000\0Msnapshot too old\0\0")

VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
# Rows whose length, as bytes of the header, is a newline, a tab, a backslash, a `d`, or of 3 bytes.
SIZES = (0, 1, 5, 6, 87, 88, 96, 261, 0x64FC, 0x64FB, 0xFFFA, 0xFFFB, 0xFFFC, 0x1_0000, 0x6_4000)
ROWS = st.builds(lambda text: escape(text) + b"\n", VALUES) | st.sampled_from(
    [b"d" * size + b"\n" for size in SIZES]
)


def rows(lines: Iterable[bytes]) -> list[bytes]:
    return [message(b"d", line) for line in lines]


def feed(copy: CopyOut, pieces: Iterable[bytes]) -> list[bytes]:
    return [line for piece in pieces for lines in copy.feed(piece) for line in lines.each()]


def in_pieces(wire: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = sorted({0, len(wire), *cuts})
    return [wire[start:end] for start, end in pairwise(at)]


def test_cut_at_every_byte_it_is_the_same() -> None:
    """Headers, lengths and the end may all arrive in two halves."""
    lines = [b"1\tone\n", b"\\N\t\\\\d\\n\n", b"\n", b"d\n", b"d" * 96 + b"\n", b"2\ttwo\n"]
    wire = BEGIN + b"".join(rows(lines[:3])) + SETTING + b"".join(rows(lines[3:])) + NOTICE + END

    for cut in range(len(wire) + 1):
        copy = CopyOut()

        assert feed(copy, in_pieces(wire, [cut])) == lines, cut
        assert copy.is_over
        assert copy.failure is None


def test_one_byte_at_a_time_no_line_waits_for_the_next() -> None:
    copy = CopyOut()
    feed(copy, [BEGIN])

    arrived = [feed(copy, [bytes([byte])]) for byte in b"".join(rows([b"1\n", b"2\n"]))]

    assert [line for lines in arrived for line in lines] == [b"1\n", b"2\n"]
    assert arrived[-1] == [b"2\n"]


@given(
    parts=st.lists(ROWS | st.sampled_from([SETTING, NOTICE]), max_size=40),
    data=st.data(),
)
def test_any_rows_in_any_pieces_come_out_as_they_are(
    parts: list[bytes], data: st.DataObject
) -> None:
    """Rows of any length and text, and messages that are no rows between them."""
    lines = [part for part in parts if part not in (SETTING, NOTICE)]
    wire = BEGIN + b"".join(p if p in (SETTING, NOTICE) else message(b"d", p) for p in parts) + END
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=20))
    copy = CopyOut()

    assert feed(copy, in_pieces(wire, cuts)) == lines
    assert copy.is_over


@pytest.mark.parametrize("size", [1, 50, 2_000, 70_000, 2 * BYTES_AT_ONCE])
def test_many_lines_are_handed_on_in_parts(size: int) -> None:
    """Between two parts everything else in the bridge has its turn."""
    line = b"x" * size + b"\n"
    count = max(3, (1 << 20) // size)
    copy = CopyOut()

    parts = copy.feed(BEGIN + b"".join(rows([line])) * count)

    assert [line for part in parts for line in part.each()] == [line] * count
    if size < 1 << 16:
        assert max(part.count for part in parts) <= LINES_AT_ONCE
        assert max(len(part.text) for part in parts) <= BYTES_AT_ONCE + 2 * len(line)


def test_an_error_in_the_middle_is_told_with_its_fields() -> None:
    wire = BEGIN + b"".join(rows([b"1\n", b"2\n"])) + FAILURE

    for cut in range(len(BEGIN), len(wire)):
        copy = CopyOut()
        feed(copy, in_pieces(wire, [cut]))

        assert copy.failure is not None
        assert (copy.failure["C"], copy.failure["M"]) == ("72000", "snapshot too old")
        assert not copy.is_over


def test_without_its_end_it_is_not_over() -> None:
    copy = CopyOut()

    feed(copy, [BEGIN, *rows([b"1\n"]), message(b"c"), message(b"C", b"COPY 1\0")])

    assert not copy.is_over


@pytest.mark.parametrize(
    "wire",
    [
        message(b"d", b"1\n"),
        message(b"H", b"\1\0\1\0\0"),
        BEGIN + BEGIN,
        BEGIN + message(b"D", b"\0\0"),
        BEGIN + b"d\0\0\0\3",
        BEGIN + b"d\xff\xff\xff\xff",
        b"HTTP/1.1 400",
    ],
    ids=["row first", "binary", "twice", "a result", "too short", "too long", "not PostgreSQL"],
)
def test_what_is_no_answer_to_copy_is_refused(wire: bytes) -> None:
    with pytest.raises(MalformedWal):
        CopyOut().feed(wire)


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_any_bytes_parse_or_raise_the_one_error(pieces: list[bytes]) -> None:
    copy = CopyOut()
    try:
        feed(copy, [BEGIN, *pieces])
    except MalformedWal:
        return
    assert copy.is_over or copy.failure is not None or copy.feed(b"") == []


def test_a_query_is_framed_as_the_protocol_says() -> None:
    assert query_message("SELECT 'é'") == b"Q\0\0\0\x10SELECT '\xc3\xa9'\0"

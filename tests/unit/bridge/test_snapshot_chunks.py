"""Chunks: COPY's lines to bodies, and how many rows one message takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import MalformedWal
from bridge.protocol.copylines import Lines
from bridge.snapshot.bodies import bodies_for
from bridge.snapshot.chunks import HEADROOM_BYTES, MAX_ROWS, Chunk, Chunker, ctid_ranges
from bridge.snapshot.copytext import split_line, unescape
from schemas.codecs import CODECS
from schemas.names import TableName
from schemas.shapes import Column
from schemas.snapshots import SnapshotName
from schemas.types import ContractType
from schemas.values import Format

NAME = SnapshotName("s1", TableName("public", "users"), 7, 5)
COLUMNS = (
    Column(name="id", position=1, data_type="integer", type_oid=23, type_modifier=-1,
           type=ContractType("int32")),
    Column(name="born", position=2, data_type="date", type_oid=1082, type_modifier=-1,
           type=ContractType("date")),
)  # fmt: skip
ESCAPES = {
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
}

formats = pytest.mark.parametrize("format", list(CODECS))


def escape(text: str) -> bytes:
    """Write a value as PostgreSQL's COPY does."""
    return "".join(ESCAPES.get(char, char) for char in text).encode()


@given(st.lists(st.none() | st.text(), min_size=1))
def test_any_line_reads_back(values: list[str | None]) -> None:
    line = b"\t".join(rb"\N" if value is None else escape(value) for value in values) + b"\n"

    read = split_line(line, len(values))

    assert [None if value is None else value.decode() for value in read] == values


def test_a_backslash_and_an_n_are_not_null() -> None:
    assert split_line(b"\\\\N\t\\N\n", 2) == [rb"\N", None]


def test_a_table_without_columns_has_rows() -> None:
    assert split_line(b"\n", 0) == []
    assert split_line(b"\n", 1) == [b""]


@pytest.mark.parametrize("line", [b"", b"1\t2", b"1\n", b"1\t2\t3\n", b"\\x41\t1\n", b"1\t\\\n"])
def test_what_copy_does_not_write_is_refused(line: bytes) -> None:
    """A line cut short or an unknown escape must never become a value."""
    with pytest.raises(MalformedWal):
        split_line(line, 2)


@given(st.binary())
def test_any_bytes_unescape_or_raise_the_one_error(field: bytes) -> None:
    try:
        unescape(field)
    except MalformedWal:
        assert b"\\" in field


def chunks_of(
    format: Format, lines: Sequence[bytes], limit: int = 10_000, max_rows: int = MAX_ROWS
) -> list[Chunk]:
    chunker = Chunker(bodies_for(COLUMNS, format).block, limit, max_rows)
    added = chunker.add(Lines.of(lines)) if lines else ()
    return [*added, *chunker.rest()]


@formats
def test_a_chunk_says_which_values_are_text(format: Format) -> None:
    """Ordinals are those of the chunk, whatever block a row came in."""
    chunker = Chunker(bodies_for(COLUMNS, format).block, 10_000)
    blocks = ([b"1\t2024-02-29\n", b"2\t0044-03-15 BC\n"], [b"3\t\\N\n", b"\\N\tinfinity\n"])
    for lines in blocks:
        assert list(chunker.add(Lines.of(lines))) == []
    (chunk,) = chunker.rest()

    body = bodies_for(COLUMNS, format).chunk(NAME.chunk_head(0, 3), chunk.blocks)

    fields = CODECS[format].decode(body)
    assert fields["data"] == [
        {"id": 1, "born": "2024-02-29"},
        {"id": 2, "born": "0044-03-15 BC"},
        {"id": 3, "born": None},
        {"id": None, "born": "infinity"},
    ]
    assert fields["text"] == {"1": ["born"], "3": ["born"]}
    assert (fields["chunk"], fields["lsn"], fields["schema_revision"]) == (0, 7, 3)


@formats
def test_text_that_its_type_does_not_explain_is_refused(format: Format) -> None:
    """A value is never skipped or guessed."""
    with pytest.raises(MalformedWal, match="id"):
        bodies_for(COLUMNS, format).block(Lines.of([b"1\t2024-02-29\n", b"one\t2024-02-29\n"]))


@formats
@pytest.mark.parametrize("lines", [[b"1\t2024-02-29\n2\t2024-02-29\n"], [b"1\t2024-02-29"]])
def test_lines_that_are_not_one_each_are_refused(format: Format, lines: list[bytes]) -> None:
    with pytest.raises(MalformedWal):
        bodies_for(COLUMNS, format).block(Lines.of(lines))


@formats
@given(
    sizes=st.lists(st.integers(0, 400), max_size=60),
    max_rows=st.integers(1, 10),
    odd=st.booleans(),
)
def test_chunks_hold_every_row_in_order_and_keep_to_their_limits(
    format: Format, sizes: list[int], max_rows: int, odd: bool
) -> None:
    """Only a row that is alone may be larger than a message."""
    limit = 1_000
    # A date has no native form that long, so an odd one is text and has to be named.
    lines = [b"%d\t%b\n" % (n, b"x" * (s + 11) if odd else b"\\N") for n, s in enumerate(sizes)]

    chunks = chunks_of(format, lines, limit, max_rows)

    assert all(chunk.rows <= max_rows for chunk in chunks)
    assert sum(chunk.rows for chunk in chunks) == len(sizes)
    assert all(chunk.size <= limit or chunk.rows == 1 for chunk in chunks)
    found = []
    for chunk in chunks:
        body = bodies_for(COLUMNS, format).chunk(NAME.chunk_head(0, 1), chunk.blocks)
        assert len(body) <= chunk.size + HEADROOM_BYTES // 2
        found += [row["id"] for row in CODECS[format].decode(body)["data"]]
    assert found == list(range(len(sizes)))


@given(st.integers(0, 10_000), st.integers(1, 16))
def test_ranges_of_pages_are_the_whole_table_once(pages: int, readers: int) -> None:
    ranges = ctid_ranges(pages, readers)

    assert ranges[0][0] == 0
    assert ranges[-1][1] is None
    assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
    assert all(end is None or end > start for start, end in ranges)
    assert len(ranges) <= readers


@formats
def test_names_of_text_values_count_towards_a_chunks_size(format: Format) -> None:
    """A chunk is filled by its size; what it does not count would exceed max_payload."""
    dates = tuple(replace(COLUMNS[1], name=f"born{n}", position=n + 2) for n in range(8))
    bodies = bodies_for((COLUMNS[0], *dates), format)
    chunker = Chunker(bodies.block, 1_000_000)
    for n in range(1_000):
        assert list(chunker.add(Lines.of([b"%d%b\n" % (n, b"\t0044-03-15 BC" * 8)]))) == []

    (chunk,) = chunker.rest()

    body = bodies.chunk(NAME.chunk_head(0, 1), chunk.blocks)
    assert len(body) <= chunk.size + 200

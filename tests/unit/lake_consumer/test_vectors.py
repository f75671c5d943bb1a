"""Deletion vectors must be what Iceberg writes, or readers skip the wrong rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from lake_consumer.iceberg.vectors import (
    MalformedVector,
    decode_vector,
    encode_vector,
    write_puffin,
)

POSITIONS = st.sets(st.integers(0, 2**34), min_size=1, max_size=50)


@given(POSITIONS)
def test_a_vector_survives_its_bytes(positions: set[int]) -> None:
    """The rows that were gone before a batch are gone after it."""
    assert set(decode_vector(encode_vector(BitMap64(positions)))) == positions


def test_a_vector_is_what_icebergs_specification_says() -> None:
    """Length, magic and checksum are big, big and big; what is inside is little-endian."""
    data = encode_vector(BitMap64([1]))

    assert data[:8] == bytes.fromhex("00000022d1d33964")
    assert len(data) == 4 + 0x22 + 4


def test_a_puffin_file_is_read_by_another_library() -> None:
    """Places count from the file's begin, and several data files share it."""
    vectors = {"file:/a.parquet": BitMap64([0, 5, 70_000]), "file:/b.parquet": BitMap64([2])}

    data, places = write_puffin(vectors)

    found = {path: rows.to_pylist() for path, rows in PuffinFile(data).to_vector().items()}
    assert found == {"file:/a.parquet": [0, 5, 70_000], "file:/b.parquet": [2]}
    for path, rows in vectors.items():
        blob = places[path]
        assert decode_vector(data[blob.offset : blob.offset + blob.size]) == rows
        assert blob.rows == len(rows)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_vector_or_refused(data: bytes) -> None:
    """A vector that was cut off must not bring deleted rows back."""
    with pytest.raises(MalformedVector):
        decode_vector(data)


@given(POSITIONS, st.data())
def test_a_vector_with_one_wrong_byte_is_refused(positions: set[int], data: st.DataObject) -> None:
    """The checksum is over everything that counts."""
    good = encode_vector(BitMap64(positions))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]

    with pytest.raises(MalformedVector):
        decode_vector(bad)

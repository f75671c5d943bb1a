"""Deletion vectors as Iceberg's format v3 writes them: the rows of one data file that are gone.

A vector is a 64-bit Roaring bitmap of row positions with a length, a magic number and a checksum
around it. Vectors of several data files are blobs of one Puffin file, and each is found by its
place in the file alone; the footer says the same again, for whoever reads the file by itself. Pure:
bytes in, bytes out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

from pyroaring import BitMap64

PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_BLOB_TYPE = "deletion-vector-v1"
_POSITION_FIELD = 2_147_483_645
"""The field id that Iceberg reserves for a row's position."""
_NO_FLAGS = b"\0\0\0\0"
_LEAST_BYTES = 20


class MalformedVector(ValueError):
    """Bytes that are no deletion vector."""


class Blob(NamedTuple):
    """A vector's place in its Puffin file, and how many rows it says are gone."""

    offset: int
    size: int
    rows: int


def encode_vector(rows: BitMap64) -> bytes:
    body = VECTOR_MAGIC + rows.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", crc32(body))


def decode_vector(data: bytes) -> BitMap64:
    body = data[4:-4]
    if len(data) < _LEAST_BYTES or struct.unpack(">I", data[:4])[0] != len(body):
        raise MalformedVector(f"{len(data)} bytes are no deletion vector")
    if not body.startswith(VECTOR_MAGIC) or struct.unpack(">I", data[-4:])[0] != crc32(body):
        raise MalformedVector("a deletion vector's magic number or checksum is wrong")
    return BitMap64.deserialize(body[len(VECTOR_MAGIC) :])


def write_puffin(vectors: Mapping[str, BitMap64]) -> tuple[bytes, dict[str, Blob]]:
    """Make one Puffin file of the vectors of data files, by path; gives it and who is where."""
    parts = [PUFFIN_MAGIC]
    places: dict[str, Blob] = {}
    end = len(PUFFIN_MAGIC)
    for path, rows in vectors.items():
        parts.append(encode_vector(rows))
        places[path] = Blob(end, len(parts[-1]), len(rows))
        end += len(parts[-1])
    footer = json.dumps({"blobs": [_describe(*item) for item in places.items()]}).encode()
    parts += [PUFFIN_MAGIC, footer, struct.pack("<I", len(footer)), _NO_FLAGS, PUFFIN_MAGIC]
    return b"".join(parts), places


def _describe(path: str, blob: Blob) -> dict[str, Any]:
    return {
        "type": _BLOB_TYPE,
        "fields": [_POSITION_FIELD],
        # A commit decides them, after the file is written.
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": blob.offset,
        "length": blob.size,
        "properties": {"referenced-data-file": path, "cardinality": str(blob.rows)},
    }

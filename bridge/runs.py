"""Runs: plain changes that follow one another in a transaction, frames in and messages out.

Rows loaded by one COPY share a WAL record and its LSN. The second and later changes of a record,
table and operation are told apart by how many there were before, so that is counted; nearly every
record is of one change, and is counted only when a second one shows up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bridge.native import native
from bridge.rowparts import Encode, PackedRow


class Run(Protocol):
    """Where a transaction stands; whoever goes the long way goes on from it."""

    ordinal: int
    record: bytes
    """The LSN of the last change's record."""
    repeats: dict[bytes, int]
    """Changes of that record, by operation and table."""


EncodeRun = Callable[[list[bytes], int, dict[bytes, Encode], list[PackedRow], bytes, Run], int]
"""From frames, the first of them, row code, a list to add to, and the transaction, packed.

Gives where it stopped: at the end, or at the first frame that is no plain change.
"""


def encode_one_by_one(  # noqa: PLR0917 - called for every run of changes
    frames: list[bytes],
    at: int,
    codes: dict[bytes, Encode],
    rows: list[PackedRow],
    transaction: bytes,
    run: Run,
) -> int:
    """Queue the plain changes that follow one another.

    One loop with local names, because every call and attribute in it is paid for each change.
    """
    ordinal, record, repeats = run.ordinal, run.record, run.repeats
    find, add, count = codes.get, rows.append, len(frames)
    first: bytes | None = None
    while at < count:
        frame = frames[at]
        encode = find(frame[25:33])
        if encode is None:
            break
        lsn = frame[1:9]
        if lsn != record:
            row = encode(frame, lsn, ordinal, 0, transaction)
            if row is None:
                break
            record, first = lsn, frame
        else:
            if first is not None:
                _count_first(repeats, first)
                first = None
            repeat = repeats.get(frame[25:30], 0)
            row = encode(frame, lsn, ordinal, repeat, transaction)
            if row is None:
                break
            repeats[frame[25:30]] = repeat + 1
        add(row)
        ordinal += 1
        at += 1
    if first is not None:
        _count_first(repeats, first)
    run.ordinal, run.record = ordinal, record
    return at


def _count_first(repeats: dict[bytes, int], frame: bytes) -> None:
    """Count the first change of a record."""
    repeats.clear()
    repeats[frame[25:30]] = 1


encode_run: EncodeRun = native("encode_run") if native.is_there else encode_one_by_one

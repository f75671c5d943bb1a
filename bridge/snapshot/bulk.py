r"""The fast ways to pack a whole column of COPY's cells, one for each kind of value that has one.

Each leaves the loop over the values to the interpreter's own code, and gives the same bytes as the
rule of single changes or, where a value is not of the common sort, nothing at all.
"""

from __future__ import annotations

import struct
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter

import msgpack

from bridge.packing import Rule, str_header

Cells = Sequence[bytes]

Parts = tuple[Sequence[bytes], ...]
"""A column packed, in one or more pieces per row: a key and header, then a value; or all in one."""

Pack = Callable[[Cells], Parts | None]
"""Packs a column of at least one value; None where it does not understand one of them."""

_SHORT = 256
_PIECES_AT_ONCE = 64

_UNSIGNED = ((1 << 7, b"", "B"), (1 << 8, b"\xcc", "B"), (1 << 16, b"\xcd", "H"),
             (1 << 32, b"\xce", "I"), (1 << 64, b"\xcf", "Q"))  # fmt: skip
"""MessagePack's forms of integers from 0: below which number, its mark, and struct's letter."""

_eleventh = itemgetter(10)


@lru_cache
def _cutter(size: int, gap: int) -> struct.Struct:
    return struct.Struct(f"{size}s{gap}x" * _PIECES_AT_ONCE)


def cut_pieces(column: bytes | bytearray, size: int, gap: int) -> list[bytes]:
    """Cut a column into pieces of one size, and leave out what is between them."""
    cutter = _cutter(size, gap)
    rows = len(column) // (size + gap)
    pieces = list(
        chain.from_iterable(cutter.iter_unpack(column + bytes(-len(column) % cutter.size)))
    )
    del pieces[rows:]
    return pieces


def _no_fast_way(cells: Cells) -> None:
    del cells


def _texts(key: bytes) -> Pack:
    headers = [key + str_header(size) for size in range(_SHORT)]

    def pack(cells: Cells) -> Parts:
        try:
            return [headers[size] for size in map(len, cells)], cells
        except IndexError:
            sizes = map(len, cells)
            return [headers[n] if n < _SHORT else key + str_header(n) for n in sizes], cells

    return pack


def _integers(key: bytes) -> Pack:
    """Integers: all of one form are written and cut at once, in half the time of one by one."""
    pack_one = msgpack.Packer().pack
    forms = [(end, key + mark, letter) for end, mark, letter in _UNSIGNED]
    ends = [end for end, *_ in _UNSIGNED]

    def pack(cells: Cells) -> Parts:
        numbers, rows = list(map(int, cells)), len(cells)
        least, form = min(numbers), bisect(ends, max(numbers))
        if least < (ends[form - 1] if form else 0):
            return [key] * rows, list(map(pack_one, numbers))
        _, before, letter = forms[form]
        packed = struct.pack(f">{rows}{letter}", *numbers)
        return [before] * rows, cut_pieces(packed, len(packed) // rows, 0)

    return pack


def _booleans(key: bytes) -> Pack:
    packed = {b"t": key + b"\xc3", b"f": key + b"\xc2"}
    return lambda cells: ([packed[cell] for cell in cells],)


def _dates(key: bytes) -> Pack:
    before = key + str_header(10)

    def pack(cells: Cells) -> Parts | None:
        return ([before] * len(cells), cells) if {10}.issuperset(map(len, cells)) else None

    return pack


def _moments(key: bytes, behind: bytes, written: bytes) -> Pack:
    """Timestamps: a blank in the eleventh place and nowhere else, and `behind` at every end."""
    texts = _texts(key)
    shorter = len(behind) - len(written)

    def pack(cells: Cells) -> Parts | None:
        column, rows = b"\t".join(cells) + b"\t", len(cells)
        if column.count(b" ") != rows:
            return None
        if column[len(cells[0]) :: len(cells[0]) + 1] == b"\t" * rows:
            return pack_even(bytearray(column), rows, len(cells[0]))
        if bytes(map(_eleventh, cells)) != b" " * rows:
            return None
        changed = column.replace(b" ", b"T").replace(behind + b"\t", written + b"\t")
        if len(column) - len(changed) != rows * shorter:
            return None
        *values, _ = changed.split(b"\t")
        return texts(values)

    def pack_even(column: bytearray, rows: int, size: int) -> Parts | None:
        """Pack values of one size: what is at a certain place of every one is changed at once."""
        stride, tail = size + 1, size - len(behind)
        was = [column[tail + at :: stride] for at in range(len(behind))]
        if column[10::stride] != b" " * rows or was != [bytes([c]) * rows for c in behind]:
            return None
        column[10::stride] = b"T" * rows
        for at, letter in enumerate(written):
            column[tail + at :: stride] = bytes([letter]) * rows
        before = key + str_header(size - shorter)
        return [before] * rows, cut_pieces(column, size - shorter, shorter + 1)

    return pack


_FAST: Mapping[Rule, Callable[[bytes], Pack]] = {
    Rule.BOOLEAN: _booleans,
    Rule.INTEGER: _integers,
    Rule.TEXT: _texts,
    Rule.DATE: _dates,
    Rule.TIMESTAMP: lambda key: _moments(key, b"", b""),
    Rule.TIMESTAMPTZ: lambda key: _moments(key, b"+00", b"Z"),
}


def bulk_packer(rule: Rule, key: bytes) -> Pack:
    """Choose how a column is packed behind its key; one without a fast way understands nothing."""
    make = _FAST.get(rule)
    return make(key) if make else _no_fast_way

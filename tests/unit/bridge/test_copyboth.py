"""The answer to START_REPLICATION: whatever way the network cuts it, its frames are the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import MalformedWal
from bridge.native import native
from bridge.protocol.answers import copy_data
from bridge.protocol.copyboth import CopyBoth, cut_one_by_one
from tests.support.native import both_ways
from tests.unit.bridge.test_copyout import FAILURE, NOTICE, SETTING, message

BEGIN = message(b"W", b"\0\0\0")
END = message(b"c") + message(b"C", b"COPY 0\0") + message(b"Z", b"I")

# Frames are binary: one that looks like a message, like many, and one of many pieces.
FRAMES = st.binary() | st.sampled_from(
    [copy_data(b"x"), copy_data(b"y") * 3, NOTICE, b"d\0\0\0", b"w" * 70_000]
)


def feed(copy: CopyBoth, wire: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(wire), *cuts})
    return [frame for start, end in pairwise(edges) for frame in copy.feed(wire[start:end])]


def test_cut_at_every_byte_it_is_the_same() -> None:
    frames = [b"w1", b"", b"d\0\0\0\5", b"k" * 40]
    parts = [*map(copy_data, frames[:2]), SETTING, *map(copy_data, frames[2:]), NOTICE, END]
    wire = BEGIN + b"".join(parts)

    for cut in range(len(wire) + 1):
        for cuts in ([cut], [len(BEGIN), cut]):
            copy = CopyBoth()

            assert feed(copy, wire, cuts) == frames, cut
            assert copy.is_over
            assert copy.failure is None


@given(parts=st.lists(FRAMES.map(lambda f: (f, copy_data(f))) | st.just((None, NOTICE))),
       data=st.data())  # fmt: skip
def test_any_frames_in_any_pieces_come_out_as_they_are(
    parts: list[tuple[bytes | None, bytes]], data: st.DataObject
) -> None:
    wire = BEGIN + b"".join(sent for _, sent in parts)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=20))

    assert feed(CopyBoth(), wire, cuts) == [frame for frame, _ in parts if frame is not None]


@both_ways
@given(st.lists(FRAMES, max_size=5).map(lambda f: b"".join(map(copy_data, f))), st.binary())
def test_what_is_cut_at_once_is_what_the_sizes_say(way: str, whole: bytes, rest: bytes) -> None:
    """A size below its own length, or past the end, is where the cutting stops."""
    cut = native("cut_frames") if way == "compiled" else cut_one_by_one

    for data in (whole + rest, whole + b"d\0\0\0\3" + rest, whole + b"d\xff\xff\xff\xff" + rest):
        frames, at = cut(data)

        assert b"".join(map(copy_data, frames)) == data[:at]
        assert at >= len(whole)
        left = data[at:]
        is_whole = left[:1] == b"d" and 4 <= int.from_bytes(left[1:5]) < len(left)
        assert len(left) < 5 or not is_whole


def test_an_error_is_told_behind_the_frames_in_front_of_it() -> None:
    copy = CopyBoth()

    assert copy.feed(BEGIN + copy_data(b"w") + FAILURE) == [b"w"]

    assert copy.failure is not None
    assert copy.failure["C"] == "72000"


def test_a_refused_start_is_told() -> None:
    """The slot may be in use, or lost."""
    copy = CopyBoth()

    assert copy.feed(FAILURE) == []

    assert copy.failure is not None
    assert not copy.has_begun


@pytest.mark.parametrize(
    "wire",
    [copy_data(b"w"), BEGIN + BEGIN, BEGIN + b"d\0\0\0\3", BEGIN + message(b"T"), b"HTTP/1.1 400"],
    ids=["frame first", "twice", "too short", "a result", "not PostgreSQL"],
)
def test_what_is_no_answer_is_refused(wire: bytes) -> None:
    with pytest.raises(MalformedWal):
        CopyBoth().feed(wire)

"""Where the stream does not go on: what is gone, and what was never there.

Three things break it: its beginning expired before it was read, messages inside were deleted, and
the bridge's own mark says that PostgreSQL had dropped changes before they were read. Nothing tells
which tables they were of, so behind a gap every mirror is built anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake_consumer.batches import describe_gaps
from lake_consumer.forks import ForkMark


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences that cannot be read, or the place of the bridge's mark."""

    first: int
    last: int
    why: str
    fork: ForkMark | None = None
    """The mark of a fork, if that is what is there."""
    is_expired: bool = False
    """Nobody knows any more what was there: it may have been a fork."""

    def __str__(self) -> str:
        return describe_gaps([(self.first, self.last)])


def next_gap(
    first: int,
    stream_first: int,
    holes: tuple[tuple[int, int], ...],
    mark: int | None,
    fork: ForkMark | None = None,
) -> Gap | None:
    """The first gap at or behind sequence `first`."""
    if stream_first > first:
        why = "they expired or were purged before they were read"
        return Gap(first, stream_first - 1, why, is_expired=True)
    found = [
        Gap(max(a, first), b, "they were deleted inside the stream") for a, b in holes if b >= first
    ]
    if mark is not None and mark >= first:
        why = "the bridge marked here that PostgreSQL dropped changes before they were read"
        found.append(Gap(mark, mark, why))
    if fork is not None and fork.sequence >= first:
        found.append(Gap(fork.sequence, fork.sequence, "PostgreSQL's history forked", fork))
    return min(found, key=lambda gap: gap.first, default=None)


def join_sequences(sequences: list[int]) -> tuple[tuple[int, int], ...]:
    """Write sequences as ranges."""
    ranges: list[tuple[int, int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] + 1 == sequence:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
    return tuple(ranges)

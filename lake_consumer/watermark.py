"""Where to go on: decided from what the Iceberg tables themselves say, and nothing else.

Every commit to a mirror or a change log is stamped with the stream sequence of its batch's end:
its watermark. All messages of that table up to there are in it. A batch commits to the tables it
touches and last of all to the table of cuts, whose watermark therefore means: every table has
everything up to here. A table that a batch did not touch keeps an older one and lacks nothing.

So reading goes on behind the cuts. A table whose watermark is above the cuts belongs to a batch
that was interrupted; that batch is taken again with the very same end, and each table leaves out
what its own watermark covers. Afterwards all tables stand at the same commit again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lake_consumer.errors import StreamShorter

STREAM_SEQUENCE = "bridge.stream-sequence"
COMMIT_LSN = "bridge.commit-lsn"
COMMIT_TS = "bridge.commit-ts"


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """Everything of a table up to this stream sequence, and this commit, is in it."""

    stream_sequence: int
    commit_lsn: int
    commit_ts: str = ""

    @classmethod
    def from_summary(cls, summary: Mapping[str, str]) -> Watermark | None:
        """Read a snapshot's summary; None where somebody else, such as maintenance, wrote it."""
        if STREAM_SEQUENCE not in summary:
            return None
        return cls(
            int(summary[STREAM_SEQUENCE]),
            int(summary.get(COMMIT_LSN, "0")),
            summary.get(COMMIT_TS, ""),
        )

    def to_summary(self) -> dict[str, str]:
        return {
            STREAM_SEQUENCE: str(self.stream_sequence),
            COMMIT_LSN: str(self.commit_lsn),
            COMMIT_TS: self.commit_ts,
        }


EMPTY = Watermark(0, 0)
"""A table that holds nothing yet."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Read from `first` on; `interrupted_end` is the end of a batch that must be taken again."""

    first: int
    interrupted_end: int | None = None


def plan_resume(
    cuts: Watermark, tables: Iterable[Watermark], stream_first: int, stream_last: int
) -> Resume:
    """Say where to go on, or why the stream cannot be followed any more.

    What the stream no longer holds of it is for `gaps` to find.
    """
    reached = max([cuts, *tables]).stream_sequence
    if stream_last < reached:
        raise StreamShorter.than(reached, stream_last)
    first = cuts.stream_sequence + 1
    if cuts == EMPTY:
        # A new lake begins with what the stream still holds.
        first = max(first, stream_first)
    return Resume(first, reached if reached >= first else None)

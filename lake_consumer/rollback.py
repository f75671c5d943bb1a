"""Whether the stream still holds what the lake applied, under the same sequences.

JetStream acknowledges before it syncs: a server that loses power forgets its newest messages. The
bridge sends the changes again, in the same order, but what it adds between them (sessions, DDL that
a look at the catalog found) may come back elsewhere or not at all. Then a sequence that the lake
has applied names another change than it did, and reading on after it would skip changes, or apply
some again.

The end of a batch is the last message of a transaction, so the message that the lake stands at must
be the end of the same commit. If it is not, the commit tells where the lake stands: commits rise
along the stream.
"""

from __future__ import annotations

from typing import Protocol

from lake_consumer.batches import Look, Mark
from lake_consumer.errors import MessagesMissing, StreamReplaced
from lake_consumer.forks import ForkMark
from lake_consumer.watermark import Watermark


class Held(Protocol):
    """What the stream holds now."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def holes(self) -> tuple[tuple[int, int], ...]: ...


class Stream(Protocol):
    """What is asked of the stream."""

    def look(self, sequence: int) -> Mark: ...
    def fork_mark(self, sequence: int) -> ForkMark | None: ...


def find_rollback(
    stream: Stream, held: Held, anchor: Watermark, *, is_one_source: bool
) -> int | None:
    """The sequence at which the anchor's commit ends now; None if it is where it was.

    None, too, if the message is not there any more: then nothing can be compared.
    """
    found = _look_back(stream, held, anchor.stream_sequence)
    if found is None or (found.last and found.commit_lsn == anchor.commit_lsn):
        return None
    if held.holes or not is_one_source:
        raise StreamReplaced(
            f"stream sequence {anchor.stream_sequence} is not the change that the lake has applied:"
            " NATS lost messages, and with several sources or deleted messages in the stream it is"
            " not known where the lake stands"
        )
    first, last = _around_forks(stream, held, anchor.stream_sequence)
    return find_commit(anchor.commit_lsn, first, last, stream.look)


def _look_back(stream: Stream, held: Held, sequence: int) -> Mark | None:
    """Look at the end of a batch: a message that opens a session stands for the one before."""
    while held.first <= sequence <= held.last:
        try:
            found = stream.look(sequence)
        except MessagesMissing:
            return None
        if not found.is_session:
            return found
        sequence -= 1
    return None


def _around_forks(stream: Stream, held: Held, sequence: int) -> tuple[int, int]:
    """The range around a sequence in which commits rise: they fall at forks."""
    first = held.first
    while (fork := stream.fork_mark(first)) is not None:
        if fork.sequence > sequence:
            return first, fork.sequence - 1
        first = fork.sequence + 1
    return first, held.last


def find_commit(commit_lsn: int, first: int, last: int, look: Look) -> int:
    """The last sequence from `first` to `last` at or below a commit; `first - 1` if none is."""
    below, above = first - 1, last + 1
    while above - below > 1:
        middle = (below + above) // 2
        if look(middle).commit_lsn <= commit_lsn:
            below = middle
        else:
            above = middle
    return below

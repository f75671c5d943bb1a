"""Where a batch ends: bounded in messages and bytes, and always behind a whole transaction.

A transaction is one contiguous run of messages with one commit LSN; its last change says `last`.
That makes the end of a batch findable by looking at a handful of messages, whatever the batch's
size: step back to the end of the transaction before, or, where one transaction fills the batch,
forward to its own end. `look` is the only thing that touches the stream, so tests use a list.

A message that only opens a session of a bridge is in no transaction, and the place it names is no
commit of this batch. It counts as part of what stands before it.

Bytes are bounded through the stream's mean message size; sizes are not read before the batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much one lake commit may hold; a single larger transaction is still taken whole."""

    max_messages: int = 1_000_000
    max_bytes: int = 256 << 20
    first_messages: int = 200_000

    def messages(self, mean_bytes: float) -> int:
        """How many messages of this mean size fit, at least one."""
        fit = int(self.max_bytes / mean_bytes) if mean_bytes > 0 else self.max_messages
        return max(1, min(self.max_messages, fit))


class Pace:
    """How many messages the next batch takes: more and more, while there is a backlog.

    A commit has a fixed cost per table, so large batches are the quicker ones; but the first is not
    made to wait for all of them, and who keeps up has small ones anyway.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._wish = limits.first_messages

    def messages(self, mean_bytes: float) -> int:
        return min(self._wish, self._limits.messages(mean_bytes))

    def applied(self, messages: int, behind: int) -> None:
        """Learn that a batch was applied, and how many messages were waiting behind it."""
        if behind > messages:
            self._wish = min(2 * self._wish, max(self._wish, self._limits.max_messages))
        elif behind == 0:
            self._wish = self._limits.first_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What one message says about its transaction."""

    commit_lsn: int
    ordinal: int
    last: bool
    commit_ts: str
    is_session: bool = False
    """Whether it opens a session of a bridge, and says nothing about any transaction."""


Look = Callable[[int], Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Stream sequences `first` to `last`, and the commit that the last one completes."""

    first: int
    last: int
    commit_lsn: int
    commit_ts: str

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


def plan_batch(
    first: int, newest: int, count: int, look: Look, before: Mark | None = None
) -> Batch | None:
    """Take about `count` messages from `first` on; None while no whole transaction is there.

    `before` is the end of what was applied last, if the message before `first` belongs to that.
    """
    if newest < first:
        return None
    wish = min(newest, first + count - 1)
    while before is None and wish < newest and look(wish).is_session:
        wish += 1
    look = _past_sessions(first, look, before)
    end = _end_at_or_before(wish, first, look)
    if end is None:
        end = _end_after(wish, newest, look)
    if end is None:
        return None
    mark = look(end)
    return Batch(first=first, last=end, commit_lsn=mark.commit_lsn, commit_ts=mark.commit_ts)


def _past_sessions(first: int, look: Look, before: Mark | None) -> Look:
    """Let a message that opens a session look like the one before it."""
    nowhere = Mark(commit_lsn=0, ordinal=0, last=False, commit_ts="")

    def see(sequence: int) -> Mark:
        while sequence >= first and (mark := look(sequence)).is_session:
            sequence -= 1
        return mark if sequence >= first else before or nowhere

    return see


def _end_at_or_before(sequence: int, first: int, look: Look) -> int | None:
    while sequence >= first:
        mark = look(sequence)
        if mark.last:
            return sequence
        # A message's ordinal counts the changes before it in its transaction. Shape messages
        # count nothing, so this may land inside the same transaction: then step again.
        sequence -= mark.ordinal + 1
    return None


def _end_after(inside: int, newest: int, look: Look) -> int | None:
    """Find the end of the transaction that holds `inside`; None while it is not all there."""
    commit_lsn = look(inside).commit_lsn
    step = 1
    while inside + step <= newest and look(inside + step).commit_lsn == commit_lsn:
        inside += step
        step *= 2
    beyond = min(inside + step, newest + 1)
    while beyond - inside > 1:
        middle = (inside + beyond) // 2
        if look(middle).commit_lsn == commit_lsn:
            inside = middle
        else:
            beyond = middle
    return inside if look(inside).last else None


def split_range(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Cut a range into at most `parts` even, adjoining ranges."""
    size = last - first + 1
    parts = max(1, min(parts, size))
    edges = [first + size * part // parts for part in range(parts + 1)]
    return [(start, stop - 1) for start, stop in pairwise(edges)]


def describe_gaps(missing: list[tuple[int, int]], shown: int = 5) -> str:
    """Name missing sequences as a person reads them: `5-7, 9 and 2 more ranges`."""
    names = [str(a) if a == b else f"{a}-{b}" for a, b in missing[:shown]]
    rest = len(missing) - len(names)
    return ", ".join(names) + (f" and {rest} more ranges" if rest else "")

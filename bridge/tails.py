"""Lost tails: a server that acknowledged changes and forgot them. Pure; it compares and decides.

A crash before the disk was synced, or a replica that came back with an older disk, takes the end
of a stream away. What PostgreSQL was not told yet is read from the WAL and stored again by itself:
the next session begins where the stream ends. That must be reported, because consumers may have
read what is gone. What PostgreSQL was told already cannot be read again: the gap is marked.

A process knows what it saw stored (`Acknowledged`) and notes it in KV `sources` for its successor.
If that is lost too, only the slot's position is left. It proves a loss where the stream ends inside
a transaction that the slot is past. A stream that ends with a whole transaction may as well belong
to a database that was quiet since.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.positions import ORIGIN, Position


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a process has seen the stream hold; zeroes where it has seen nothing yet."""

    sequence: int = 0
    acked: int = 0
    """The last change acknowledged was committed here or later."""

    confirmed: int = 0
    """The same of the last change that PostgreSQL was told is stored."""

    def grown(self, *, sequence: int = 0, acked: int = 0, confirmed: int = 0) -> Acknowledged:
        return Acknowledged(
            max(self.sequence, sequence), max(self.acked, acked), max(self.confirmed, confirmed)
        )

    def joined(self, other: Acknowledged) -> Acknowledged:
        return self.grown(sequence=other.sequence, acked=other.acked, confirmed=other.confirmed)


@dataclass(frozen=True, slots=True)
class Tail:
    """The stream's end at the start of a session."""

    last_sequence: int
    stored: Position
    is_whole: bool = True
    """False if the last message of ours is known not to end its transaction."""


@dataclass(frozen=True, slots=True)
class LostTail:
    """Acknowledged changes are missing."""

    messages: int
    """How many sequences the stream went back; 0 if others have taken their place."""

    is_gap: bool
    """Whether PostgreSQL gives some of them no more."""


def judge_tail(acknowledged: Acknowledged, tail: Tail, confirmed_lsn: int) -> LostTail | None:
    """Compare what was acknowledged with what the stream holds; `confirmed_lsn` is the slot's."""
    went_back = tail.last_sequence < acknowledged.sequence
    held = tail.stored.commit_lsn
    # Old messages expire, and an administrator may purge: an empty end alone proves nothing.
    is_known = went_back or tail.stored != ORIGIN
    is_behind = is_known and held < acknowledged.acked
    is_cut = not tail.is_whole and held < confirmed_lsn
    if not (went_back or is_behind or is_cut):
        return None
    is_past = is_known and held < acknowledged.confirmed and held < confirmed_lsn
    return LostTail(max(0, acknowledged.sequence - tail.last_sequence), is_gap=is_cut or is_past)

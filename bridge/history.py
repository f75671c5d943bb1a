"""Which PostgreSQL history a stream holds, and whether a server's WAL contains it.

After a failover, a restore or a rewind LSNs are used again for other transactions, so "the stream
already holds this LSN" does not prove that a change is stored. Two facts do. **Timelines**: a
promotion opens a new timeline and states where the old one ended (`find_fork`); what the stream
holds beyond that point never happened. **Meeting**: a restored server may stay on its timeline, so
when the slot's WAL is read again, the last transaction in the stream must come by with the same id
and commit time (`Meeting`). Nothing is skipped, published or confirmed before that.

A history that does not contain the stream is a fork. It is marked in the stream at the last
position that is certain: where the timelines part, or where the slot reads from if that is earlier.
Pure; `postgres.timeline` and `jetstream.sources` bring the facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.errors import HistoryForked
from bridge.sources import SourceId
from schemas.events import LogicalMessage, Place
from schemas.forks import Fork, format_fork
from schemas.positions import ORIGIN, Lsn, Position
from schemas.subjects import FORK_PREFIX, is_message_subject, is_own_subject, is_schema_subject

_ENDLESS = 1 << 64


@dataclass(frozen=True, slots=True)
class History:
    """A server's timeline, and those before it with the LSN at which each ended, oldest first."""

    timeline: int
    switches: tuple[tuple[int, int], ...] = ()

    def shared_until(self, other: History) -> int | None:
        """Give the first position that two histories do not share; None if they are the same."""
        shared = 0
        for (one, end), (another, other_end) in zip(self._lines, other._lines, strict=False):
            if one != another:
                return shared
            shared = min(end, other_end)
            if end != other_end:
                return shared
        return None

    @property
    def _lines(self) -> tuple[tuple[int, int], ...]:
        return (*self.switches, (self.timeline, _ENDLESS))


def parse_switches(text: str) -> tuple[tuple[int, int], ...]:
    """Read PostgreSQL's timeline history file: a timeline, where it ended, and why, per line."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return tuple((int(parts[0]), int(Lsn.parse(parts[1]))) for parts in lines if len(parts) >= 2)


@dataclass(frozen=True, slots=True)
class Witness:
    """What identifies a transaction in the WAL; a message outside any has no id and no time."""

    commit_lsn: int
    xid: int
    commit_ts: str | None


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """How far the stream is: everything of this slot up to `position` is stored."""

    position: Position = ORIGIN
    witness: Witness | None = None
    """The last transaction that came from the WAL; the bridge's own messages are not in it."""

    is_whole: bool = True
    """False if the message at `position` does not end its transaction."""


@dataclass(frozen=True, slots=True)
class StoredFork:
    """The last fork of a source that the stream holds."""

    fork: Fork
    sequence: int
    stored_at: datetime | None = None

    def comes_after(self, sequence: int) -> bool:
        return sequence < self.sequence

    def voids(self, sequence: int, position: Position) -> bool:
        """Whether a message never happened: it is older than the fork and lies beyond it."""
        return self.comes_after(sequence) and position.commit_lsn >= self.fork.switch_lsn


class EndFinder:
    """Finds the end of what a stream holds of a slot among the last messages of its subjects."""

    def __init__(self, fork: StoredFork | None) -> None:
        self._fork = fork
        self.end = StoredEnd(fork.fork.place if fork else ORIGIN)

    def add(self, subject: str, sequence: int, place: Place) -> None:
        position = place.position
        if self._fork is not None and self._fork.voids(sequence, position):
            return
        if is_schema_subject(subject) and not place.last:
            # A schema shares its place with the change after it, which may not be stored yet.
            position = Position(position.commit_lsn, position.ordinal - 1)
        witness = self.end.witness
        if _is_from_wal(subject, place) and (
            witness is None or place.commit_lsn > witness.commit_lsn
        ):
            witness = Witness(place.commit_lsn, place.xid, place.commit_ts)
        is_whole = place.last if position >= self.end.position else self.end.is_whole
        self.end = StoredEnd(max(self.end.position, position), witness, is_whole)


def _is_from_wal(subject: str, place: Place) -> bool:
    """Whether PostgreSQL sends it again; messages of the bridge's own have no transaction."""
    if place.xid:
        return True
    return is_message_subject(subject) and not is_own_subject(subject)


def find_fork(
    stored: StoredEnd, recorded: History | None, server: History, wal_end: int
) -> HistoryForked | None:
    """Say why the server cannot have written what the stream holds; None if it can have.

    `recorded` is the history that the stream was written from, if that is known.
    """
    last = stored.position.commit_lsn
    shared = recorded.shared_until(server) if recorded else None
    if recorded and shared is not None and last >= shared:
        return HistoryForked(
            f"the CDC stream holds changes up to {Lsn(last)} of timeline {recorded.timeline}, and"
            f" this server, on timeline {server.timeline}, shares that history only up to"
            f" {Lsn(shared)}: later changes in the stream never happened here",
            switch_lsn=shared,
        )
    if last > wal_end:
        return HistoryForked(
            f"the CDC stream holds changes up to {Lsn(last)}, and this server has only written up"
            f" to {Lsn(wal_end)}: it was restored or is another copy of the database"
        )
    return None


class Meeting:
    """Waits, while the slot's WAL is read again, for the last transaction that is stored.

    The slot sends every transaction that commits at or after its confirmed position, so one before
    that is not awaited: nothing that is sent is skipped because of it.
    """

    def __init__(self, witness: Witness | None, start_lsn: int) -> None:
        is_sent_again = witness is not None and witness.commit_lsn >= start_lsn
        self._awaited = witness if is_sent_again else None

    @property
    def is_over(self) -> bool:
        """Whether this server's history is known to contain the stream's."""
        return self._awaited is None

    def take(self, found: Witness) -> None:
        """Take the next transaction of the WAL, or a message outside any."""
        awaited = self._awaited
        if awaited is None or found.commit_lsn < awaited.commit_lsn:
            return
        if found != awaited:
            raise self._forked(awaited, f"transaction {found.xid} at {Lsn(found.commit_lsn)}")
        self._awaited = None

    def pass_idle(self, wal_end: int) -> None:
        """Follow a keepalive outside any transaction: all before its position has been sent."""
        awaited = self._awaited
        if awaited is not None and wal_end > awaited.commit_lsn:
            raise self._forked(awaited, f"no transaction up to {Lsn(wal_end)}")

    def _forked(self, awaited: Witness, found: str) -> HistoryForked:
        return HistoryForked(
            f"the CDC stream ends with transaction {awaited.xid}, committed at"
            f" {Lsn(awaited.commit_lsn)} ({awaited.commit_ts}), and this server's WAL has {found}"
            " there: the server was restored, or promoted without the end of its history (or the"
            " slot is read with another --pub than before)"
        )


def fork_message(
    ours: SourceId, server: History, fork: HistoryForked, start_lsn: int | None
) -> LogicalMessage:
    """Mark a fork: before everything that the slot sends from `start_lsn` on.

    Without a slot (None) nothing is sent again: if nothing tells where the histories part, all that
    the stream holds is unproven.
    """
    certain = [lsn for lsn in (fork.switch_lsn, start_lsn) if lsn is not None]
    switch_lsn = min(certain, default=0)
    told = Fork(ours.system, server.timeline, switch_lsn, ours.slot, str(fork))
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    before = told.place.commit_lsn
    return LogicalMessage(
        prefix=FORK_PREFIX,
        content=format_fork(told),
        transactional=False,
        place=Place(lsn=before, commit_lsn=before, commit_ts=moment, xid=0, seq=0, last=True),
        source=str(ours),
    )

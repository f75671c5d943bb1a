"""From messages to placed changes: which transaction, which ordinal, and whether it is the last.

Ordinals and repeats are counted from the WAL alone, never from what this process knows, so a resend
after any restart carries the same position and the same id. One change is held back until the next
message tells whether it ends its transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bridge.errors import MalformedWal
from bridge.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Truncate,
    Update,
    WalMessage,
)
from schemas.events import Place, iso_timestamp


@dataclass(frozen=True, slots=True)
class EmptiedTable:
    """One table of a TRUNCATE."""

    relation_id: int


RowMessage = Insert | Update | Delete | EmptiedTable
TransactionPart = RowMessage | Message


@dataclass(frozen=True, slots=True)
class Placed:
    """One message to publish and its place; `repeat` tells rows of one WAL record apart."""

    message: TransactionPart
    place: Place
    repeat: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """Everything of a transaction has been given out; `end_lsn` confirms it."""

    end_lsn: int


class Assembler:
    """Follows one replication stream and places what it carries."""

    def __init__(self) -> None:
        self._transaction: Begin | None = None
        self._commit_ts = ""
        self._ordinal = 0
        self._held: Placed | None = None
        self._record_lsn = -1
        self._repeats: dict[tuple[type, int], int] = {}

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    def feed(self, lsn: int, message: WalMessage) -> Iterator[Placed | TransactionEnd]:
        """Take the next message and give out what is certain now, in order."""
        match message:
            case Begin():
                self._begin(message)
            case Commit():
                yield from self._commit(message)
            case Message(transactional=False):
                yield from self._outside(message)
            case Insert() | Update() | Delete() | Message():
                yield from self._next(lsn, message)
            case Truncate():
                for relation_id in message.relation_ids:
                    yield from self._next(lsn, EmptiedTable(relation_id))

    def _begin(self, message: Begin) -> None:
        if self._transaction is not None:
            raise MalformedWal("a transaction begins inside another")
        self._transaction = message
        self._commit_ts = iso_timestamp(message.commit_time)
        self._ordinal = 0

    def _commit(self, message: Commit) -> Iterator[Placed | TransactionEnd]:
        begun = self._transaction
        if begun is None or begun.commit_lsn != message.commit_lsn:
            raise MalformedWal(f"a commit at {message.commit_lsn:x} of a transaction never begun")
        if self._held is not None:
            yield replace(self._held, place=replace(self._held.place, last=True))
        self._transaction = self._held = None
        yield TransactionEnd(message.end_lsn)

    def _next(self, lsn: int, message: TransactionPart) -> Iterator[Placed]:
        begun = self._transaction
        if begun is None:
            raise MalformedWal(f"a change at {lsn:x} outside a transaction")
        place = Place(
            lsn=lsn,
            commit_lsn=begun.commit_lsn,
            commit_ts=self._commit_ts,
            xid=begun.xid,
            seq=self._ordinal,
            last=False,
        )
        self._ordinal += 1
        before, self._held = self._held, Placed(message, place, self._repeat(lsn, message))
        if before is not None:
            yield before

    def _repeat(self, lsn: int, message: TransactionPart) -> int:
        """Count the earlier changes of the same WAL record, table and operation."""
        if lsn != self._record_lsn:
            self._record_lsn = lsn
            self._repeats.clear()
        kind = type(message), 0 if isinstance(message, Message) else message.relation_id
        count = self._repeats.get(kind, 0)
        self._repeats[kind] = count + 1
        return count

    def _outside(self, message: Message) -> Iterator[Placed | TransactionEnd]:
        """Place a message that was written outside any transaction: it is its own."""
        if self._transaction is not None:
            raise MalformedWal("a non-transactional message inside a transaction")
        # A message's LSN is where its record ends, and a commit record may begin right there. One
        # byte earlier is inside the record, a place that no transaction can have.
        place = Place(
            lsn=message.lsn, commit_lsn=message.lsn - 1, commit_ts=None, xid=0, seq=0, last=True
        )
        yield Placed(message, place, 0)
        yield TransactionEnd(message.lsn)

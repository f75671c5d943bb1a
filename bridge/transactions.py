"""From messages to placed changes: which transaction, which ordinal, which row of its record.

Ordinals and repeats are counted from the WAL alone, never from what this process knows, so a resend
after any restart carries the same position and the same id. Whether a change is its transaction's
last is not known here: the end of the transaction tells, and the outbox waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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


KINDS: Mapping[type, bytes] = {
    Insert: b"I",
    Update: b"U",
    Delete: b"D",
    EmptiedTable: b"T",
    Message: b"M",
}
"""Message kinds as the protocol's bytes, which is how the hot path knows them."""


class Assembler:
    """Follows one replication stream and places what it carries.

    The hot path follows the same stream by itself, and leaves and finds here where it is: the
    transaction, the next ordinal, the LSN of the last WAL record as the protocol writes it, and how
    many changes of that record each operation and table (again in its bytes) has had.
    """

    def __init__(self) -> None:
        self.transaction: Begin | None = None
        self.commit_ts = ""
        self.ordinal = 0
        self.record = b""
        self.repeats: dict[bytes, int] = {}

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    def feed(self, lsn: int, message: WalMessage) -> Iterator[Placed | TransactionEnd]:
        """Take the next message and give out what it means, in order."""
        match message:
            case Begin():
                self._begin(message)
            case Commit():
                yield self._commit(message)
            case Message(transactional=False):
                yield from self._outside(message)
            case Insert() | Update() | Delete():
                yield self._next(lsn, message, message.relation_id)
            case Message():
                yield self._next(lsn, message, 0)
            case Truncate():
                for relation_id in message.relation_ids:
                    yield self._next(lsn, EmptiedTable(relation_id), relation_id)

    def _count(self, lsn: int, kind: bytes, relation_id: int) -> int:
        """Count a change, and say how many of its WAL record, table and operation came before."""
        record, key = lsn.to_bytes(8), kind + relation_id.to_bytes(4)
        if record != self.record:
            self.record = record
            self.repeats.clear()
        repeat = self.repeats.get(key, 0)
        self.repeats[key] = repeat + 1
        self.ordinal += 1
        return repeat

    def _begin(self, message: Begin) -> None:
        if self.transaction is not None:
            raise MalformedWal("a transaction begins inside another")
        self.transaction = message
        self.commit_ts = iso_timestamp(message.commit_time)
        self.ordinal = 0

    def _commit(self, message: Commit) -> TransactionEnd:
        begun = self.transaction
        if begun is None or begun.commit_lsn != message.commit_lsn:
            raise MalformedWal(f"a commit at {message.commit_lsn:x} of a transaction never begun")
        self.transaction = None
        return TransactionEnd(message.end_lsn)

    def _next(self, lsn: int, message: TransactionPart, relation_id: int) -> Placed:
        begun = self.transaction
        if begun is None:
            raise MalformedWal(f"a change at {lsn:x} outside a transaction")
        place = Place(
            lsn=lsn,
            commit_lsn=begun.commit_lsn,
            commit_ts=self.commit_ts,
            xid=begun.xid,
            seq=self.ordinal,
            last=False,
        )
        return Placed(message, place, self._count(lsn, KINDS[type(message)], relation_id))

    def _outside(self, message: Message) -> Iterator[Placed | TransactionEnd]:
        """Place a message that was written outside any transaction: it is its own."""
        if self.transaction is not None:
            raise MalformedWal("a non-transactional message inside a transaction")
        # A message's LSN is where its record ends, and a commit record may begin right there. One
        # byte earlier is inside the record, a place that no transaction can have.
        place = Place(
            lsn=message.lsn, commit_lsn=message.lsn - 1, commit_ts=None, xid=0, seq=0, last=False
        )
        yield Placed(message, place, 0)
        yield TransactionEnd(message.lsn)

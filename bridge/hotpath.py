"""The hot path: plain transactions from the WAL's bytes to messages, many frames at a time.

Inserts, and updates and deletes with nothing but a new row or a key, are most of any load. For them
one loop does what the decoder, the assembler, the relations and the codec do one after the other:
it knows a transaction's begin and end by their bytes, leaves the changes between them to the
tables' row code (`runs`, `rowcode`), and hands the outbox a list of messages.

It stops at the first frame that is not plain and leaves that one untouched to the long way, which
is the definition of what is right; then it goes on behind it. Everything the long way must know
(transaction, ordinal, rows of one record) is in the assembler whenever this loop is not running.
A property test holds the two ways against each other.
"""

from __future__ import annotations

import struct
import time

from bridge.outbox import Outbox
from bridge.packing import pack
from bridge.progress import Progress
from bridge.protocol.messages import Begin
from bridge.rowcode import row_code
from bridge.rowparts import OPERATIONS, Encode
from bridge.runs import encode_run
from bridge.status import Status
from bridge.transactions import Assembler
from schemas.events import iso_timestamp
from schemas.shapes import TableShape

_KIND_AT = 25
_EDGES = (b"B", b"C")
_BEGIN, _COMMIT = b"BC"
_BEGIN_SIZE = _KIND_AT + 1 + 20
_COMMIT_SIZE = _KIND_AT + 1 + 25
_begin_at = struct.Struct("!QqI").unpack_from
_end_lsn_at = struct.Struct("!Q").unpack_from

# Integers are written at full width, because their bytes are the frame's own.
_COMMIT_LSN = pack("commit_lsn") + b"\xcf"
_LSN_AT = len(_COMMIT_LSN)
_COMMIT_TS = pack("commit_ts") + bytes([0xA0 | len(iso_timestamp(0))])
_XID = pack("xid") + b"\xce"
_SEQ = pack("seq")


class _Clock:
    """Writes commit times; those of one second share all but the microseconds."""

    def __init__(self) -> None:
        self._second = -1
        self._written = b""

    def write(self, microseconds: int) -> bytes:
        second, fraction = divmod(microseconds, 1_000_000)
        if second != self._second:
            self._second = second
            self._written = iso_timestamp(second * 1_000_000).encode()[:-7]
        return b"%b%06dZ" % (self._written, fraction)


class HotPath:
    """Queues what is plain; `stored` is the last commit the stream may already hold."""

    def __init__(
        self,
        assembler: Assembler,
        outbox: Outbox,
        progress: Progress,
        status: Status,
        stored_lsn: int,
    ) -> None:
        self._assembler = assembler
        self._outbox = outbox
        self._progress = progress
        self._status = status
        self.skip_until(stored_lsn)
        self._row_code: dict[bytes, Encode] = {}
        self._keys: dict[int, dict[bytes, bytes]] = {}
        self._clock = _Clock()
        self._transaction: bytes | None = None

    def skip_until(self, stored_lsn: int) -> None:
        """Leave transactions up to this commit to the long way, which knows what is stored."""
        self._stored = stored_lsn.to_bytes(8)

    def learn(self, letter: bytes, shape: TableShape, schema_revision: int) -> None:
        """Make ready for a table's changes of one operation, unless that is done already."""
        keys = self._keys.setdefault(shape.relation_id, {})
        if letter in OPERATIONS and letter not in keys:
            keys[letter], encode = row_code(shape, schema_revision, letter)
            self._row_code[keys[letter]] = encode

    def forget(self, relation_id: int) -> None:
        for key in self._keys.pop(relation_id, {}).values():
            del self._row_code[key]

    def take(self, frames: list[bytes], first: int) -> int:
        """Queue plain frames from the given one on, and say where it stopped: at one that is not.

        One loop with local names: with transactions of one change, all of it is paid for each.
        """
        assembler, progress, outbox = self._assembler, self._progress, self._outbox
        rows = outbox.take_held()
        sent_before = progress.total_sent - len(rows)
        ends: list[tuple[int, int]] = []
        is_long = assembler.in_transaction and self._transaction is None
        transaction = self._transaction if assembler.in_transaction else None
        begun, at, ended, count = b"", first, 0, len(frames)
        while at < count:
            frame = frames[at]
            if len(frame) == _COMMIT_SIZE and frame[_KIND_AT] == _COMMIT:
                if transaction is None or not transaction.startswith(frame[27:35], _LSN_AT):
                    break
                if len(rows) > ended:
                    rows[-1] = outbox.as_last(rows[-1])
                    ended = len(rows)
                ends.append((sent_before + ended, _end_lsn_at(frame, 35)[0]))
                transaction = None
                at += 1
            elif len(frame) == _BEGIN_SIZE and frame[_KIND_AT] == _BEGIN:
                if transaction is not None or is_long or frame[26:34] <= self._stored:
                    break
                begun = frame
                transaction = self._pack(frame)
                assembler.ordinal = 0
                at += 1
            elif transaction is None:
                break
            else:
                before = at
                at = encode_run(frames, at, self._row_code, rows, transaction, assembler)
                # What stopped it is not tried again: it may be large, and is no plain change.
                stopped_by = frames[at][_KIND_AT : _KIND_AT + 1] if at < count else b""
                if at == before or stopped_by not in _EDGES:
                    break
        if not is_long:
            self._leave(begun, transaction)
        progress.sent(sent_before + len(rows) - progress.total_sent)
        outbox.extend(rows, hold=len(rows) > ended)
        if ends:
            progress.transactions_ended(ends, time.monotonic())
            self._status.last_commit_ts = assembler.commit_ts
        self._status.wal_messages += at - first
        return at

    def _pack(self, begin: bytes) -> bytes:
        """Pack what all changes of a transaction share, up to where each has its ordinal."""
        commit_ts = self._clock.write(_begin_at(begin, _KIND_AT + 1)[1])
        return b"".join(
            (_COMMIT_LSN, begin[26:34], _COMMIT_TS, commit_ts, _XID, begin[42:46], _SEQ)
        )

    def _leave(self, begun: bytes, transaction: bytes | None) -> None:
        """Tell the assembler where this stopped, as if it had followed all along."""
        assembler, self._transaction = self._assembler, transaction
        if begun:
            begin = Begin(*_begin_at(begun, _KIND_AT + 1))
            assembler.commit_ts = self._clock.write(begin.commit_time).decode()
            assembler.transaction = begin
        if transaction is None:
            assembler.transaction = None

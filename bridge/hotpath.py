"""The hot path: plain transactions from the WAL's bytes to messages, many frames at a time.

Inserts, and updates and deletes with nothing but a new row or a key, are most of any load. For them
one loop does what the decoder, the assembler, the relations and the codec do one after the other:
it knows a transaction's begin and end by their bytes, finds a table's row code (`rowcode`) by the
five bytes that name operation and table, and hands the outbox a list of messages.

It stops at the first frame that is not plain and leaves that one untouched to the long way, which
is the definition of what is right; then it goes on behind it. Everything the long way must know
(transaction, ordinal, rows of one record) is in the assembler whenever this loop is not running.
A property test holds the two ways against each other.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from itertools import islice

from bridge.outbox import Outbox
from bridge.packing import pack
from bridge.progress import Progress
from bridge.protocol.messages import Begin
from bridge.rowcode import OPERATIONS, Encode, row_code
from bridge.status import Status
from bridge.transactions import Assembler
from schemas.events import iso_timestamp
from schemas.shapes import TableShape

_KIND_AT = 25
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
        self._stored = stored_lsn.to_bytes(8)
        self._row_code: dict[bytes, Encode] = {}
        self._clock = _Clock()
        self._transaction: bytes | None = None

    def learn(self, shape: TableShape, schema_revision: int) -> None:
        self._row_code |= row_code(shape, schema_revision)

    def forget(self, relation_id: int) -> None:
        for letter in OPERATIONS:
            self._row_code.pop(letter + relation_id.to_bytes(4), None)

    def take(self, frames: Sequence[bytes], first: int) -> int:  # noqa: C901, PLR0912, PLR0915
        """Queue plain frames from the given one on, and say where it stopped: at one that is not.

        One loop with local names, because every call and attribute in it is paid for each change.
        """
        assembler, progress, outbox = self._assembler, self._progress, self._outbox
        find, stored = self._row_code.get, self._stored
        rows = outbox.take_held()
        add, is_open = rows.append, bool(rows)
        sent_before = progress.total_sent - len(rows)
        ends: list[tuple[int, int]] = []
        is_long = assembler.in_transaction and self._transaction is None
        transaction = self._transaction if assembler.in_transaction else None
        ordinal, record, repeats = assembler.ordinal, assembler.record, assembler.repeats
        begun, at = b"", first
        for frame in islice(frames, first, None):
            key = frame[25:30]
            encode = find(key)
            if encode is not None:
                if transaction is None:
                    break
                lsn = frame[1:9]
                repeat = repeats.get(key, 0) if lsn == record else 0
                row = encode(frame, ordinal, repeat, transaction)
                if row is None:
                    break
                add(row)
                is_open = True
                ordinal += 1
                if lsn != record:
                    record = lsn
                    repeats.clear()
                repeats[key] = repeat + 1
            elif len(frame) == _COMMIT_SIZE and frame[_KIND_AT] == _COMMIT:
                if transaction is None or not transaction.startswith(frame[27:35], _LSN_AT):
                    break
                if is_open:
                    rows[-1] = outbox.as_last(rows[-1])
                    is_open = False
                ends.append((sent_before + len(rows), _end_lsn_at(frame, 35)[0]))
                transaction = None
            elif len(frame) == _BEGIN_SIZE and frame[_KIND_AT] == _BEGIN:
                if transaction is not None or is_long or frame[26:34] <= stored:
                    break
                begun = frame
                transaction = self._pack(frame)
                ordinal = 0
            else:
                break
            at += 1
        assembler.ordinal, assembler.record = ordinal, record
        if not is_long:
            self._leave(begun, transaction)
        progress.sent(sent_before + len(rows) - progress.total_sent)
        outbox.extend(rows, hold=is_open)
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
            assembler.commit_ts = iso_timestamp(begin.commit_time)
            assembler.transaction = begin
        if transaction is None:
            assembler.transaction = None

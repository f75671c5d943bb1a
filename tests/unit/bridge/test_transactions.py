"""Where a change stands: transaction, ordinal, and the repeat that tells COPY rows apart."""

from __future__ import annotations

import pytest

from bridge.errors import MalformedWal
from bridge.protocol.decoder import decode_message
from bridge.transactions import Assembler, EmptiedTable, Placed, TransactionEnd
from tests.support import wal


def feed(assembler: Assembler, *frames: tuple[int, bytes]) -> list[Placed | TransactionEnd]:
    return [
        part for lsn, payload in frames for part in assembler.feed(lsn, decode_message(payload))
    ]


def placed(parts: list[Placed | TransactionEnd]) -> list[Placed]:
    return [part for part in parts if isinstance(part, Placed)]


def test_ordinals_count_from_zero() -> None:
    parts = feed(
        Assembler(),
        (1, wal.begin(100)),
        (10, wal.insert(1, ["a"])),
        (20, wal.delete(1, ["a"])),
        (100, wal.commit(100, 130)),
    )

    assert [(p.place.seq, p.place.lsn, p.place.commit_lsn) for p in placed(parts)] == [
        (0, 10, 100),
        (1, 20, 100),
    ]
    assert parts[-1] == TransactionEnd(130)


def test_rows_of_one_record_are_told_apart_by_a_repeat() -> None:
    """A COPY writes many rows in one WAL record; the LSN alone would make them one message."""
    parts = feed(
        Assembler(),
        (1, wal.begin(100)),
        (10, wal.insert(1, ["a"])),
        (10, wal.insert(1, ["b"])),
        (10, wal.insert(1, ["c"])),
        (20, wal.insert(1, ["d"])),
        (20, wal.insert(2, ["e"])),
        (100, wal.commit(100, 130)),
    )
    assert [p.repeat for p in placed(parts)] == [0, 1, 2, 0, 0]


def test_a_truncate_of_several_tables_is_a_change_of_each() -> None:
    parts = feed(
        Assembler(),
        (1, wal.begin(100)),
        (10, wal.truncate([1, 2])),
        (100, wal.commit(100, 130)),
    )
    assert [(p.message, p.place.seq) for p in placed(parts)] == [
        (EmptiedTable(1), 0),
        (EmptiedTable(2), 1),
    ]


def test_an_empty_transaction_still_ends() -> None:
    """Its end must be confirmed, or the slot would grow behind tables nobody publishes."""
    parts = feed(Assembler(), (1, wal.begin(100)), (100, wal.commit(100, 130)))
    assert parts == [TransactionEnd(130)]


def test_a_message_outside_transactions_has_a_place_no_transaction_can_have() -> None:
    """Its LSN is where its record ends, which is where the next commit record may begin."""
    parts = feed(Assembler(), (50, wal.message(60, "p", b"x", transactional=False)))

    (message,) = placed(parts)
    assert message.place.position < (60, 0)
    assert parts[-1] == TransactionEnd(60)


def test_a_message_inside_a_transaction_takes_an_ordinal() -> None:
    parts = feed(
        Assembler(),
        (1, wal.begin(100)),
        (10, wal.insert(1, ["a"])),
        (20, wal.message(20, "p", b"x")),
        (100, wal.commit(100, 130)),
    )
    assert [p.place.seq for p in placed(parts)] == [0, 1]


@pytest.mark.parametrize(
    "frames",
    [
        [wal.insert(1, ["a"])],
        [wal.commit(100, 130)],
        [wal.begin(100), wal.begin(200)],
        [wal.begin(100), wal.commit(200, 230)],
        [wal.begin(100), wal.message(60, "p", b"x", transactional=False)],
    ],
    ids=["change outside", "commit outside", "nested", "other commit", "message inside"],
)
def test_messages_out_of_order_stop_the_stream(frames: list[bytes]) -> None:
    """Guessing a transaction would break commit order silently."""
    with pytest.raises(MalformedWal):
        feed(Assembler(), *((1, frame) for frame in frames))

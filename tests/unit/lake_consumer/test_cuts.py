"""Which state a reader is shown, and what must never pass for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lake_consumer.cuts import CutBook, CutRow, TableNames, When, parse_when
from lake_consumer.ddl_plan import Former
from lake_consumer.errors import BadOption, NotReached, NotReadable
from schemas.names import TableName
from schemas.positions import Lsn

NOON = datetime(2025, 12, 8, 12, tzinfo=UTC)


def row(sequence: int, table: str | None, snapshot: int | None, log: int | None = 1) -> CutRow:
    return CutRow(
        table=table,
        commit_lsn=sequence * 0x100,
        commit_ts=NOON + timedelta(seconds=sequence),
        stream_seq=sequence,
        snapshot_id=snapshot,
        changes_snapshot_id=log,
    )


BOOK = CutBook(
    [
        row(30, None, None),
        row(10, "public.a", 101),
        row(20, "public.b", 201),
        row(20, "public.a", 102),
        row(40, "public.a", None, 44),
        row(50, "public.a", 105),
    ]
)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("latest-cut", None),
        ("0/1A2B3C", Lsn(0x1A2B3C)),
        ("6716", Lsn(6716)),
        ("2025-12-08T12:00:00Z", NOON),
        ("2025-12-08 12:00", NOON),
        ("2025-12-08T13:00:00+01:00", NOON),
    ],
)
def test_a_moment_is_read_as_people_write_it(text: str, when: object) -> None:
    """A position as PostgreSQL or the log writes it, or a time; without a zone it is UTC."""
    assert parse_when(text) == when


@pytest.mark.parametrize("text", ["", "yesterday", "0/", "-5", "latest", str(1 << 64)])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    """Guessing a moment would show another state than was asked for."""
    with pytest.raises(BadOption) as failure:
        parse_when(text)

    assert "0/1A2B3C" in failure.value.advice


def test_the_newest_cut_at_or_before_is_chosen() -> None:
    """A state is never shown before it was."""
    assert BOOK.at(None).stream_seq == 50
    assert BOOK.at(Lsn(20 * 0x100)).stream_seq == 20
    assert BOOK.at(Lsn(20 * 0x100 - 1)).stream_seq == 10
    assert BOOK.at(NOON + timedelta(seconds=35)).stream_seq == 30
    with pytest.raises(NotReadable, match="first is 0/A00"):
        BOOK.at(Lsn(1))
    with pytest.raises(NotReadable, match="no cut yet"):
        CutBook([]).at(None)


@pytest.mark.parametrize("when", [Lsn(50 * 0x100 + 1), NOON + timedelta(seconds=51)])
def test_a_moment_that_the_lake_has_not_reached_is_an_error(when: When) -> None:
    """Its newest state could be an older one than was asked for."""
    assert BOOK.at(Lsn(50 * 0x100)).stream_seq == 50
    assert BOOK.at(NOON + timedelta(seconds=50)).stream_seq == 50

    with pytest.raises(NotReached, match=r"newest cut is 0/3200 of 20\d\d-"):
        BOOK.at(when)


def test_a_table_stands_as_its_newest_row_says() -> None:
    """A lake commit writes rows for the tables it touched, and for no others."""
    assert BOOK.mirror_snapshot("public.a", BOOK.at(Lsn(30 * 0x100))) == 102
    assert BOOK.mirror_snapshot("public.b", BOOK.at(None)) == 201
    assert BOOK.mirror_snapshot("public.a", BOOK.at(None)) == 105


def test_a_row_without_snapshot_ends_the_mirror_and_not_the_log() -> None:
    """A stale mirror must never pass for the table at a later cut."""
    cut = BOOK.at(Lsn(40 * 0x100))

    with pytest.raises(
        NotReadable, match="cannot be read from cut 0/2800 on; it can again from 0/32"
    ):
        BOOK.mirror_snapshot("public.a", cut)
    assert BOOK.log_snapshot("public.a", cut) == 44


def test_a_table_that_came_later_is_not_in_an_earlier_cut() -> None:
    """It would look empty, and it was not."""
    with pytest.raises(NotReadable, match=r"public\.b is not in the lake .* first cut is 0/1400"):
        BOOK.mirror_snapshot("public.b", BOOK.at(Lsn(10 * 0x100)))


def test_cuts_are_listed_with_the_tables_they_touched() -> None:
    """One line per lake commit, also for one that touched no table."""
    assert [(cut.stream_seq, cut.tables) for cut in BOOK.cuts()] == [
        (10, ("public.a",)),
        (20, ("public.a", "public.b")),
        (30, ()),
        (40, ("public.a",)),
        (50, ("public.a",)),
    ]


def test_a_mirror_rebuilt_at_a_cut_can_be_read_at_that_cut() -> None:
    """The stream may stand still meanwhile: the same cut says first that it cannot, then how."""
    rows = [row(10, "public.a", 101), row(20, "public.a", 102), row(20, "public.a", None)]
    book = CutBook(rows)

    assert book.mirror_snapshot("public.a", book.at(None)) == 102
    assert book.unreadable() == set()


def test_tables_that_cannot_be_read_now_are_those_whose_newest_row_has_no_snapshot() -> None:
    rows = [
        row(10, "public.a", 101),
        row(10, "public.b", None),
        row(20, "public.a", None),
        row(20, "public.b", 201),
        row(30, None, None),
    ]

    assert CutBook(rows).unreadable() == {"public.a"}


def test_a_table_that_is_gone_is_read_only_as_it_was() -> None:
    """Whatever its last snapshot shows, the table is not that any more."""
    gone = replace(row(20, "public.a", 101), gone_since=20 * 0x100)
    book = CutBook([row(10, "public.a", 101), gone])

    assert book.mirror_snapshot("public.a", book.at(Lsn(10 * 0x100))) == 101
    with pytest.raises(NotReadable, match="gone since 0/1400"):
        book.mirror_snapshot("public.a", book.at(None))


def test_a_cut_without_a_change_log_says_so() -> None:
    book = CutBook([row(10, "public.a", 101, log=None)])

    with pytest.raises(NotReadable, match="not part of cut"):
        book.log_snapshot("public.a", book.at(None))


A, B, C = (TableName("public", name) for name in "abc")


def former(now: TableName, name: TableName, until: int) -> Former:
    return Former(table=now, name=name, relation=1, until=until)


def test_a_table_is_called_what_it_was_called_at_the_cut() -> None:
    """Renamed from a to b after 10, and to c after 20, whatever order that is told in."""
    names = TableNames([former(C, B, 20), former(C, A, 10), former(A, B, 5)])

    assert [names.name_at(C, at) for at in (1, 10, 11, 20, 21)] == [A, A, B, B, C]
    assert names.name_at(B, 1) == B


def test_tables_that_swapped_names_answer_to_the_ones_of_the_time() -> None:
    names = TableNames([former(A, B, 10), former(B, A, 10)])

    assert names.names_at([A, B], 10) == {A: B, B: A}
    assert names.names_at([A, B], 11) == {A: A, B: B}


def test_the_present_name_does_where_no_table_had_it_then() -> None:
    """Else it means the table that had it, which another one has moved away from since."""
    names = TableNames([former(C, A, 10)])

    assert names.names_at([B, C], 10) == {A: C, C: C, B: B}
    assert names.names_at([A, C], 10)[A] == C
    moved_on = TableNames([former(B, A, 10)])
    assert moved_on.names_at([B], 10) == {A: B, B: B}

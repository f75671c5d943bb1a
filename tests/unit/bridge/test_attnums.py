"""Columns are told apart, whatever was renamed, dropped or added before and after the change."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.attnums import Evidence, is_later, settle


def evidence(
    now: dict[str, int], before: dict[str, int] | None = None, moved_on: str = "", highest: int = 9
) -> Evidence:
    return Evidence(
        now=now, before=before or {}, moved_on=frozenset(moved_on.split()), highest=highest
    )


@pytest.mark.parametrize(
    ("xid", "than", "expected"),
    [
        (8, 7, True),
        (7, 7, False),
        (6, 7, False),
        (5, 2**32 - 5, True),
        (2**32 - 5, 5, False),
        (7 + 2**31 - 1, 7, True),
        (7 + 2**31, 7, False),
        (None, 7, False),
        (8, None, False),
    ],
)
def test_transaction_ids_wrap_around(xid: int | None, than: int | None, expected: bool) -> None:
    assert is_later(xid, than) is expected


def test_the_catalog_is_right_where_it_has_not_moved_on() -> None:
    """The name was taken again, by another column, before the change."""
    known = evidence({"id": 1, "a": 4}, before={"id": 1, "a": 3})
    assert settle(["id", "a"], known) == [1, 4]


def test_what_was_known_before_is_right_where_the_catalog_has_moved_on() -> None:
    """The name was taken again, by another column, after the change."""
    known = evidence({"id": 1, "a": 4}, before={"id": 1, "a": 3}, moved_on="a")
    assert settle(["id", "a"], known) == [1, 3]


def test_the_order_of_columns_overrules_transaction_ids() -> None:
    """A transaction may take its id long before it takes the table's lock."""
    known = evidence({"id": 1, "b": 4, "a": 5}, before={"id": 1, "a": 3, "b": 4})
    assert settle(["id", "a", "b"], known) == [1, 3, 4]
    known = evidence({"id": 1, "b": 4, "a": 5}, before={"id": 1, "a": 3, "b": 4}, moved_on="a")
    assert settle(["id", "b", "a"], known) == [1, 4, 5]


@pytest.mark.parametrize("moved_on", ["", "a b"])
def test_names_that_were_swapped_and_swapped_back_change_no_column(moved_on: str) -> None:
    """Before the change and now the names stand the other way round: only the order tells."""
    same = {"id": 1, "a": 2, "b": 3, "c": 4}

    assert settle(["id", "b", "a", "c"], evidence(same, same, moved_on)) == [1, 2, 3, 4]
    assert settle(["id", "c", "a", "b"], evidence(same, same, moved_on)) == [1, 2, 3, 4]


def test_a_column_renamed_twice_is_what_lived_before_and_lives_after() -> None:
    """Nobody knows the name it had in between."""
    known = evidence({"id": 1, "last": 5}, before={"id": 1, "first": 5}, moved_on="last")
    assert settle(["id", "middle"], known) == [1, 5]


def test_a_column_that_came_and_went_is_new() -> None:
    """It has an attnum that nothing had before, and that the catalog has given out."""
    known = evidence({"id": 1, "a": 3}, before={"id": 1, "a": 3}, highest=4)
    assert settle(["id", "a", "passing"], known) == [1, 3, 4]


def test_a_table_that_is_gone_is_as_it_was() -> None:
    known = evidence({}, before={"id": 2, "a": 5}, highest=0)
    assert settle(["id", "a"], known) == [2, 5]
    assert settle(["id", "a", "new"], known) == [2, 5, 6]
    assert settle(["id", "renamed"], known) == [2, 5]


def test_an_attnum_that_was_free_before_the_change_is_not_given_again() -> None:
    """Columns 2 to 4 were dropped long ago; what is unknown now is the one the table got since."""
    known = evidence({"id": 1}, before={"id": 1, "a": 5}, highest=6)
    assert settle(["id", "passing"], known) == [1, 6]
    gone = evidence({}, before={"id": 2, "a": 5}, highest=0)
    assert settle(["id", "renamed", "new"], gone) == [2, 5, 6]


def test_the_only_column_of_a_table_seen_first_is_its_first() -> None:
    assert settle(["a"], evidence({"z": 1}, highest=1)) == [1]


def test_of_what_nobody_knows_the_order_is_kept() -> None:
    assert settle(["a", "b"], evidence({}, highest=0)) == [1, 2]


def test_a_column_known_by_name_stays_where_there_is_just_room_before_it() -> None:
    known = evidence({"b": 2, "c": 3}, before={"b": 2, "c": 3})
    assert settle(["passing", "b"], known) == [1, 2]


@pytest.mark.parametrize(
    ("names", "now"),
    [("x y b", {"b": 2}), ("a b c x", {"a": 5, "b": 3, "c": 4}), ("x b a", {"a": 1, "b": 2})],
)
def test_every_column_gets_an_attnum_of_its_own_whatever_contradicts(
    names: str, now: dict[str, int]
) -> None:
    positions = settle(names.split(), evidence(now))
    assert positions == sorted(set(positions))
    assert len(positions) == len(names.split())


def test_of_names_that_contradict_the_order_the_catalogs_are_likelier() -> None:
    """Their rows are older than the change, so they were true when it was written."""
    known = evidence({"b": 3, "c": 5}, before={"b": 2, "c": 4})
    assert settle(["passing", "c", "b"], known)[1] == 5


@dataclass
class Table:
    """PostgreSQL's own rule: attnums count up and never come back."""

    columns: list[tuple[int, str]] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    highest: int = 0

    def alter(self, xid: int, how: int, name: str) -> None:
        at = how % (len(self.columns) + 2)
        if name in self.names() or at >= len(self.columns):
            if name not in self.names():
                self.highest += 1
                self.columns.append((self.highest, name))
                self.written[self.highest] = xid
            elif len(self.columns) > 1:
                self.columns = [column for column in self.columns if column[1] != name]
        else:
            attnum = self.columns[at][0]
            self.columns[at] = (attnum, name)
            self.written[attnum] = xid

    def names(self) -> list[str]:
        return [name for _, name in self.columns]

    def attnums(self) -> dict[str, int]:
        return {name: attnum for attnum, name in self.columns}


HISTORIES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abcd")), max_size=8)


def follow(table: Table, history: list[tuple[int, str]], first_xid: int) -> dict[str, int]:
    for xid, (how, name) in enumerate(history, first_xid):
        table.alter(xid, how, name)
    return table.attnums()


@given(first=HISTORIES, second=HISTORIES, third=HISTORIES)
def test_any_history_keeps_the_order_and_one_sided_ones_are_exact(
    first: list[tuple[int, str]], second: list[tuple[int, str]], third: list[tuple[int, str]]
) -> None:
    """Looked at before, or after, with nothing altered in between, a column is never mistaken."""
    table = Table([(1, "id")], {1: 0}, 1)
    before = follow(table, first, 100)
    truth, names = follow(table, second, 200), table.names()
    now = follow(table, third, 300)
    known = Evidence(
        now=now,
        before=before,
        moved_on=frozenset(name for name in now if is_later(table.written[now[name]], 299)),
        highest=table.highest,
    )

    positions = settle(names, known)

    assert positions == sorted(set(positions))
    if not second or not third:
        assert positions == list(truth.values())

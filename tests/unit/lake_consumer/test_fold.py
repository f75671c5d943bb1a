from __future__ import annotations

from lake_consumer.fold import Event, Outcome, fold


def put(key: int, *unchanged: str, before: int | None = None, **row: object) -> Event:
    return Event(key=key, row=row, before=before, unchanged=frozenset(unchanged))


def new(key: int, **row: object) -> Event:
    return Event(key=key, row=row, inserted=True)


def gone(key: int) -> Event:
    return Event(key=key, row=None)


def test_the_last_change_of_a_key_wins() -> None:
    """MERGE refuses two source rows for one key."""
    assert fold([put(1, a=1), put(1, a=2)]) == {1: Outcome(key=1, row={"a": 2}, held=True)}


def test_a_delete_and_an_insert_of_one_key_is_the_inserted_row() -> None:
    """The key exists before and after; nothing of the old row may shine through."""
    assert fold([put(1, a=1), gone(1), put(1, a=3)]) == {1: Outcome(key=1, row={"a": 3}, held=True)}


def test_a_row_that_came_and_went_is_gone() -> None:
    """It is deleted where the mirror has it, and only there."""
    assert fold([put(1, a=1), gone(1)]) == {1: Outcome(key=1, row=None, held=True)}
    assert fold([new(1, a=1), gone(1)]) == {1: Outcome(key=1, row=None, held=False)}


def test_an_unchanged_column_takes_the_value_of_an_earlier_change() -> None:
    """Unchanged TOAST is neither null nor a value."""
    folded = fold([put(1, a=1, big="x"), put(1, "big", a=2, big=None)])

    assert folded == {1: Outcome(key=1, row={"a": 2, "big": "x"}, held=True)}


def test_an_unchanged_column_nobody_sent_is_kept_from_the_mirror() -> None:
    """The value was sent in a batch before this one."""
    folded = fold([put(1, "big", a=2, big=None), put(1, "big", a=3, big=None)])

    assert folded[1].kept == {"big"}
    assert folded[1].base == 1
    assert folded[1].row == {"a": 3, "big": None}


def test_each_unchanged_column_finds_its_own_source() -> None:
    """One may be in the batch while the other is in the mirror."""
    folded = fold([put(1, "big", a=1, big=None, doc="d"), put(1, "big", "doc", a=2)])

    assert folded[1].row == {"a": 2, "doc": "d"}
    assert folded[1].kept == {"big"}


def test_a_change_of_key_ends_one_key_and_begins_another() -> None:
    """Otherwise the old row would stay in the mirror for ever."""
    folded = fold([put(2, before=1, a=1)])

    assert folded == {
        1: Outcome(key=1, row=None, held=True),
        2: Outcome(key=2, row={"a": 1}, held=False),
    }


def test_kept_columns_follow_a_row_through_changes_of_key() -> None:
    """The mirror has the value under the key the row had before the batch."""
    folded = fold([put(2, "big", before=1, a=1), put(3, "big", before=2, a=2)])

    assert folded[3].base == 1
    assert folded[3].kept == {"big"}
    assert folded[1].row is None
    assert folded[2].row is None


def test_a_key_that_was_left_can_be_taken_by_another_row() -> None:
    """Moves in a chain: 1 becomes 2, and a new 1 is inserted."""
    folded = fold([put(2, before=1, a=1), put(1, a=9)])

    assert folded[1].row == {"a": 9}
    assert folded[2].row == {"a": 1}


def test_a_kept_column_that_is_sent_later_is_no_longer_kept() -> None:
    """The newest value wins over the mirror's."""
    folded = fold([put(1, "big", a=1, big=None), put(1, a=2, big="new")])

    assert folded == {1: Outcome(key=1, row={"a": 2, "big": "new"}, held=True)}


def test_a_key_is_held_by_what_its_first_change_was() -> None:
    """A row that moved away and back, or was inserted again, was there before the batch."""
    away_and_back = fold([put(2, before=1, a=1), put(1, before=2, a=2)])
    again = fold([gone(1), new(1, a=2)])

    assert {key: outcome.held for key, outcome in away_and_back.items()} == {1: True, 2: False}
    assert again[1].held
    assert not fold([new(1, a=1), put(1, a=2)])[1].held

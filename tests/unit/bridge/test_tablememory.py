"""What consumers are owed: until it is told, it is not remembered."""

from __future__ import annotations

from dataclasses import replace

from bridge.storage import Attribute, File
from bridge.tablememory import Seen, TableMemory
from schemas.names import TableName
from schemas.shapes import NO_FILL
from schemas.types import parse_type
from tests.unit.bridge.test_storage import BEFORE, WIDER
from tests.unit.schemas.samples import SHAPE

OID = SHAPE.relation_id
REWRITTEN = replace(BEFORE, file=File(node=2), columns={**BEFORE.columns, 1: Attribute(9, 23, -1)})


def _memory() -> TableMemory:
    memory = TableMemory()
    memory.recall(SHAPE, BEFORE)
    return memory


def test_a_rewrite_is_owed_until_it_is_told_and_only_then_remembered() -> None:
    """A crash in between must find the same difference again."""
    memory = _memory()

    memory.assess(SHAPE, REWRITTEN, is_watched=True)

    assert memory.dress(SHAPE).rewritten
    assert memory.take_due() == {}
    assert memory.tell(replace(SHAPE, rewritten=False)) == ()
    assert memory.take_due() == {}
    assert memory.tell(memory.dress(SHAPE))
    assert not memory.dress(SHAPE).rewritten
    assert memory.take_due() == {OID: Seen(SHAPE.name, REWRITTEN)}


def test_a_harmless_difference_is_remembered_without_a_word() -> None:
    """Else the next column that is added would look like a rewrite."""
    memory, vacuumed = _memory(), replace(BEFORE, file=File(node=2))

    memory.assess(SHAPE, vacuumed, is_watched=True)

    assert not memory.owed
    assert memory.take_due() == {OID: Seen(SHAPE.name, vacuumed)}


def test_a_harmless_difference_does_not_cover_an_owed_one() -> None:
    """What was told last is all that may be remembered."""
    memory = _memory()

    memory.assess(SHAPE, REWRITTEN, is_watched=True)
    memory.assess(SHAPE, replace(REWRITTEN, file=File(node=3)), is_watched=True)

    assert memory.take_due() == {}
    assert OID in memory.owed


def test_a_fill_stays_with_its_column_and_leaves_with_its_type() -> None:
    """VACUUM FULL clears it in the catalog; consumers still need it."""
    memory = TableMemory()
    memory.recall(SHAPE, BEFORE)
    added = Attribute(701, 23, -1, has_missing=True, missing="5")
    memory.assess(WIDER, replace(BEFORE, columns={**BEFORE.columns, 9: added}), is_watched=True)
    cleared = Attribute(702, 23, -1, is_swapped=True)
    later = replace(BEFORE, file=File(node=2), columns={**BEFORE.columns, 9: cleared})

    memory.assess(WIDER, later, is_watched=True)

    assert not memory.dress(WIDER).rewritten
    assert memory.dress(WIDER).columns[-1].fill == 5
    other = replace(WIDER, columns=(*SHAPE.columns, replace(WIDER.columns[-1], type_oid=20)))
    assert memory.dress(other).columns[-1].fill is NO_FILL


def test_a_fill_outlives_a_change_between_varchar_and_text() -> None:
    """PostgreSQL rewrites nothing then, so older rows still hold it and nothing else says so."""
    memory = TableMemory()
    memory.recall(SHAPE, BEFORE)
    last = replace(WIDER.columns[-1], type_oid=1043, type=parse_type("text"))
    varchar = replace(WIDER, columns=(*SHAPE.columns, last))
    added = Attribute(701, 1043, -1, has_missing=True, missing="x")

    memory.assess(varchar, replace(BEFORE, columns={**BEFORE.columns, 9: added}), is_watched=True)

    text = replace(WIDER, columns=(*SHAPE.columns, replace(last, type_oid=25)))
    assert memory.dress(varchar).columns[-1].fill == "x"
    assert memory.dress(text).columns[-1].fill == "x"


def test_a_column_whose_fill_is_unknown_needs_a_snapshot() -> None:
    """It has a stored value that has no exact native form."""
    memory = TableMemory()
    memory.recall(SHAPE, BEFORE)
    odd = Attribute(701, 23, -1, has_missing=True)

    memory.assess(WIDER, replace(BEFORE, columns={**BEFORE.columns, 9: odd}), is_watched=True)

    assert memory.dress(WIDER).rewritten


def test_a_name_that_was_published_before_needs_a_snapshot() -> None:
    """Consumers hold rows of the table that had it."""
    memory = _memory()
    again = replace(SHAPE, relation_id=1)
    memory.assess(again, BEFORE, is_watched=True)
    forgotten = TableMemory({SHAPE.name})
    forgotten.assess(SHAPE, BEFORE, is_watched=True)
    fresh = TableMemory({TableName("public", "other")})
    fresh.assess(SHAPE, BEFORE, is_watched=True)

    assert memory.dress(again).rewritten
    assert forgotten.dress(SHAPE).rewritten
    assert not fresh.dress(SHAPE).rewritten


def test_an_older_shape_takes_fills_and_leaves_the_memory_alone() -> None:
    """The catalog has moved on; the look that covers all of it comes later."""
    memory = TableMemory()
    memory.recall(SHAPE, BEFORE)
    added = Attribute(701, 23, -1, has_missing=True, missing="5")
    now = replace(BEFORE, columns={**BEFORE.columns, 9: added})

    assert memory.dress_older(WIDER, now).columns[-1].fill == 5
    assert memory.dress_older(WIDER, replace(now, file=File(node=7))).rewritten
    assert not memory.dress_older(WIDER, None).rewritten
    assert memory.seen[OID].storage == BEFORE


def test_a_reported_rewrite_is_believed_only_with_another_file() -> None:
    """Any role can write the report; without a new file it would reload any table."""
    memory, moved = _memory(), replace(BEFORE, file=File(node=2))

    memory.assess(SHAPE, BEFORE, is_watched=True, is_rewritten=True)
    assert not memory.dress(SHAPE).rewritten
    memory.assess(SHAPE, moved, is_watched=True, is_rewritten=True)
    assert memory.dress(SHAPE).rewritten


ADDED = replace(
    BEFORE,
    columns={**BEFORE.columns, 9: Attribute(701, 23, -1, has_missing=True, missing="5")},
)


def test_an_added_column_is_owed_until_a_shape_that_has_it_is_told() -> None:
    """The table may be quiet for ever, and a session may end before the announcement."""
    memory = _memory()

    memory.assess(WIDER, ADDED, is_watched=True)

    assert not memory.dress(WIDER).rewritten
    memory.tell(memory.dress(SHAPE))
    assert memory.take_due() == {}
    memory.tell(memory.dress(WIDER))
    assert memory.take_due() == {OID: Seen(SHAPE.name, ADDED)}
    assert not memory.owed


def test_a_mark_told_with_an_older_shape_still_owes_the_added_column() -> None:
    """A backlog is announced in the shapes it was written in."""
    memory, both = _memory(), replace(ADDED, types={"e1": "blue"})
    memory.seen[OID] = Seen(SHAPE.name, replace(BEFORE, types={"e1": "sad"}))

    memory.assess(WIDER, both, is_watched=True)

    assert memory.tell(memory.dress(SHAPE))
    assert not memory.dress(WIDER).rewritten
    assert OID in memory.owed


def test_a_fill_found_later_than_its_column_was_announced_needs_a_snapshot() -> None:
    """Rows that were changed in between hold other values, NULL too, and no fill tells which."""
    memory, restarted = _memory(), TableMemory()
    memory.tell(memory.dress_older(WIDER, None))
    restarted.recall(WIDER, BEFORE)

    for one in (memory, restarted):
        one.assess(WIDER, ADDED, is_watched=True)

        assert one.dress(WIDER).rewritten
        assert one.dress(WIDER).columns[-1].fill == 5
        one.tell(one.dress(WIDER))
        one.assess(WIDER, replace(ADDED, file=File(node=2)), is_watched=True)
        assert not one.owed


def test_a_column_announced_at_an_attnum_it_never_had_needs_a_snapshot() -> None:
    """Of a locked table the attnum is a guess; rows came under the wrong one."""
    memory = _memory()
    elsewhere = replace(WIDER, columns=(*SHAPE.columns, replace(WIDER.columns[-1], position=8)))

    memory.tell(memory.dress_older(elsewhere, None))
    memory.assess(WIDER, ADDED, is_watched=True)

    assert memory.dress(WIDER).rewritten


def test_a_column_of_nulls_announced_early_needs_no_snapshot() -> None:
    """A column without a fill is NULL in existing rows."""
    memory = _memory()
    memory.tell(memory.dress_older(WIDER, None))

    nulls = replace(BEFORE, columns={**BEFORE.columns, 9: Attribute(701, 23, -1)})
    memory.assess(WIDER, nulls, is_watched=True)

    assert not memory.dress(WIDER).rewritten


def test_a_new_table_is_remembered_without_a_word() -> None:
    """Else a restart would not notice what is rewritten while the bridge is away."""
    memory = TableMemory()

    memory.assess(SHAPE, BEFORE, is_watched=True)

    assert memory.take_due() == {OID: Seen(SHAPE.name, BEFORE)}


def test_fills_of_an_earlier_session_are_announced_again() -> None:
    """The catalog may have lost them by then, and consumers may begin at this announcement."""
    memory = TableMemory()
    filled = replace(WIDER, columns=(*SHAPE.columns, replace(WIDER.columns[-1], fill=5)))

    memory.recall(filled, BEFORE)

    assert [column.fill for column in memory.dress(WIDER).columns] == [
        *(column.fill for column in memory.dress(SHAPE).columns),
        5,
    ]


def test_a_name_that_was_given_up_needs_a_snapshot_when_it_is_published_again() -> None:
    """Unless another table has it, whose announcement has told consumers already."""
    memory, taken = _memory(), _memory()

    memory.forget(OID, is_name_free=True)
    taken.forget(OID, is_name_free=False)

    for one in (memory, taken):
        one.assess(SHAPE, BEFORE, is_watched=True)
    assert memory.dress(SHAPE).rewritten
    assert not taken.dress(SHAPE).rewritten


def test_rows_may_differ_where_a_trace_says_so_or_nothing_is_known() -> None:
    """Of a table that was altered again, or is gone, before the bridge looked."""
    memory, moved = _memory(), replace(BEFORE, file=File(node=2))

    assert not memory.may_differ(OID, BEFORE, is_rewritten=True)
    assert not memory.may_differ(OID, moved, is_rewritten=False)
    assert memory.may_differ(OID, moved, is_rewritten=True)
    assert memory.may_differ(OID, REWRITTEN, is_rewritten=False)
    assert memory.may_differ(OID, ADDED, is_rewritten=False)
    assert memory.may_differ(OID, None, is_rewritten=False)
    assert memory.seen[OID].storage == BEFORE
    memory.owe(OID, "for the test")
    assert memory.may_differ(OID, BEFORE, is_rewritten=False)


def test_a_table_that_has_its_name_back_was_known_by_another() -> None:
    """Changes announced it by a name that the catalog has left again; a look in between is old."""
    memory, other = _memory(), TableName("public", "other")
    assert memory.other_name(OID, SHAPE.name) is None
    assert memory.other_name(OID + 1, SHAPE.name) is None
    version = memory.version

    memory.announce(OID, other)
    memory.announce(OID, SHAPE.name)

    assert memory.other_name(OID, SHAPE.name) == other
    assert memory.other_name(OID, other) == SHAPE.name
    assert memory.version == version + 2
    memory.announce(OID, SHAPE.name)
    assert memory.version == version + 2
    memory.rename(OID, SHAPE.name)
    assert memory.other_name(OID, SHAPE.name) is None


def test_a_file_that_was_new_at_the_start_counts_when_the_wal_tells_why() -> None:
    """By itself it may be VACUUM FULL's; a report of the rewrite is read only afterwards."""
    memory, moved = _memory(), replace(BEFORE, file=File(node=2))
    memory.assess(SHAPE, moved, is_watched=False)
    assert not memory.owed
    assert memory.may_differ(OID, moved, is_rewritten=True)
    assert not memory.may_differ(OID, moved, is_rewritten=False)

    memory.assess(SHAPE, moved, is_watched=True, is_rewritten=True)

    assert memory.tell(memory.dress(SHAPE))
    memory.assess(SHAPE, moved, is_watched=True, is_rewritten=True)
    assert not memory.owed, "once is enough"

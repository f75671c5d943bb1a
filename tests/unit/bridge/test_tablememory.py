"""What consumers are owed: until it is told, it is not remembered."""

from __future__ import annotations

from dataclasses import replace

from bridge.storage import Attribute
from bridge.tablememory import Seen, TableMemory
from schemas.names import TableName
from schemas.shapes import NO_FILL
from schemas.types import parse_type
from tests.unit.bridge.test_storage import BEFORE, WIDER
from tests.unit.schemas.samples import SHAPE

OID = SHAPE.relation_id
REWRITTEN = replace(BEFORE, filenode=2, columns={**BEFORE.columns, 1: Attribute(9, 23, -1)})


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
    memory.tell(OID)
    assert not memory.dress(SHAPE).rewritten
    assert memory.take_due() == {OID: Seen(SHAPE.name, REWRITTEN)}


def test_a_harmless_difference_is_remembered_without_a_word() -> None:
    """Else the next column that is added would look like a rewrite."""
    memory, vacuumed = _memory(), replace(BEFORE, filenode=2)

    memory.assess(SHAPE, vacuumed, is_watched=True)

    assert not memory.owed
    assert memory.take_due() == {OID: Seen(SHAPE.name, vacuumed)}


def test_a_harmless_difference_does_not_cover_an_owed_one() -> None:
    """What was told last is all that may be remembered."""
    memory = _memory()

    memory.assess(SHAPE, REWRITTEN, is_watched=True)
    memory.assess(SHAPE, replace(REWRITTEN, filenode=3), is_watched=True)

    assert memory.take_due() == {}
    assert OID in memory.owed


def test_a_fill_stays_with_its_column_and_leaves_with_its_type() -> None:
    """VACUUM FULL clears it in the catalog; consumers still need it."""
    memory = TableMemory()
    memory.recall(SHAPE, BEFORE)
    added = Attribute(701, 23, -1, has_missing=True, missing="5")
    memory.assess(WIDER, replace(BEFORE, columns={**BEFORE.columns, 9: added}), is_watched=True)
    cleared = Attribute(702, 23, -1, is_swapped=True)
    later = replace(BEFORE, filenode=2, columns={**BEFORE.columns, 9: cleared})

    memory.assess(WIDER, later, is_watched=True)

    assert not memory.owed
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
    assert memory.dress_older(WIDER, replace(now, filenode=7)).rewritten
    assert not memory.dress_older(WIDER, None).rewritten
    assert memory.seen[OID].storage == BEFORE


def test_a_reported_rewrite_is_believed_only_with_another_file() -> None:
    """Any role can write the report; without a new file it would reload any table."""
    memory, moved = _memory(), replace(BEFORE, filenode=2)

    memory.assess(SHAPE, BEFORE, is_watched=True, is_rewritten=True)
    assert not memory.dress(SHAPE).rewritten
    memory.assess(SHAPE, moved, is_watched=True, is_rewritten=True)
    assert memory.dress(SHAPE).rewritten

from __future__ import annotations

from dataclasses import replace

import pytest

from lake_consumer.columns import LakeColumn, columns_of, read_doc
from lake_consumer.errors import IncompatibleShape
from lake_consumer.evolution import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SetAside,
    Step,
    WidenColumn,
    can_hold,
    names_in,
    plan_earlier,
    plan_log,
    plan_mirror,
    plan_rebuild,
    renames_in,
)
from schemas.types import parse_type
from tests.support.lake import make_shape


def column(position: int, name: str, type: str = "text") -> LakeColumn:
    return LakeColumn(position, name, parse_type(type))


ID, NAME, AGE = column(1, "id", "int32"), column(2, "name"), column(3, "age", "int32")


def names_after(held: tuple[LakeColumn, ...], steps: list[Step]) -> dict[int, str]:
    """Take the steps as Iceberg would, refusing a name that is taken."""
    names = {c.position: c.name for c in held}
    for step in steps:
        match step:
            case AddColumn(c):
                assert c.name not in names.values()
                names[c.position] = c.name
            case DropColumn(c):
                del names[c.position]
            case SetAside(before, after):
                names.pop(before.position)
                assert after.name not in names.values()
                gone = after.aside or after.relation is not None
                names[-after.position if gone else after.position] = after.name
            case RenameColumn(before, after):
                assert after not in names.values()
                found = next(p for p, name in names.items() if name == before)
                names[found] = after
    return names


def test_the_same_shape_needs_no_step() -> None:
    """Every bridge restart announces shapes again."""
    assert plan_mirror("t", (ID, NAME), (ID, NAME)) == []
    assert plan_log((ID, NAME), (ID, NAME)) == []


def test_a_rename_keeps_the_column() -> None:
    """Known by attnum: a drop and an add would lose every value."""
    assert plan_mirror("t", (ID, NAME), (ID, column(2, "title"))) == [RenameColumn("name", "title")]


def test_a_name_is_given_up_before_another_column_takes_it() -> None:
    """Two renames in a row: Iceberg refuses a name that is still there."""
    held = (column(1, "a"), column(2, "b"))

    steps = plan_mirror("t", held, (column(1, "b"), column(2, "c")))

    assert names_after(held, steps) == {1: "b", 2: "c"}


def test_names_can_be_swapped() -> None:
    """One transaction may rename a to b and b to a."""
    held, wanted = (column(1, "a"), column(2, "b")), (column(1, "b"), column(2, "a"))

    assert names_after(held, plan_mirror("t", held, wanted)) == {1: "b", 2: "a"}


def test_a_dropped_column_leaves_the_mirror_and_stays_in_the_log() -> None:
    """The mirror is the table; the log forgets nothing."""
    assert plan_mirror("t", (ID, NAME), (ID,)) == [DropColumn(NAME)]
    assert plan_log((ID, NAME), (ID,)) == []


def test_a_name_used_again_is_another_column() -> None:
    """The old values belong to the old column only."""
    held, wanted = (ID, NAME), (ID, column(5, "name", "int64"))

    assert names_after(held, plan_mirror("t", held, wanted)) == {1: "id", 5: "name"}
    assert names_after(held, plan_log(held, wanted)) == {1: "id", 2: "name__2", 5: "name"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int16", "int32"),
        ("int32", "int64"),
        ("float32", "float64"),
        ("decimal(10,2)", "decimal(12,2)"),
        ("decimal(9,2)", "decimal(10,2)"),
        ("decimal", "text"),
    ],
)
def test_wider_types_are_followed_in_place(before: str, after: str) -> None:
    """Iceberg promotes these without touching a file."""
    wanted = column(3, "age", after)

    assert plan_mirror("t", (column(3, "age", before),), (wanted,)) == [WidenColumn(wanted)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("text", "int32"),
        ("int64", "int32"),
        ("decimal(10,2)", "decimal(10,3)"),
        ("decimal(20,2)", "decimal(12,2)"),
        ("decimal(10,2)", "int32"),
        ("uuid", "text"),
        ("json", "text"),
        ("text", "json"),
        ("list<json>", "list<text>"),
        ("list<int32>", "list<text>"),
    ],
)
def test_what_iceberg_cannot_do_is_refused_by_name(before: str, after: str) -> None:
    """Guessing a cast would alter values."""
    assert not can_hold(parse_type(before), parse_type(after))
    with pytest.raises(IncompatibleShape, match="column age of t changed"):
        plan_mirror("t", (column(3, "age", before),), (column(3, "age", after),))


def test_the_log_sets_aside_what_cannot_become_what_it_is_now() -> None:
    """The log never waits: old values stay in the old column, new ones have a new one."""
    wanted = (ID, column(2, "name", "int32"))

    steps = plan_log((ID, NAME), wanted)

    aside = replace(NAME, name="name__2", aside=True)
    assert steps == [SetAside(NAME, aside), AddColumn(wanted[1])]
    again = plan_log((ID, aside, wanted[1]), (ID, NAME))
    assert [step.after.name for step in again if isinstance(step, SetAside)] == ["name__2_"]


@pytest.mark.parametrize("type", ["uuid", "json", "list<json>"])
def test_any_column_can_stay_what_it_is(type: str) -> None:
    """A uuid or a document is refused as something else, never as itself."""
    assert plan_mirror("t", (column(3, "age", type),), (column(3, "age", type),)) == []
    assert can_hold(parse_type(type), parse_type(type))


def test_a_column_steps_aside_to_a_name_that_is_free() -> None:
    """Neither a column of the log has it, wherever that stands, nor one the table has now."""
    held = (ID, NAME, replace(column(2, "name__2", "int64"), aside=True))
    wanted = (ID, column(2, "name", "int32"), column(4, "name__2_"))

    steps = plan_log(held, wanted)

    assert steps[0] == SetAside(NAME, replace(NAME, name="name__2__", aside=True))


def test_the_log_of_a_table_made_anew_twice_tells_all_three_apart() -> None:
    oldest = replace(column(1, "key", "int32"), relation=66)

    steps = plan_log((oldest, ID), (column(1, "code"),), left=77)

    assert steps == [SetAside(ID, replace(ID, relation=77)), AddColumn(column(1, "code"))]


def test_the_log_of_a_table_made_anew_keeps_the_columns_of_the_old_one() -> None:
    """The same attnum is another column, and says so."""
    steps = plan_log((ID, NAME), (column(1, "name"),), left=77)

    assert steps == [
        SetAside(ID, replace(ID, relation=77)),
        SetAside(NAME, replace(NAME, name="name__2", relation=77)),
        AddColumn(column(1, "name")),
    ]


def test_each_revision_finds_its_own_columns_in_the_log() -> None:
    """One batch may hold changes from before and from behind a change of shape."""
    held = (
        replace(column(1, "id__1", "int32"), relation=77),
        column(1, "id", "int32"),
        replace(column(2, "v__2"), aside=True),
        column(2, "v", "int32"),
    )
    texts = make_shape("t", {"id": "int32", "v": "text"})
    ints = make_shape("t", {"id": "int32", "v": "int32"})
    old = replace(make_shape("t", {"key": "int32"}, key=("key",)), relation_id=77)

    assert names_in(texts, held) == (None, "id", "v", None)
    assert names_in(ints, held) == (None, "id", None, "v")
    assert names_in(old, held) == ("key", None, None, None)


def test_a_change_goes_to_the_column_the_table_has_now_if_it_fits() -> None:
    """Also where a wider one of another revision was added to the log behind it."""
    held = (ID, column(2, "v", "int32"), replace(column(2, "v__2", "int64"), aside=True))

    assert names_in(make_shape("t", {"id": "int32", "v": "int32"}), held) == ("id", "v", None)
    assert names_in(make_shape("t", {"id": "int32", "v": "int64"}), held) == ("id", None, "v")


def test_a_mirror_that_is_rebuilt_takes_any_shape() -> None:
    """Its rows are written again, so a column may be another one of the same name."""
    wanted = (ID, column(2, "name", "int32"))

    assert plan_rebuild((ID, NAME), wanted) == [DropColumn(NAME), AddColumn(wanted[1])]
    assert plan_rebuild((ID, NAME), (ID, NAME)) == []
    anew = plan_rebuild((ID,), (ID,), anew=True)
    assert anew == [DropColumn(ID), AddColumn(ID)]


def test_a_column_describes_itself() -> None:
    """The identity lives in the Iceberg schema, so it changes in the same commit."""
    assert read_doc("age", AGE.doc) == AGE
    gone = replace(AGE, aside=True, relation=77)
    assert read_doc("age", gone.doc) == gone
    assert read_doc("note", "somebody's own column") is None


def test_only_what_the_table_has_or_had_last_is_current() -> None:
    assert AGE.is_current
    assert not replace(AGE, aside=True).is_current
    assert not replace(AGE, relation=77).is_current


def test_a_log_that_is_past_a_revision_makes_room_for_its_columns() -> None:
    """A snapshot or KV may tell the newest shape while older changes are still in the stream."""
    newest = make_shape("t", {"id": "int32", "v": "int64"})
    earlier = make_shape("t", {"id": "int32", "v": "text", "gone": "date"})
    held = (ID, column(2, "v", "int64"))

    steps = plan_earlier(held, earlier, newest)

    aside, dropped = replace(column(2, "v__2"), aside=True), column(3, "gone", "date")
    assert steps == [AddColumn(aside), AddColumn(dropped)]
    assert names_in(earlier, (*held, aside, dropped)) == ("id", None, "v", "gone")
    assert names_in(newest, (*held, aside, dropped)) == ("id", "v", None, None)
    assert plan_earlier((*held, aside, dropped), earlier, newest) == []


def test_columns_of_an_earlier_revision_get_names_of_their_own() -> None:
    """One that makes room may take the very name that the next one has."""
    newest = make_shape("t", {"id": "int32", "v": "int64"})
    earlier = make_shape("t", {"id": "int32", "v": "text", "v__2": "date"})

    steps = plan_earlier((ID, column(2, "v", "int64")), earlier, newest)

    assert [step.column.name for step in steps if isinstance(step, AddColumn)] == [
        "v__2", "v__2__3",
    ]  # fmt: skip


def test_a_log_makes_room_for_the_table_that_was_there_before() -> None:
    """Another relation's columns are other columns, whatever their names and attnums."""
    newest = make_shape("t", {"id": "int32", "v": "text"})
    earlier = replace(newest, relation_id=77)
    held = (ID, column(2, "v"))

    steps = plan_earlier(held, earlier, newest)

    added = tuple(step.column for step in steps if isinstance(step, AddColumn))
    assert [(c.name, c.relation) for c in added] == [("id__1", 77), ("v__2", 77)]
    assert names_in(earlier, (*held, *added)) == (None, None, "id", "v")
    assert plan_earlier((*held, *added), earlier, newest) == []


def test_renames_name_only_columns_that_are_called_otherwise_now() -> None:
    """Unchanged TOAST is named as its own revision called it; two columns may exchange names."""
    before = make_shape("t", {"id": "int64", "a": "text", "b": "text"})
    after = make_shape("t", {"id": "int64", "b": "text", "a": "text"})

    renames = renames_in({1: before, 2: after}, columns_of(after))

    assert renames == {(1, "a"): "b", (1, "b"): "a"}


def take(held: tuple[LakeColumn, ...], steps: list[Step]) -> tuple[LakeColumn, ...]:
    """The columns after the steps, refusing a name that is taken."""
    columns = {c.name: c for c in held}
    for step in steps:
        match step:
            case AddColumn(c):
                assert c.name not in columns
                columns[c.name] = c
            case SetAside(before, after):
                assert columns.pop(before.name) == before
                assert after.name not in columns
                columns[after.name] = after
            case RenameColumn(before, after):
                assert after not in columns
                columns[after] = replace(columns.pop(before), name=after)
            case WidenColumn(c):
                columns[c.name] = c
            case DropColumn(c):
                del columns[c.name]
    return tuple(columns.values())


def test_a_relation_that_comes_back_has_its_columns_back() -> None:
    """Two tables swap names, and swap again: values must not go where the first ones are."""
    columns = {"id": "int32", "name": "text"}
    first, second = (make_shape("t", columns, relation=relation) for relation in (66, 77))
    start = (ID, NAME)
    once = take(start, plan_log(start, (ID, NAME), left=66, now=77))
    again = take(once, plan_log(once, (ID, NAME), left=77, now=66))

    assert {c for c in again if c.is_current} == {ID, NAME}
    assert len(again) == 4
    called = dict(zip((c.name for c in again), names_in(first, again), strict=True))
    assert (called["id"], called["name"]) == ("id", "name")
    other = dict(zip(again, names_in(second, again), strict=True))
    assert {c.relation for c, name in other.items() if name is not None} == {77}
    third = take(again, plan_log(again, (ID, NAME), left=66, now=77))
    assert {c for c in third if c.is_current} == {ID, NAME}
    assert len(third) == 4


def test_of_columns_that_come_back_one_is_the_tables() -> None:
    """A log that met an earlier revision late may have two columns for one attnum."""
    wide = column(1, "id", "int64")
    held = (
        replace(ID, name="id__1", relation=66),
        replace(wide, name="id__1_", relation=66),
        replace(NAME, name="name__2", relation=66),
        NAME,
    )
    found = take(held, plan_log(held, (wide, column(2, "name", "int32")), left=77, now=66))
    assert {c for c in found if c.is_current} == {wide, column(2, "name", "int32")}
    assert [c.relation for c in found if c.aside] == [None, None]

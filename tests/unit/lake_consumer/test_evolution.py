from __future__ import annotations

import pytest

from lake_consumer.columns import LakeColumn, read_doc
from lake_consumer.errors import IncompatibleShape
from lake_consumer.evolution import (
    AddColumn,
    DropColumn,
    RenameColumn,
    Step,
    WidenColumn,
    can_hold,
    plan_log,
    plan_mirror,
)
from schemas.types import parse_type


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
            case RenameColumn(before, after):
                assert after not in names.values()
                found = next(p for p, name in names.items() if name == before)
                names[found] = after
    return names


def test_the_same_shape_needs_no_step() -> None:
    """Every bridge restart announces shapes again."""
    assert plan_mirror("t", (ID, NAME), (ID, NAME)) == []
    assert plan_log("t", (ID, NAME), (ID, NAME)) == []


def test_a_rename_keeps_the_column() -> None:
    """Known by attnum: a drop and an add would lose every value."""
    assert plan_mirror("t", (ID, NAME), (ID, column(2, "title"))) == [RenameColumn("name", "title")]


def test_names_can_be_swapped() -> None:
    """One transaction may rename a to b and b to a."""
    held, wanted = (column(1, "a"), column(2, "b")), (column(1, "b"), column(2, "a"))

    assert names_after(held, plan_mirror("t", held, wanted)) == {1: "b", 2: "a"}


def test_a_dropped_column_leaves_the_mirror_and_stays_in_the_log() -> None:
    """The mirror is the table; the log forgets nothing."""
    assert plan_mirror("t", (ID, NAME), (ID,)) == [DropColumn(NAME)]
    assert plan_log("t", (ID, NAME), (ID,)) == []


def test_a_name_used_again_is_another_column() -> None:
    """The old values belong to the old column only."""
    held, wanted = (ID, NAME), (ID, column(5, "name", "int64"))

    assert names_after(held, plan_mirror("t", held, wanted)) == {1: "id", 5: "name"}
    assert names_after(held, plan_log("t", held, wanted)) == {1: "id", 2: "name__2", 5: "name"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int16", "int32"),
        ("int32", "int64"),
        ("float32", "float64"),
        ("decimal(10,2)", "decimal(12,2)"),
        ("text", "json"),
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
        ("uuid", "text"),
        ("list<int32>", "list<text>"),
    ],
)
def test_what_iceberg_cannot_do_is_refused_by_name(before: str, after: str) -> None:
    """Guessing a cast would alter values."""
    assert not can_hold(parse_type(before), parse_type(after))
    with pytest.raises(IncompatibleShape, match="column age of t changed"):
        plan_mirror("t", (column(3, "age", before),), (column(3, "age", after),))


def test_a_column_describes_itself() -> None:
    """The identity lives in the Iceberg schema, so it changes in the same commit."""
    assert read_doc("age", AGE.doc) == AGE
    assert read_doc("note", "somebody's own column") is None

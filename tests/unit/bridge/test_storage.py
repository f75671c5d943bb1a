"""Which DDL changed values: a table of facts before and after, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.storage import Attribute, File, TableStorage, added_fills, compare
from schemas.shapes import NO_FILL
from schemas.types import parse_type
from tests.unit.schemas.samples import SHAPE

INT, TEXT, VARCHAR, CIDR, INET = 23, 25, 1043, 650, 869
ID = Attribute(700, INT, -1)
NAME = Attribute(700, TEXT, -1)
FILLED = Attribute(700, INT, -1, has_missing=True)
PLAIN = TableStorage(
    file=File(node=1),
    columns={1: ID, 2: NAME, 3: FILLED},
    membership=(10, 11),
    publishing="t t t t t",
    types={"e1": "sad", "c2": "1:23:-1:f"},
)
ROOT = replace(
    PLAIN,
    file=File(),
    leaves={100: File(node=1, toast=50), 101: File(node=2)},
    joined={100: "600", 101: "600/601"},
)


def _with(storage: TableStorage, **change: Any) -> TableStorage:
    columns = {int(k[1:]): v for k, v in change.items() if k[1:].isdecimal()}
    rest = {k: v for k, v in change.items() if not k[1:].isdecimal()}
    return replace(storage, columns={**storage.columns, **columns}, **rest)


TOASTED = replace(PLAIN, file=File(node=1, toast=60))
GENERATED = _with(PLAIN, c2=Attribute(700, TEXT, -1, is_generated=True))


def _leaf(oid: int = 100, **facts: Any) -> TableStorage:
    """The root with other facts of one partition's file."""
    return _with(ROOT, leaves={**ROOT.leaves, oid: File(**facts)})


HARMLESS = {
    "nothing": (PLAIN, PLAIN),
    "VACUUM FULL, CLUSTER, TRUNCATE": (PLAIN, _with(PLAIN, file=File(node=2))),
    "VACUUM FULL clears a missing value": (
        PLAIN,
        _with(PLAIN, file=File(node=2), c3=Attribute(701, INT, -1, is_swapped=True)),
    ),
    "column renamed": (PLAIN, _with(PLAIN, c2=Attribute(701, TEXT, -1))),
    "text to varchar": (PLAIN, _with(PLAIN, c2=Attribute(701, VARCHAR, -1))),
    "column dropped": (PLAIN, _with(PLAIN, c2=Attribute(701, 0, -1, is_dropped=True))),
    "column added": (PLAIN, _with(PLAIN, c4=Attribute(701, INT, -1))),
    "varchar widened": (
        _with(PLAIN, c2=Attribute(700, VARCHAR, 9)),
        _with(PLAIN, c2=Attribute(701, VARCHAR, 14)),
    ),
    "label added": (PLAIN, _with(PLAIN, types={**PLAIN.types, "e3": "glad"})),
    "one of two memberships left": (PLAIN, _with(PLAIN, membership=(11, 12))),
    "empty partition created": (
        ROOT,
        _with(ROOT, leaves={**ROOT.leaves, 102: File(node=3, is_empty=True)}),
    ),
    "VACUUM FULL of a partition": (ROOT, _leaf(node=9, toast=50)),
    "VACUUM FULL of a partition without TOAST": (ROOT, _leaf(101, node=9)),
    "a TOAST table is added": (PLAIN, _with(PLAIN, file=File(node=1, toast=60))),
    "VACUUM FULL and a TOAST table is added": (PLAIN, _with(PLAIN, file=File(node=2, toast=60))),
    "VACUUM FULL keeps the TOAST table": (TOASTED, _with(TOASTED, file=File(node=2, toast=60))),
    "how partitions joined was not remembered": (_with(ROOT, joined={}), ROOT),
    "a column that was generated is dropped": (
        GENERATED,
        _with(GENERATED, c2=Attribute(701, 0, -1, is_dropped=True)),
    ),
    "generated columns were not remembered": (PLAIN, GENERATED),
}

REWRITES = {
    "partition with rows attached beside an empty one": (
        ROOT,
        _with(
            ROOT,
            leaves={**ROOT.leaves, 102: File(node=3, is_empty=True), 103: File(node=4)},
        ),
    ),
    "empty partition created, another dropped": (
        ROOT,
        _with(ROOT, leaves={101: ROOT.leaves[101], 102: File(node=3, is_empty=True)}),
    ),
    "same type USING": (PLAIN, _with(PLAIN, file=File(node=2), c2=Attribute(701, TEXT, -1))),
    "same type USING, on a column with a missing value": (
        PLAIN,
        _with(PLAIN, file=File(node=2), c3=Attribute(701, INT, -1)),
    ),
    "other type": (PLAIN, _with(PLAIN, file=File(node=2), c1=Attribute(701, 20, -1))),
    "other modifier": (PLAIN, _with(PLAIN, file=File(node=2), c2=Attribute(701, TEXT, 7))),
    "volatile default": (PLAIN, _with(PLAIN, file=File(node=2), c4=Attribute(701, INT, -1))),
    "cidr read as inet": (
        _with(PLAIN, c2=Attribute(700, CIDR, -1)),
        _with(PLAIN, c2=Attribute(701, INET, -1)),
    ),
    "published anew": (PLAIN, _with(PLAIN, membership=(12,))),
    "row filter": (PLAIN, _with(PLAIN, publishing="t t t t t 1 2/x")),
    "label renamed": (PLAIN, _with(PLAIN, types={**PLAIN.types, "e1": "blue"})),
    "attribute of a composite": (PLAIN, _with(PLAIN, types={**PLAIN.types, "c2": "1:20:-1:f"})),
    "partition attached": (ROOT, _with(ROOT, leaves={**ROOT.leaves, 102: File(node=3)})),
    "partition detached": (ROOT, _with(ROOT, leaves={100: ROOT.leaves[100]})),
    "partition truncated": (ROOT, _leaf(node=9, toast=50, is_fresh=True)),
    "partition truncated and analyzed": (ROOT, _leaf(node=9, toast=50, toast_command=4)),
    "partition truncated, its TOAST table written since": (
        ROOT,
        _leaf(node=9, toast=50, toast_command=None),
    ),
    "partition without TOAST truncated and analyzed": (ROOT, _leaf(101, node=9, command=0)),
    "partition detached and attached again": (
        ROOT,
        _with(ROOT, joined={100: "600", 101: "700/601"}),
    ),
    "partition set unlogged and logged": (ROOT, _leaf(node=9, toast=51)),
    "set unlogged and logged": (TOASTED, _with(TOASTED, file=File(node=2, toast=61))),
    "set logged, without TOAST": (PLAIN, _with(PLAIN, file=File(node=2, command=1))),
    "expression dropped": (GENERATED, _with(GENERATED, c2=Attribute(701, TEXT, -1))),
    "partitions rewritten": (
        ROOT,
        _with(ROOT, leaves={100: File(node=8), 101: File(node=9)}, c1=Attribute(701, 20, -1)),
    ),
}


@pytest.mark.parametrize(("before", "after"), HARMLESS.values(), ids=list(HARMLESS))
def test_what_changes_no_value_gives_no_reason(before: TableStorage, after: TableStorage) -> None:
    """A table that is vacuumed every night must not be loaded every night."""
    assert compare(before, after, is_watched=True) == ()


@pytest.mark.parametrize(("before", "after"), REWRITES.values(), ids=list(REWRITES))
@pytest.mark.parametrize("is_watched", [True, False])
def test_what_may_change_values_gives_a_reason(
    before: TableStorage, after: TableStorage, is_watched: bool
) -> None:
    """A missed one costs the truth."""
    assert compare(before, after, is_watched=is_watched)


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_truncate_of_the_root_is_sent_and_one_of_a_partition_is_not(is_watched: bool) -> None:
    """The transaction that wrote the partition's new file tells them apart."""
    after = _with(
        ROOT,
        leaves={
            100: File(node=8, toast=50, is_fresh=True, written_by=701),
            101: File(node=9, is_fresh=True, written_by=702),
        },
    )

    assert compare(ROOT, after, is_watched=is_watched, truncated_by=[701, 702]) == ()
    assert compare(ROOT, after, is_watched=is_watched, truncated_by=[701]) != ()


def test_a_partition_with_a_new_file_counts_as_truncated_after_a_stop() -> None:
    """ANALYZE may have given it statistics since, as VACUUM FULL does."""
    after = _leaf(node=9, toast=50)

    assert compare(ROOT, after, is_watched=False)


def test_a_truncate_that_is_sent_is_not_taken_for_set_logged() -> None:
    """Both leave a new file and columns as they were."""
    after = _with(PLAIN, file=File(node=2, command=1, written_by=701))

    assert compare(PLAIN, after, is_watched=True, truncated_by=[701]) == ()


def test_what_an_older_bridge_remembered_is_read() -> None:
    """Files of partitions were numbers, and nothing was known of TOAST and of how they joined."""
    fields = ROOT.to_map()
    for name in ("toast", "leaf_toasts", "joined"):
        del fields[name]

    older = TableStorage.from_map(fields)

    assert older is not None
    assert compare(older, ROOT, is_watched=False) == ()


@pytest.mark.parametrize("storage", [PLAIN, ROOT, TOASTED, GENERATED])
def test_storage_comes_back_from_its_map(storage: TableStorage) -> None:
    """KV remembers it over restarts."""
    assert TableStorage.from_map(storage.to_map()) == storage


@pytest.mark.parametrize("wrong", [None, {}, [], 7, "x", {"filenode": 1, "columns": {"a": 1}}])
def test_what_is_no_storage_is_none(wrong: Any) -> None:
    """An entry of an older bridge has none."""
    assert TableStorage.from_map(wrong) is None


ADDED = replace(SHAPE.columns[0], name="added", position=9, type_oid=INT, type=parse_type("int32"))
WIDER = replace(SHAPE, columns=(*SHAPE.columns, ADDED))
BEFORE = replace(PLAIN, columns={1: ID, 2: NAME, 4: NAME})


@pytest.mark.parametrize(
    ("attribute", "filenode", "fill"),
    [
        (Attribute(701, INT, -1, has_missing=True, missing="5"), 1, 5),
        (Attribute(701, INT, -1), 1, None),
        (Attribute(701, INT, -1), 2, NO_FILL),
        (Attribute(701, INT, -1, has_missing=True), 1, NO_FILL),
        (Attribute(701, INT, -1, has_missing=True, missing="x"), 1, NO_FILL),
        (Attribute(701, TEXT, -1, has_missing=True, missing="5"), 1, NO_FILL),
        (Attribute(701, INT, -1, is_dropped=True), 1, NO_FILL),
    ],
)
def test_an_added_column_is_filled_as_the_catalog_says(
    attribute: Attribute, filenode: int, fill: Any
) -> None:
    """Or not at all, where that is not known."""
    after = replace(BEFORE, file=File(node=filenode), columns={**BEFORE.columns, 9: attribute})

    assert added_fills(WIDER, BEFORE, after) == {9: fill}

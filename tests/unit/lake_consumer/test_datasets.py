from __future__ import annotations

from functools import reduce

import pyarrow.compute as pc
import pytest
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

from lake_consumer.iceberg.datasets import compare, prune

ID, NAME, WEIGHT = pc.field("id"), pc.field("name"), pc.field("weight")


@pytest.mark.parametrize(
    ("filter", "demands"),
    [
        ((ID >= 2) & (ID < 9), [compare("id", ">=", 2), compare("id", "<", 9)]),
        ((ID == -5) & (WEIGHT < 3), [compare("id", "==", -5)]),
    ],
)
def test_comparisons_of_integers_leave_out_files(
    filter: pc.Expression, demands: list[BooleanExpression]
) -> None:
    """A look-up by key must not read a whole table."""
    assert prune(str(filter), {"id"}) == reduce(And, demands)


@pytest.mark.parametrize(
    "filter",
    [
        (ID == 5) | (WEIGHT < 3),
        ~(ID == 5),
        (NAME == "x) and (id == 5") & (WEIGHT < 3),
        pc.if_else(ID > 5, True, False),
        ID.is_null(),
        ID.isin([1, 2]),
        NAME == "5",
    ],
)
def test_whatever_is_not_plain_leaves_out_nothing(filter: pc.Expression) -> None:
    """A row too many is filtered afterwards; a row too few would be a lie."""
    assert prune(str(filter), {"id"}) == AlwaysTrue()

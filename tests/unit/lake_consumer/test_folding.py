"""Which task folds which bucket."""

from __future__ import annotations

from typing import Any

from lake_consumer.iceberg.folding import FoldPlan, plan_spread

NO_FOLDER: Any = None


def table(rows: int, buckets: int, *, is_tied: bool = False) -> FoldPlan:
    return FoldPlan(folder=NO_FOLDER, rows=rows, buckets=buckets, is_tied=is_tied)


def test_a_small_batch_is_folded_in_one_round() -> None:
    """A task has a price of its own, so there are no more of them than cores."""
    spread = plan_spread({"a": table(10, 1), "b": table(10, 1), "c": table(10, 1)}, cores=2)

    assert spread.parts == 2
    assert spread.starts == {"a": 0, "b": 1, "c": 2}


def test_a_large_batch_is_folded_in_full_rounds() -> None:
    """No task holds much, and no core stands idle in the last round."""
    assert plan_spread({"a": table(210_000, 32)}, cores=2).parts == 6


def test_there_are_no_more_tasks_than_buckets() -> None:
    """A change of key ties all buckets of its table together."""
    plans = {"a": table(900_000, 32, is_tied=True), "b": table(900_000, 2)}

    spread = plan_spread(plans, cores=4)

    assert spread.parts == 3
    assert spread.starts == {"a": 0, "b": 1}

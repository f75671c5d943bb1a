"""The fold of a whole batch, all its tables in one job.

A job of Spark has a price of its own, whatever it does: planned table by table it was more than
the folding itself where a batch touches many tables. So the blocks of all tables are spread once,
by table and bucket, and each task folds whatever tables it meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.iceberg.datafiles import Written, read_files
from lake_consumer.iceberg.outcomes import FOLDED, Folder

ROWS_PER_PART = 50_000
_TOKEN = pa.field("token", pa.string())
_FOLDED = pa.schema([_TOKEN, *FOLDED])


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """How one table's blocks are folded."""

    folder: Folder
    rows: int
    buckets: int
    is_tied: bool = False
    """A change of key ties buckets together, so then there is one place for all of them."""
    gives_keys: bool = False
    """Whoever deletes needs the keys that go; else it is enough to know that there are any."""
    is_kept: bool = False
    """Spark needs more of the outcome than names of files and keys."""

    @property
    def places(self) -> int:
        return 1 if self.is_tied else self.buckets


@dataclass(frozen=True, slots=True)
class Folded:
    """What the fold made of one table: keys that go, rows that come, rows that wait."""

    token: str
    all: DataFrame
    files: tuple[Written, ...] = ()
    holds: bool = False
    heals: bool = False
    keys: tuple[bytes, ...] = ()
    """Those that go, where the plan says that they are needed here."""

    @property
    def frame(self) -> DataFrame:
        """`FOLDED`, of this table alone."""
        return self.all.where(F.col("token") == self.token)


@dataclass(frozen=True, slots=True)
class Spread:
    """Which task folds which bucket of which table."""

    parts: int
    starts: Mapping[str, int]


def plan_spread(plans: Mapping[str, FoldPlan], cores: int) -> Spread:
    """Deal out all buckets in turn, so that no task has much more than another."""
    starts: dict[str, int] = {}
    end = 0
    for token, plan in sorted(plans.items()):
        starts[token] = end
        end += plan.places
    rows = sum(plan.rows for plan in plans.values())
    rounds = -(-rows // (ROWS_PER_PART * cores))
    return Spread(max(1, min(end, cores * rounds)), starts)


@dataclass(frozen=True)
class Folders:
    """Folds blocks of several tables, for `mapInArrow`; runs in the executors."""

    by_token: Mapping[str, Folder]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: dict[str, list[tuple[int, Any]]] = {}
        for batch in batches:
            for token, first, block in zip(*batch.columns, strict=True):
                blocks = found.setdefault(token.as_py(), [])
                blocks.append((first.as_py(), block.as_buffer()))
        for token in sorted(found):
            # Let go of table by table: a task may meet many of them.
            for made in self.by_token[token].fold_blocks(found.pop(token)):
                tokens = pa.array([token] * made.num_rows)
                yield pa.RecordBatch.from_arrays([tokens, *made.columns], schema=_FOLDED)


@contextmanager
def folding(
    blocks: DataFrame, plans: Mapping[str, FoldPlan], cores: int
) -> Iterator[dict[str, Folded]]:
    """Fold the blocks of these tables; gives what came out, for as long as it is needed."""
    if not plans:
        yield {}
        return
    folded = _fold(blocks, plans, cores)
    is_kept = any(plan.is_kept for plan in plans.values())
    if is_kept:
        folded.persist()
    try:
        # Collecting this makes every outcome, and keeps it where it was made.
        found = folded.select("token", "files", *_summed_up(plans)).collect()
        yield {token: _gather(folded, token, found) for token in plans}
    finally:
        if is_kept:
            folded.unpersist()


def _fold(blocks: DataFrame, plans: Mapping[str, FoldPlan], cores: int) -> DataFrame:
    spread = plan_spread(plans, cores)
    wanted = blocks.where(F.col("token").isin(*plans))
    if spread.parts == 1:
        wanted = wanted.coalesce(1)
    else:
        wanted = wanted.repartitionById(spread.parts, _place(spread, plans))
    folders = Folders({token: plan.folder for token, plan in plans.items()})
    chosen = wanted.select("token", "first", "block")
    return chosen.mapInArrow(folders, from_arrow_schema(_FOLDED))


def _place(spread: Spread, plans: Mapping[str, FoldPlan]) -> Column:
    starts = F.create_map(*[F.lit(value) for item in spread.starts.items() for value in item])
    tied = [token for token, plan in plans.items() if plan.is_tied]
    bucket = F.when(F.col("token").isin(*tied), 0).otherwise(F.col("bucket"))
    return (starts[F.col("token")] + bucket) % spread.parts


def _summed_up(plans: Mapping[str, FoldPlan]) -> list[Column]:
    givers = [token for token, plan in plans.items() if plan.gives_keys]
    return [
        F.isnotnull("held").alias("holds"),
        F.isnotnull("healing").alias("heals"),
        F.when(F.col("token").isin(*givers), F.col("held")).alias("keys"),
    ]


def _gather(folded: DataFrame, token: str, found: Sequence[Any]) -> Folded:
    own = [row for row in found if row["token"] == token]
    return Folded(
        token,
        folded,
        files=tuple(file for row in own for file in read_files(row["files"] or ())),
        holds=any(row["holds"] for row in own),
        heals=any(row["heals"] for row in own),
        keys=tuple(bytes(row["keys"]) for row in own if row["keys"] is not None),
    )

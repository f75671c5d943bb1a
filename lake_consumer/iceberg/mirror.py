"""One batch into a mirror; readers see all of it at once.

| In the batch       | What is done |
|---|---|
| nothing new        | nothing |
| a truncate         | overwrite with the outcomes of what follows the last one |
| inserts only       | append: PostgreSQL's key says that none of them is there |
| anything else      | delete the keys that the mirror holds, append the rows, publish both |

Executors write the rows as files and find those that go, and the driver commits names of files
(`deleting`). Where that cannot be, or rows wait for columns that only the mirror has, Spark writes
to a branch: a MERGE deletes, and an append follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lake_consumer.columns import Columns
from lake_consumer.evolution import Renames
from lake_consumer.fills import Fill
from lake_consumer.iceberg.adding import FileAdder
from lake_consumer.iceberg.deleting import Deleted, RowDeleter, key_fields
from lake_consumer.iceberg.facts import Facts
from lake_consumer.iceberg.finding import HeldKeys
from lake_consumer.iceberg.folding import Folded, FoldPlan
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.merge import delete_sql
from lake_consumer.iceberg.opening import OpenPart
from lake_consumer.iceberg.outcomes import Folder, heal, healing_schema, mirror_arrow_schema
from lake_consumer.iceberg.staging import Staging, Transaction, branch_of
from lake_consumer.iceberg.tables import LakeTables, Table

BROADCAST_ROWS = 4_000_000
"""With more keys than that, Spark decides how to join: every reader would have to hold them."""

_views = count()


class Write(Enum):
    """The ways a batch reaches a mirror."""

    NOTHING = auto()
    OVERWRITE = auto()
    APPEND = auto()
    REPLACE = auto()


def plan_write(facts: Facts, mark: int, *, is_empty: bool) -> Write:
    """Choose the way for a batch, of which the mirror has what is up to `mark`."""
    if facts.last <= mark:
        return Write.NOTHING
    if facts.truncated is not None and facts.truncated > mark:
        return Write.OVERWRITE
    return Write.APPEND if is_empty or facts.inserts == facts.rows else Write.REPLACE


@dataclass(frozen=True, kw_only=True)
class MirrorBatch:
    """What one batch means for a mirror, decided before anything of it is written."""

    token: str
    mirror: Table
    plan: Write
    facts: Facts
    rows: KeyedRows
    columns: Columns
    folder: Folder
    buckets: int
    key_fields: tuple[int, ...] | None
    """The key's columns, where executors can find rows by them; else it takes a MERGE."""

    @property
    def is_written(self) -> bool:
        """Whether executors write the rows that come; else Spark has to."""
        return self.folder.target is not None

    @property
    def is_by_files(self) -> bool:
        """Whether nothing but files of executors is needed, unless rows wait for columns."""
        return self.is_written and (self.plan is not Write.REPLACE or self.key_fields is not None)

    @property
    def fold_plan(self) -> FoldPlan:
        return FoldPlan(
            folder=self.folder,
            rows=self.facts.rows,
            buckets=self.buckets,
            is_tied=self.facts.moved,
            gives_keys=self.plan is Write.REPLACE and self.key_fields is not None,
            is_kept=self.facts.unchanged or not self.is_by_files,
        )


class NotByFiles(Exception):
    """Files alone do not do: it takes Spark to write a batch."""


class MirrorWriter:
    """Writes one table's batches to its mirror."""

    def __init__(self, spark: SparkSession, tables: LakeTables, files: FileAdder, sql: str) -> None:
        self._spark = spark
        self._tables = tables
        self._files = files
        self._deleter = RowDeleter(spark, tables, files)
        self._sql = sql

    def begin(
        self,
        mirror: Table,
        token: str,
        facts: Facts,
        rows: KeyedRows,
        *,
        buckets: int,
        renames: Renames,
        fills: tuple[Fill, ...] = (),
    ) -> MirrorBatch | None:
        """Say what is to be done with a table's blocks above its mirror's mark, if anything."""
        mirror.refresh()
        mark = self._tables.watermark(mirror).stream_sequence
        plan = plan_write(facts, mark, is_empty=mirror.currentSnapshot() is None)
        if plan is Write.NOTHING:
            return None
        columns = self._tables.columns(mirror)
        target = self._files.target(mirror)
        few_keys = facts.rows <= BROADCAST_ROWS
        can_delete = few_keys and self._deleter.can_delete(mirror)
        return MirrorBatch(
            token=token,
            mirror=mirror,
            plan=plan,
            facts=facts,
            rows=rows,
            columns=columns,
            folder=Folder(rows, columns, _above(facts, mark), renames, target, fills),
            buckets=buckets,
            key_fields=key_fields(rows, target) if can_delete else None,
        )

    def finish(self, batch: MirrorBatch, folded: Folded) -> None:
        """Bring what the fold made of a batch into the mirror."""
        staging = Staging(self._tables, batch.mirror, self._sql)
        try:
            if folded.heals or not batch.is_by_files:
                raise NotByFiles
            staging.publish_at_once(partial(self._stage_files, batch, folded))
        except NotByFiles:
            staging.publish(partial(self._stage, batch, folded))
        batch.mirror.refresh()

    def _stage_files(
        self, batch: MirrorBatch, folded: Folded, change: Transaction, branch: str
    ) -> None:
        """Add to a transaction what executors have written, or are to write for it."""
        if batch.plan is Write.REPLACE and folded.holds:
            deleted = self._search(batch, folded)
            self._deleter.commit(change, batch.mirror, folded.files, deleted, branch)
            return
        # After a truncate every row began with an insert, so nothing is kept of before.
        instead = batch.plan is Write.OVERWRITE
        self._files.add(batch.mirror, folded.files, branch, change=change, instead=instead)

    def _search(self, batch: MirrorBatch, folded: Folded) -> Deleted:
        target = batch.folder.target
        if batch.key_fields is None or target is None:
            raise NotByFiles
        held = HeldKeys(folded.keys, batch.key_fields, target)
        found = self._deleter.search(batch.mirror, batch.token, held)
        if found is None:
            raise NotByFiles
        return found

    def _stage(self, batch: MirrorBatch, folded: Folded, to: str) -> None:
        """Write what the batch makes of the mirror to a branch, where it takes Spark to do so."""
        if batch.plan is Write.REPLACE and folded.holds:
            self._delete(batch, folded, to)
        instead = batch.plan is Write.OVERWRITE
        if not batch.is_written:
            made = _opened(folded, "rows", mirror_arrow_schema(batch.columns))
            if folded.heals:
                made = made.unionByName(self._healed(batch, folded))
            writer = made.writeTo(to)
            writer.overwrite(F.lit(True)) if instead else writer.append()
            return
        self._files.add(batch.mirror, folded.files, branch_of(to), instead=instead)
        if folded.heals:
            self._healed(batch, folded).writeTo(to).append()

    def _delete(self, batch: MirrorBatch, folded: Folded, to: str) -> None:
        keys, facts = _opened(folded, "held", batch.rows.schema), batch.facts
        view = f"_held_{next(_views)}"
        hinted = F.broadcast(keys) if facts.rows <= BROADCAST_ROWS else keys
        hinted.createOrReplaceTempView(view)
        try:
            self._spark.sql(delete_sql(to, view, batch.rows, facts.edges))
        finally:
            self._spark.catalog.dropTempView(view)

    def _healed(self, batch: MirrorBatch, folded: Folded) -> DataFrame:
        # Main, not the branch: what waits for a column needs the row as it was.
        waiting = _opened(folded, "healing", healing_schema(batch.rows.columns))
        return heal(waiting, self._spark.table(self._sql), batch.rows)


def _opened(folded: Folded, part: str, schema: pa.Schema) -> DataFrame:
    return folded.frame.select(part).mapInArrow(OpenPart(), spark_schema(schema))


def _above(facts: Facts, mark: int) -> int:
    return max(mark, facts.truncated or 0)


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)

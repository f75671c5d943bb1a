"""Care for the lake's tables, one step at a time, each within what is left of a budget.

Steps are Iceberg's own procedures. A step that is out of time is cancelled: what it committed by
then stays (files are rewritten in groups, each committed on its own), the rest is done next time,
beginning with the table whose turn it was. No commit here is stamped, so a table stands where it
stood in the stream. Care of a table must not run beside a batch of it: `run` calls it between
batches, and Iceberg refuses the later of two that meet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from lake_consumer.care import (
    GRACE,
    CareOptions,
    Health,
    SnapshotFacts,
    needs_compaction,
    needs_manifests,
    plan_cuts,
    plan_expiry,
)
from lake_consumer.cuts import CutRow
from lake_consumer.iceberg.failures import translate
from lake_consumer.iceberg.javas import JavaReader
from lake_consumer.iceberg.names import (
    CATALOG,
    CUTS,
    LakeName,
    is_log,
    quote,
    table_of,
    table_of_mirror,
)
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.iceberg.types import cuts_schema
from lake_consumer.iceberg.unstamped import argument, take_stamp_off, text
from lake_consumer.shapes import ShapeBook

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_runs = count()
LEAST_SECONDS = 0.5
"""With less than this left, no step is begun."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did, as a line of the log tells it."""

    table: LakeName
    step: str
    seconds: float
    figures: dict[str, int]
    is_finished: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of care; gives what it did, or None where there was nothing to do."""

    name: str
    act: Callable[[Caretaker, LakeName], dict[str, int] | None]


class OutOfTime(Exception):
    """The budget is used up."""


class Caretaker:
    """Cares for one lake."""

    def __init__(
        self, spark: SparkSession, options: CareOptions, tell: Callable[[Done], None]
    ) -> None:
        self._spark = spark
        self.options = options
        self._tell = tell
        self._tables = LakeTables(spark)
        self._next: LakeName | None = None
        self._cuts: list[CutRow] | None = None

    def care(self, only: Sequence[LakeName] = (), *, steps: Sequence[Step] | None = None) -> bool:
        """Care for the tables within the budget; True when every table had its turn."""
        take_stamp_off(self._spark)
        self._cuts = None
        deadline = time.monotonic() + self.options.budget_seconds
        for name in self._in_turn(only):
            self._next = name
            for step in steps or STEPS:
                if not self._take(step, name, deadline):
                    return False
        self._next = None
        return True

    def _in_turn(self, only: Sequence[LakeName]) -> list[LakeName]:
        """All tables, beginning where the last round stopped; cuts first, the others obey them."""
        names = [name for name in sorted(self._tables.names()) if not only or name in only]
        names.sort(key=lambda name: name != CUTS)
        start = names.index(self._next) if self._next in names else 0
        return names[start:] + names[:start]

    def _take(self, step: Step, name: LakeName, deadline: float) -> bool:
        began = time.monotonic()
        if deadline - began < LEAST_SECONDS:
            return False
        try:
            with self._within(deadline):
                figures = step.act(self, name)
        except OutOfTime:
            self._tell(Done(name, step.name, time.monotonic() - began, {}, is_finished=False))
            return False
        if figures is not None:
            self._tell(Done(name, step.name, time.monotonic() - began, figures))
        return True

    @contextmanager
    def _within(self, deadline: float) -> Iterator[None]:
        """Cancel the Spark jobs of this block at the deadline."""
        context, tag = self._spark.sparkContext, f"lake-care-{next(_runs)}"
        late = threading.Event()

        def cancel() -> None:
            late.set()
            context.cancelJobsWithTag(tag)

        # Iceberg puts its jobs into groups of its own, but leaves tags alone.
        context.addJobTag(tag)
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (PySparkException, Py4JError) as error:
            if late.is_set():
                raise OutOfTime from error
            raise translate(str(error)) from error
        finally:
            timer.cancel()
            context.removeJobTag(tag)

    # The steps.

    def compact(self, name: LakeName) -> dict[str, int] | None:
        """Write small files, and files with many deleted rows, together."""
        health = self.health(name)
        if not needs_compaction(health, self.options):
            return None
        target = self.options.target_bytes
        settings = {
            "target-file-size-bytes": target,
            "min-input-files": 2,
            "delete-file-threshold": 1
            if health.delete_ratio >= self.options.delete_ratio
            else 1000,
            "delete-ratio-threshold": self.options.delete_ratio,
            "max-file-group-size-bytes": 8 * target,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": 10,
            "remove-dangling-deletes": "true",
        }
        pairs = ", ".join(f"{text(key)}, {text(str(value))}" for key, value in settings.items())
        order = self._key_order(name)
        sort = f", strategy => 'sort', sort_order => {text(order)}" if order else ""
        row = self._call("rewrite_data_files", name, f"options => map({pairs}){sort}")
        return {
            "files_before": health.data_files,
            "files_rewritten": row["rewritten_data_files_count"],
            "files_written": row["added_data_files_count"],
        }

    def _key_order(self, name: LakeName) -> str:
        """A mirror is sorted by key, so that a batch's keys concern few files."""
        if table_of_mirror(name) is None:
            return ""
        table = self._tables.load(name)
        shape = ShapeBook(lambda *_: None).learn_properties(self._tables.properties(table))
        held = {column.position: column.name for column in self._tables.columns(table)}
        names = [held.get(column.position) for column in shape.key] if shape else []
        if not all(names):
            return ""
        return ", ".join(f"{quote(str(column))} ASC NULLS LAST" for column in names)

    def compact_manifests(self, name: LakeName) -> dict[str, int] | None:
        health = self.health(name)
        if not needs_manifests(health):
            return None
        row = self._call("rewrite_manifests", name, "use_caching => false")
        return {"manifests_before": health.manifests, "written": row["added_manifests_count"]}

    def forget_cuts(self, name: LakeName) -> dict[str, int] | None:
        """Let go of cuts that are older than what is kept."""
        if name != CUTS:
            return None
        plan = plan_cuts(
            self._cut_rows(), datetime.now(UTC), self.options.keep, self.options.keep_cuts
        )
        if plan is None:
            return None
        if plan.restated:
            rows = [
                (r.table, r.commit_lsn, r.commit_ts, r.stream_seq, r.snapshot_id,
                 r.changes_snapshot_id, r.gone_since, r.fork_seq)
                for r in plan.restated
            ]  # fmt: skip
            self._tables.add_fields(self._tables.load(CUTS), cuts_schema())
            frame = self._spark.createDataFrame(rows, self._spark.table(CUTS.sql).schema)
            frame.coalesce(1).writeTo(CUTS.sql).append()
        self._cuts = None
        before = self._spark.table(CUTS.sql).count()
        kept = ", ".join(map(str, sorted(plan.kept)))
        self._spark.sql(f"DELETE FROM {CUTS.sql} WHERE stream_seq NOT IN ({kept})")  # noqa: S608
        return {"rows_before": before, "rows_left": self._spark.table(CUTS.sql).count()}

    def expire(self, name: LakeName) -> dict[str, int] | None:
        """Let go of snapshots that no kept cut needs."""
        table = self._tables.load(name)
        current = table.currentSnapshot()
        old = plan_expiry(
            _snapshots(self._tables.java, table),
            None if current is None else int(current.snapshotId()),
            self._named(name, table),
            datetime.now(UTC) - min(self.options.keep, GRACE),
        )
        if not old:
            return None
        ids = ", ".join(map(str, old))
        # By id alone: Iceberg would also take what is older than its own default.
        row = self._call(
            "expire_snapshots",
            name,
            f"older_than => TIMESTAMP '1970-01-02 00:00:00', snapshot_ids => ARRAY({ids}), "
            "stream_results => true",
        )
        return {"snapshots": len(old), "data_files": row["deleted_data_files_count"]}

    def remove_orphans(self, name: LakeName) -> dict[str, int] | None:
        """Remove files that no snapshot knows, such as those of writers that were killed."""
        moment = (datetime.now(UTC) - self.options.orphan_age).strftime("%Y-%m-%d %H:%M:%S")
        removed = self._procedure(
            "remove_orphan_files",
            name,
            f"older_than => TIMESTAMP '{moment}', prefix_listing => true, stream_results => true",
        ).count()
        return {"files": removed} if removed else None

    # What the steps need to know.

    def health(self, name: LakeName) -> Health:
        table = self._tables.load(name)
        table_facts = _totals(self._tables.java, table)
        small = 0
        if table_facts["total-data-files"] > 1:
            limit = self.options.target_bytes * 3 // 4
            found = self._spark.sql(
                f"SELECT count(*) AS files FROM {name.sql}.files "  # noqa: S608 - quoted names
                f"WHERE content = 0 AND file_size_in_bytes < {limit}{self._by_partition(table)}"
            )
            small = sum(max(0, row["files"] - 1) for row in found.collect())
        snapshot = table.currentSnapshot()
        manifests = 0 if snapshot is None else len(snapshot.allManifests(table.io()))
        return Health(
            data_files=table_facts["total-data-files"],
            small_files=small,
            rows=table_facts["total-records"],
            deleted_rows=table_facts["total-position-deletes"],
            manifests=manifests,
            snapshots=len(self._tables.java.list(table.snapshots())),
        )

    def _by_partition(self, table: Table) -> str:
        return " GROUP BY partition" if table.spec().isPartitioned() else ""

    def _named(self, name: LakeName, table: Table) -> set[int]:
        """Snapshots that a kept cut, a branch or a tag names."""
        refs = self._tables.java.list(table.refs().values())
        named = {int(ref.snapshotId()) for ref in refs}
        own = table_of(name)
        for row in self._cut_rows():
            snapshot = row.changes_snapshot_id if is_log(name) else row.snapshot_id
            if own is not None and row.table == str(own) and snapshot is not None:
                named.add(snapshot)
        return named

    def _cut_rows(self) -> list[CutRow]:
        """The table of cuts, read once in a round: nobody else writes meanwhile."""
        if self._cuts is None:
            self._cuts = list(self._read_cuts()) if self._tables.exists(CUTS) else []
        return self._cuts

    def _read_cuts(self) -> Iterator[CutRow]:
        frame = self._spark.sql(
            f"SELECT *, unix_micros(commit_ts) AS micros FROM {CUTS.sql}"  # noqa: S608
        )
        for row in frame.collect():
            yield CutRow(
                table=row["table_name"],
                commit_lsn=row["commit_lsn"],
                # Spark would give it in the time zone of this machine.
                commit_ts=_EPOCH + timedelta(microseconds=row["micros"]),
                stream_seq=row["stream_seq"],
                snapshot_id=row["snapshot_id"],
                changes_snapshot_id=row["changes_snapshot_id"],
                gone_since=row.asDict().get("gone_since"),
                fork_seq=row.asDict().get("fork_seq"),
            )

    def _call(self, procedure: str, name: LakeName, arguments: str) -> Row:
        return self._procedure(procedure, name, arguments).collect()[0]

    def _procedure(self, procedure: str, name: LakeName, arguments: str) -> DataFrame:
        return self._spark.sql(
            f"CALL {CATALOG}.system.{procedure}(table => {argument(name)}, {arguments})"
        )


def _snapshots(java: JavaReader, table: Table) -> Iterator[SnapshotFacts]:
    for snapshot in java.list(table.snapshots()):
        parent = snapshot.parentId()
        yield SnapshotFacts(
            snapshot_id=int(snapshot.snapshotId()),
            parent_id=None if parent is None else int(parent),
            committed_at=datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC),
            summary=java.map(snapshot.summary()),
        )


def _totals(java: JavaReader, table: Table) -> dict[str, int]:
    snapshot = table.currentSnapshot()
    summary = {} if snapshot is None else java.map(snapshot.summary())
    names = ("total-data-files", "total-records", "total-position-deletes")
    return {name: int(summary.get(name) or 0) for name in names}


STEPS = (
    Step("forget cuts", Caretaker.forget_cuts),
    Step("compact", Caretaker.compact),
    Step("compact manifests", Caretaker.compact_manifests),
    Step("expire snapshots", Caretaker.expire),
)
ORPHANS = Step("remove orphans", Caretaker.remove_orphans)
"""Lists every file of a table, so it is part of `maintain` and not of every round in `run`."""

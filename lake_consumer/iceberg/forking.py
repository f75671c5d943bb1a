"""Takes the lake across a fork: logs, cuts and states say what never happened.

Every step can be taken again, and is, if the process dies before the lake is past the fork: rows
are marked only where no fork has marked them yet, properties are set to the same values. No commit
here is stamped, so every table stands where it stood in the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import SparkSession

from lake_consumer.forks import FORK_COLUMN, ForkMark, dead_cuts, dead_rows, note_fork
from lake_consumer.iceberg.names import CUTS, LakeName, log_of
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.iceberg.types import FORK_FIELD, build_schema, cuts_schema
from lake_consumer.iceberg.unstamped import stamp_off
from schemas.names import TableName


class ForkWriter:
    """Marks in logs and cuts what a fork made invalid."""

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        self._spark = spark
        self._tables = tables
        expressions = tables.iceberg.expressions.Expressions
        self._at_least = expressions.greaterThanOrEqual
        self._below = expressions.lessThan

    def mark(self, fork: ForkMark, owned: Collection[TableName], *, is_only_source: bool) -> int:
        """Mark the dead rows of these tables' logs, and the cuts that hold any; gives how many."""
        with stamp_off(self._spark):
            dead = [self._mark_log(fork, log_of(table)) for table in owned]
            first = min((first for _, first in dead if first is not None), default=None)
            if self._tables.exists(CUTS):
                self._mark_cuts(fork, first, is_only_source=is_only_source)
        return sum(count for count, _ in dead)

    def _mark_log(self, fork: ForkMark, name: LakeName) -> tuple[int, int | None]:
        """Mark a log's rows in one commit; gives how many there are and the first of them."""
        log = self._tables.load(name)
        self._tables.add_fields(log, build_schema([FORK_FIELD]))
        if not self._may_hold(log, fork):
            return 0, None
        self._update(name, fork, dead_rows(fork))
        found = self._spark.sql(
            f"SELECT count(*), min(stream_seq) FROM {name.sql}"  # noqa: S608 - quoted names
            f" WHERE {FORK_COLUMN} = {fork.sequence}"
        ).collect()[0]
        return found[0], found[1]

    def _may_hold(self, log: Table, fork: ForkMark) -> bool:
        """Whether any file may hold dead rows, by its metadata: most logs have none."""
        scan = log.newScan().filter(self._at_least("commit_lsn", fork.switch_lsn))
        planned = scan.filter(self._below("stream_seq", fork.sequence)).planFiles()
        try:
            return bool(self._tables.java.list(planned))
        finally:
            planned.close()

    def _mark_cuts(self, fork: ForkMark, first: int | None, *, is_only_source: bool) -> None:
        cuts = self._tables.load(CUTS)
        self._tables.add_fields(cuts, cuts_schema())
        # First: a reader that meets a marked cut must be able to say why.
        self._tables.set_properties(cuts, note_fork(self._tables.properties(cuts), fork))
        self._update(CUTS, fork, dead_cuts(fork, first, is_only_source=is_only_source))

    def _update(self, name: LakeName, fork: ForkMark, where: str) -> None:
        # Quoted names and integers; copy-on-write, so that no file of a log has deleted rows.
        self._spark.sql(f"REFRESH TABLE {name.sql}")
        self._spark.sql(
            f"UPDATE {name.sql} SET {FORK_COLUMN} = {fork.sequence} WHERE {where}"  # noqa: S608
        )


def is_only(source: str, sources: Iterable[str]) -> bool:
    """Whether the tables of a lake are of one source alone, as far as it is known."""
    return {one for one in sources if one} <= {source}

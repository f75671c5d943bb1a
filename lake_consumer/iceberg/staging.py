"""Several commits that readers see as one: staged on a branch, published by fast-forward.

Readers of the mirror see what main ends at; a batch's delete and its append are two snapshots on a
branch of its own until main is moved over both at once. Main can only be moved to what descends
from it: where somebody else committed meanwhile, nothing is published. That was maintenance, and
the batch is staged again on top of it, or another consumer on the same lake, which is an error.
A branch left behind by a run that died holds nothing that was promised, and is replaced.
"""

from __future__ import annotations

from collections.abc import Callable

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from lake_consumer.errors import LakeBusy
from lake_consumer.iceberg.tables import LakeTables, Table

BRANCH = "bridge_batch"
MAIN = "main"
ATTEMPTS = 5
_BRANCH_IN_SQL = ".branch_"

_OVERTAKEN = ("not an ancestor", "CommitFailedException", "ValidationException")


class Staging:
    """Stages and publishes on one table."""

    def __init__(self, tables: LakeTables, table: Table, sql: str) -> None:
        self._tables = tables
        self._table = table
        self._branch_sql = f"{sql}{_BRANCH_IN_SQL}{BRANCH}"

    def publish(self, stage: Callable[[str], None]) -> None:
        """Let `stage` write to the branch, then show all of it at once."""
        mark = self._tables.watermark(self._table)
        for attempt in range(1, ATTEMPTS + 1):
            self._begin()
            try:
                stage(self._branch_sql)
                self._table.refresh()
                self._fast_forward()
                return
            except Exception as error:
                self._table.refresh()
                if self._tables.watermark(self._table) != mark:
                    raise LakeBusy(
                        f"{self._table.name()} was changed by another consumer of the stream"
                    ) from error
                if attempt == ATTEMPTS or not _is_overtaken(error):
                    raise

    def _begin(self) -> None:
        """Let the branch begin where main ends."""
        main = self._table.currentSnapshot().snapshotId()
        left = self._table.refs().get(BRANCH)
        if left is None:
            self._table.manageSnapshots().createBranch(BRANCH, main).commit()
        elif left.snapshotId() != main:
            self._table.manageSnapshots().replaceBranch(BRANCH, main).commit()

    def _fast_forward(self) -> None:
        self._table.manageSnapshots().fastForwardBranch(MAIN, BRANCH).removeBranch(BRANCH).commit()


def branch_of(sql: str) -> str:
    """The branch that a name in SQL means."""
    return sql.rpartition(_BRANCH_IN_SQL)[2] if _BRANCH_IN_SQL in sql else MAIN


def _is_overtaken(error: Exception) -> bool:
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return any(sign in text for sign in _OVERTAKEN)

"""What readers see as one commit, and what no second consumer can repeat: staged, then published.

A batch is written to a branch of the consumer's own until main is moved over all of it at once.
Main can only be moved to what descends from it: where somebody else committed meanwhile, nothing is
published. That was maintenance, and the batch is staged again on top of it, or another consumer on
the same lake, which is an error: Iceberg would let both of them append, and keep the rows twice.

Where the files of a batch are all written already, branch, batch and the move of main are one
transaction of Iceberg's: a single commit to the catalog, and a branch that nobody ever sees. What
Spark writes by itself takes a branch that it can find, and a commit for every step.

Branches of consumers that died hold nothing that was promised. They go in the very commit that
moves main, so a consumer that is alive after all, and whose branch Iceberg silently makes anew at
its next write, finds that main is not where its branch began.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from lake_consumer.errors import LakeBusy
from lake_consumer.iceberg.tables import LakeTables, Table

BRANCH = "bridge_batch"
"""The branches' names begin with this; what follows is the consumer's."""

MAIN = "main"
ATTEMPTS = 5
_BRANCH_IN_SQL = ".branch_"

_OVERTAKEN = ("not an ancestor", "CommitFailedException", "ValidationException")


Transaction = Any
"""A Java `org.apache.iceberg.Transaction`."""

Change = Any
"""A table, which commits every change, or a transaction of it, which gathers them."""


class Overtaken(Exception):
    """Somebody else has moved main."""


class Staging:
    """Stages and publishes on one table."""

    def __init__(self, tables: LakeTables, table: Table, sql: str) -> None:
        self._tables = tables
        self._table = table
        self._branch = f"{BRANCH}_{tables.consumer}"
        self._branch_sql = f"{sql}{_BRANCH_IN_SQL}{self._branch}"

    def publish(self, stage: Callable[[str], None]) -> None:
        """Let `stage` write to the branch, which it is given in SQL; then show it all at once."""

        def attempt() -> None:
            start = self._begin()
            stage(self._branch_sql)
            self._table.refresh()
            self._check_main(start)
            self._fast_forward(self._table)

        self._attempt(attempt)

    def publish_at_once(self, stage: Callable[[Transaction, str], None]) -> None:
        """Let `stage` add a transaction's changes to the branch it is given, and commit it."""

        def attempt() -> None:
            start = self._start()
            transaction = self._table.newTransaction()
            self._branch_off(transaction, start)
            stage(transaction, self._branch)
            self._fast_forward(transaction)
            # Iceberg repeats a commit that lost a race, but no transaction that names a branch.
            transaction.commitTransaction()

        self._attempt(attempt)

    def _attempt(self, attempt: Callable[[], None]) -> None:
        """Try until nobody comes in between; another consumer must not."""
        mark = self._tables.watermark(self._table)
        for number in range(1, ATTEMPTS + 1):
            try:
                attempt()
                return
            except Exception as error:
                self._table.refresh()
                if self._tables.watermark(self._table) != mark:
                    raise LakeBusy(
                        f"{self._table.name()} was changed by another consumer of the stream"
                    ) from error
                if number == ATTEMPTS or not _is_overtaken(error):
                    raise

    def _start(self) -> int:
        """The snapshot that the branch begins at, where main ends."""
        if self._table.currentSnapshot() is None:
            # A branch has to begin somewhere. What we know may be old: this must be the first.
            self._table.newFastAppend().commit()
            if self._table.currentSnapshot().parentId() is not None:
                raise Overtaken(f"{self._table.name()} was begun by another")
        return self._main()

    def _begin(self) -> int:
        """Let the branch begin where main ends, for all to see; gives that snapshot."""
        start = self._start()
        left = self._table.refs().get(self._branch)
        if left is None or left.snapshotId() != start:
            self._branch_off(self._table, start)
        return start

    def _branch_off(self, change: Change, start: int) -> None:
        if self._table.refs().get(self._branch) is None:
            change.manageSnapshots().createBranch(self._branch, start).commit()
        else:
            change.manageSnapshots().replaceBranch(self._branch, start).commit()

    def _check_main(self, start: int) -> None:
        if self._main() != start:
            raise Overtaken(f"{self._table.name()} is not where the batch began")

    def _fast_forward(self, change: Change) -> None:
        """Move main to the branch, and take it and whatever others left behind away."""
        moving = change.manageSnapshots().fastForwardBranch(MAIN, self._branch)
        for name in {*self._tables.java.map(self._table.refs()), self._branch}:
            if name.startswith(BRANCH):
                moving.removeBranch(name)
        moving.commit()

    def _main(self) -> int:
        return int(self._table.currentSnapshot().snapshotId())


def branch_of(sql: str) -> str:
    """The branch that a name in SQL means."""
    return sql.rpartition(_BRANCH_IN_SQL)[2] if _BRANCH_IN_SQL in sql else MAIN


def _is_overtaken(error: Exception) -> bool:
    if isinstance(error, Overtaken):
        return True
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return any(sign in text for sign in _OVERTAKEN)

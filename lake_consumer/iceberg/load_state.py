"""One snapshot on its way into a mirror: how far it is, and what it has written so far."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from pyspark.sql import DataFrame

from lake_consumer.errors import LakeError
from lake_consumer.iceberg.chunk_files import ChunkPlan, UnitDone
from lake_consumer.iceberg.datafiles import FileTarget, Written
from lake_consumer.iceberg.finding import NewVector
from lake_consumer.iceberg.load_tail import Window
from lake_consumer.iceberg.tables import Table
from lake_consumer.initial_load import Progress, Unit
from lake_consumer.loads import Meta
from lake_consumer.tablestates import TableState
from schemas.names import TableName
from schemas.shapes import TableShape


class Phase(Enum):
    """How far a load is."""

    NEW = auto()
    READING = auto()
    CATCHING_UP = auto()
    READY = auto()
    FAILED = auto()


AT_REST = (Phase.READY, Phase.FAILED)
"""The worker has nothing to do for these."""


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The mirror's table, as a load writes to it."""

    table: Table
    revision: int
    shape: TableShape
    target: FileTarget | None
    fields: tuple[int, ...] | None
    """The key's columns, if executors can find rows by them."""


@dataclass(frozen=True, slots=True)
class FoldedTail:
    """What a tail makes of a load's files."""

    files: tuple[Written, ...]
    vectors: Mapping[str, NewVector] = field(default_factory=dict)
    """Deletion vectors of the load's files, by path; they replace those there were."""
    is_truncated: bool = False


@dataclass(eq=False)
class SnapshotLoad:
    """One snapshot on its way into a mirror."""

    table: TableName
    meta: Meta
    state: TableState
    """What the table's state was when the load began."""
    taken: TableShape
    began: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)
    phase: Phase = Phase.NEW
    mirror: Mirror | None = None
    plan: ChunkPlan | None = None
    units: Sequence[Unit] = ()
    done: dict[int, UnitDone] = field(default_factory=dict)
    files: list[Written] = field(default_factory=list)
    vectors: dict[str, NewVector] = field(default_factory=dict)
    rows: DataFrame | None = None
    """Of a mirror whose files only Spark can write."""
    upto: int = 0
    """The tail is folded up to this stream sequence."""
    catch_ups: int = 0
    failure: LakeError | None = None

    @property
    def progress(self) -> Progress:
        read = sum(unit.rows for unit in list(self.done.values()))
        return Progress(rows=read, total=self.meta.row_count, seconds=time.monotonic() - self.began)

    @property
    def written(self) -> set[Written]:
        """Every file that was written for it and that it still counts on."""
        return {*self.files, *(file for unit in self.done.values() for file in unit.files)}

    def window(self, upto: int) -> Window:
        # Up to `cdc_sequence` nothing is lacking, and there may be what a fork made invalid.
        return Window(self.meta.lsn, max(self.upto, self.meta.cdc_sequence), upto)

    def take(self, folded: FoldedTail, upto: int) -> Sequence[Written]:
        """Bring a folded tail in; gives the files that are not needed any more.

        Files and position move together: a window that is folded twice would bring its rows twice.
        """
        unneeded = self.files if folded.is_truncated else []
        if folded.is_truncated:
            self.files, self.vectors = [], {}
        self.files += folded.files
        self.vectors |= folded.vectors
        self.upto = upto
        return unneeded

    def fail(self, error: LakeError) -> None:
        self.failure, self.phase = error, Phase.FAILED

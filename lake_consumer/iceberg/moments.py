"""The lake as it is now, and as it was at a cut: the same tables, each at its own snapshot."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from lake_consumer.cuts import Cut, CutBook, When, table_gone
from lake_consumer.errors import NotReached, NotReadable
from lake_consumer.iceberg.names import (
    CUTS,
    LakeName,
    is_log,
    log_of,
    mirror_of,
    table_of,
    table_of_mirror,
)
from lake_consumer.iceberg.reading import LakeReader, rows_of
from lake_consumer.reading.relations import Relation, UpTo, open_relation
from lake_consumer.tablestates import TableState
from schemas.names import TableName

LARGE_ROWS = 20_000_000
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LakeNow:
    """Every table as it is now."""

    lake: LakeReader

    def names(self) -> list[LakeName]:
        """What SQL can name."""
        return self.lake.names()

    def open(self, name: LakeName) -> Relation:
        _warn_if_large(name, rows_of(self.lake.load(name)))
        self._warn_if_stale(name)
        return self.lake.read(lambda: open_relation(self.lake.load(name)))

    def _warn_if_stale(self, name: LakeName) -> None:
        table = table_of_mirror(name)
        if table is None or (log := log_of(table)) not in self.lake.names():
            return
        state = TableState.from_properties(self.lake.load(log).properties)
        if state.is_gone:
            raise table_gone(str(name), state.lsn)
        if not state.is_live:
            sys.stderr.write(
                f"{name} does not follow the database now, it is {state.kind}: {state.reason}\n"
            )


@dataclass(frozen=True, slots=True)
class LakeAt:
    """Every table at one cut."""

    lake: LakeReader
    book: CutBook
    cut: Cut
    called: Mapping[TableName, TableName]
    """The present name of every table, by the name that means it at the cut."""

    @classmethod
    def choose(cls, lake: LakeReader, when: When, wait_seconds: float = 0) -> LakeAt:
        """Choose the cut at a moment, and wait for it if the lake is not there yet."""
        book = _reach(lake, when, wait_seconds)
        cut = book.at(when)
        tables = set(filter(None, map(table_of, lake.names())))
        return cls(lake, book, cut, lake.table_names().names_at(tables, cut.stream_seq))

    def names(self) -> list[LakeName]:
        """What SQL can name: tables by the names that they had at the cut."""
        held = set(self.lake.names())
        called = {place(name): place(table) for name, table in self.called.items()
                  for place in (mirror_of, log_of)} | {CUTS: CUTS}  # fmt: skip
        return sorted(name for name, table in called.items() if table in held)

    def open(self, name: LakeName) -> Relation:
        return self.lake.read(lambda: self._open(self._present(name)))

    def _open(self, name: LakeName) -> Relation:
        table = self.lake.load(name)
        if name == CUTS:
            return open_relation(table, only=UpTo("stream_seq", self.cut.stream_seq))
        snapshot = self._snapshot(name)
        if table.snapshot_by_id(snapshot) is None:
            raise NotReadable(
                f"{name} has no more snapshot {snapshot}, which is the table at cut {self.cut}: "
                "maintenance has expired it",
                advice="Choose a later cut (`lake-consumer cuts`), or keep snapshots longer.",
            )
        _warn_if_large(name, rows_of(table, snapshot))
        return open_relation(table, snapshot)

    def _present(self, name: LakeName) -> LakeName:
        table = table_of(name)
        if table is None:
            return name
        place = log_of if is_log(name) else mirror_of
        return place(self.called.get(table, table))

    def _snapshot(self, name: LakeName) -> int:
        find = self.book.log_snapshot if is_log(name) else self.book.mirror_snapshot
        return find(str(table_of(name)), self.cut)


def _warn_if_large(name: LakeName, rows: int) -> None:
    if rows > LARGE_ROWS:
        sys.stderr.write(
            f"{name} has {rows:,} rows and one process reads them; "
            "name few columns and a range of an integer key, or use Spark\n"
        )


def _reach(lake: LakeReader, when: When, wait_seconds: float) -> CutBook:
    """Read the cuts, again and again until they reach a moment or the time is over."""
    end = time.monotonic() + wait_seconds
    while True:
        book = lake.cuts()
        try:
            book.at(when)
        except NotReached:
            if time.monotonic() >= end:
                raise
        else:
            return book
        time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))

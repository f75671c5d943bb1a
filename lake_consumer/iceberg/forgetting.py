"""Carries out requests of `lake-consumer forget`, between batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lake_consumer.forget import FORGET_PREFIX, read_forgets
from lake_consumer.iceberg.names import RESYNCS, log_of, mirror_of
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table_ddl import TableDdl
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.logs import info, warn
from lake_consumer.tablestates import gone
from schemas.names import TableName


@dataclass(frozen=True)
class Forgetter:
    """Hides or removes tables of the lake."""

    tables: LakeTables
    states: StateBook
    ddl: TableDdl

    def requests(self) -> dict[TableName, tuple[bool, bool]]:
        if not self.tables.exists(RESYNCS):
            return {}
        return read_forgets(self.tables.properties(self.tables.load(RESYNCS)))

    def forget(self, table: TableName, lsn: int, *, purge: bool, force: bool) -> None:
        """Do what was requested; done twice it changes nothing more."""
        state = self.states.get(table)
        if not self.tables.exists(log_of(table)) and not purge:
            return
        if not state.is_gone and not force:
            warn("table not forgotten: PostgreSQL publishes it again", table=table)
        elif purge:
            self._purge(table)
            info("table removed from the lake", table=table)
        else:
            left = state if state.is_gone else gone("forgotten on request", lsn)
            self.states.set(table, replace(left, is_forgotten=True))
            info("table forgotten", table=table)

    def _purge(self, table: TableName) -> None:
        # The log last: while it is there, the table is, and the request is carried out again.
        self.ddl.forget_names(table)
        for name in (mirror_of(table), log_of(table)):
            if self.tables.exists(name):
                self.tables.drop(name)
        self.states.forget(table)

    def done(self) -> None:
        wishes = self.tables.load(RESYNCS)
        marks = [key for key in self.tables.properties(wishes) if key.startswith(FORGET_PREFIX)]
        self.tables.set_properties(wishes, {}, without=marks)

"""Carries out requests of `lake-consumer forget`, between batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.table_ddl import TableDdl
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.logs import info, warn
from lake_consumer.requests import FORGET_PREFIX, Identity, Request, read_requests
from lake_consumer.tablestates import gone
from schemas.names import TableName


@dataclass(frozen=True)
class Forgetter:
    """Hides or removes tables of the lake, in one round: no table is renamed meanwhile."""

    tables: LakeTables
    states: StateBook
    ddl: TableDdl
    _held: dict[TableName, Identity] = field(default_factory=dict, init=False)

    def requests(self) -> list[Request]:
        """Read what was requested, and which tables there are: that loads every change log."""
        requests = read_requests(self.tables.wishes(), FORGET_PREFIX)
        if requests:
            self._held.update(self.tables.identities())
        return requests

    def forget(self, request: Request, lsn: int) -> TableName | None:
        """Do what was requested, and give the table's name; done twice it changes nothing more."""
        table = request.find(self._held)
        if table is None:
            warn("table not forgotten: it was replaced or removed since", table=request.table)
            return None
        state = self.states.get(table)
        if not state.is_gone and not request.force:
            warn("table not forgotten: PostgreSQL publishes it again", table=table)
        elif request.purge:
            self._purge(table)
            info("table removed from the lake", table=table)
        else:
            left = state if state.is_gone else gone("forgotten on request", lsn)
            self.states.set(table, replace(left, is_forgotten=True))
            info("table forgotten", table=table)
        return table

    def _purge(self, table: TableName) -> None:
        # The log last: while it is there, the table is, and the request is carried out again.
        self.ddl.forget_names(table)
        for name in (mirror_of(table), log_of(table)):
            if self.tables.exists(name):
                self.tables.drop(name)
        self.states.forget(table)
        del self._held[table]

"""The loads under way and the units that wait, shared by the batch thread and the load worker.

Everything that both threads change is changed here, under one lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

from lake_consumer.errors import SnapshotGone
from lake_consumer.iceberg.chunk_files import ChunkPlan, UnitDone
from lake_consumer.iceberg.load_state import AT_REST, Phase, SnapshotLoad
from lake_consumer.initial_load import Unit, queue_units, take_round
from schemas.names import TableName


class LoadBook:
    """Which snapshots are being loaded; at most one per table."""

    def __init__(self) -> None:
        self._loads: dict[TableName, SnapshotLoad] = {}
        self._waiting: deque[Unit] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False

    @property
    def loads(self) -> Mapping[TableName, SnapshotLoad]:
        return self._loads

    def add(self, load: SnapshotLoad) -> None:
        with self._changed:
            self._loads[load.table] = load
            self._changed.notify_all()

    def has(self, load: SnapshotLoad) -> bool:
        """Whether a load is still wanted."""
        return self._loads.get(load.table) is load

    def remove(self, load: SnapshotLoad) -> None:
        with self._changed:
            self._loads.pop(load.table, None)
            self._leave_out({load.meta.snapshot_id})

    def in_phase(self, phase: Phase) -> list[SnapshotLoad]:
        with self._changed:
            return [load for load in self._loads.values() if load.phase is phase]

    def move(self, load: SnapshotLoad, phase: Phase) -> None:
        with self._changed:
            load.phase = phase
            self._changed.notify_all()

    def queue(self, load: SnapshotLoad, units: list[Unit]) -> None:
        """Let the units of a load wait for their round."""
        with self._changed:
            load.units, load.phase = units, Phase.READING
            if self.has(load):
                self._waiting = queue_units(self._waiting, units)

    def take_round(self, lanes: int) -> tuple[list[list[Unit]], dict[str, ChunkPlan]]:
        """The units of the next round by task, and how those of each snapshot are read."""
        with self._changed:
            plans = {
                load.meta.snapshot_id: load.plan
                for load in self._loads.values()
                if load.plan is not None
            }
            return take_round(self._waiting, lanes), plans

    def take_done(self, done: Iterable[UnitDone]) -> None:
        """Note what became of a round's units."""
        with self._changed:
            loads = {load.meta.snapshot_id: load for load in self._loads.values()}
            for unit in done:
                load = loads.get(unit.snapshot_id)
                if load is None:
                    # Discarded meanwhile; its files are orphans.
                    continue
                load.done[unit.first] = unit
                if unit.failure and load.phase is not Phase.FAILED:
                    load.fail(SnapshotGone(unit.failure))
            self._leave_out({i for i, load in loads.items() if load.phase is Phase.FAILED})

    def _leave_out(self, snapshots: set[str]) -> None:
        self._waiting = deque(u for u in self._waiting if u.snapshot_id not in snapshots)

    # Between the two threads.

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @is_stopping.setter
    def is_stopping(self, value: bool) -> None:
        with self._changed:
            self._is_stopping = value
            self._changed.notify_all()

    def wait_for_work(self) -> bool:
        """Wait until a load needs the worker; False if it is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._has_work())
            return not self._is_stopping

    def _has_work(self) -> bool:
        return any(load.phase not in AT_REST for load in self._loads.values())

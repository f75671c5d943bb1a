"""Brings tables from loading to live: requests snapshots, starts their loads, finishes them.

It acts between batches, in short steps. The bridge takes snapshots and `snapshot_load` loads them
while batches go on; a mirror becomes live between two batches, as of where the whole lake stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lake_consumer.ddl_plan import NOT_PUBLISHED
from lake_consumer.errors import NoSnapshot
from lake_consumer.forks import ForkMark
from lake_consumer.gaps import Gap
from lake_consumer.iceberg.lake import Lake
from lake_consumer.jetstream.stream import CdcStream
from lake_consumer.loads import Ask, Asked, Load, Meta, Notices, Park, Wait, plan_load
from lake_consumer.logs import error, info, warn
from lake_consumer.tablestates import NO_SNAPSHOT, TableState, gone, parked
from lake_consumer.watermark import Watermark
from schemas.names import TableName
from schemas.positions import Lsn

LOOK_SECONDS = 0.5
PROGRESS_SECONDS = 10.0
TABLES_SECONDS = 5.0


@dataclass
class Waiting:
    """Since when nothing has happened, and what was seen last."""

    init_end: int = -1
    since: float = field(default_factory=time.monotonic)
    said_at: float = field(default_factory=time.monotonic)


class Loader:
    """Looks after every table that is not live."""

    def __init__(
        self,
        stream: CdcStream,
        lake: Lake,
        *,
        patience_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._lake = lake
        self._patience = patience_seconds
        self._clock = clock
        self._asked: dict[TableName, Asked] = {}
        self._spoiled: set[str] = set()
        self._looked_at = self._listed_at = -1e9
        self._waiting = Waiting()
        self._lsn = 0
        self._known: Mapping[TableName, int] = {}
        lake.states.read_all()

    @property
    def tables(self) -> Mapping[TableName, TableState]:
        """Tables that wait for a snapshot."""
        return self._lake.states.loading()

    def see_tables(self, position: int) -> None:
        """Take every table into the lake that KV `schemas` knows, also one that never changed."""
        self._listed_at = self._clock()
        states = self._lake.states
        # First: whatever the stream holds up to here happened before KV looked like this.
        end = self._stream.state().last
        known = self._stream.tables()
        if states.first_sight == "stream" or known == self._known:
            return
        states.position = position
        held = set(states.read_all())
        # The newest first: KV may still name a table that was renamed by its old name, too.
        for revision, table in sorted(((at, name) for name, at in known.items()), reverse=True):
            if table not in held and not self._lake.is_renamed(table, revision):
                self._lake.loads.see(table, revision, end)
        self._known = known

    def heal(self, gap: Gap) -> None:
        """Say loudly that changes are missing, and have every mirror built anew."""
        error(
            "changes are missing from the stream",
            sequences=gap,
            reason=gap.why,
            meaning="change logs lack them; every mirror is rebuilt from a new snapshot",
            remedy="raise the max age and max bytes of stream CDC, or run the lake more often",
        )
        self._lake.note_gap(gap, self._stream.tables())

    def cross_fork(self, fork: ForkMark) -> None:
        """Say loudly that PostgreSQL's history was replaced; mark what is dead, and rebuild."""
        error(
            "PostgreSQL's history was replaced",
            stream_sequence=fork.sequence,
            source=fork.source,
            timeline=fork.timeline,
            switch_lsn=Lsn(fork.switch_lsn),
            reason=fork.reason,
            meaning="changes from switch_lsn on that are stored before never happened; mirrors of "
            "the source are rebuilt, and fork_seq marks the changes in its change logs",
            remedy="none: new snapshots are requested automatically",
        )
        dead = self._lake.cross_fork(fork, self._stream.tables())
        info("fork crossed", stream_sequence=fork.sequence, dead_changes=dead)

    def step(self, mark: Watermark) -> bool:
        """Do what can be done for tables that are loading; False if none became live."""
        self._lsn = mark.commit_lsn
        loads = self._lake.loads
        loads.worker.position = mark.stream_sequence
        self._take_resyncs(mark.stream_sequence)
        for table in loads.drop_stale():
            self._asked.pop(table, None)
        live = self._finish(mark)
        now = self._clock()
        if now - self._listed_at >= TABLES_SECONDS:
            self.see_tables(mark.stream_sequence)
        wanted = [table for table in self.tables if table not in loads.under_way]
        if not wanted or now - self._looked_at < LOOK_SECONDS:
            return live
        self._looked_at = now
        usable: dict[TableName, Meta] = {}
        for table, notices in self._stream.snapshots.look(wanted).items():
            if meta := self._tend(table, notices, mark.stream_sequence):
                usable[table] = meta
        if usable:
            self._waiting = Waiting()
            for table, why in self._lake.begin_loads(usable).items():
                self._spoil(table, usable[table], why)
        return live

    def _tend(self, table: TableName, notices: Notices, position: int) -> Meta | None:
        asked = self._asked.get(table, Asked())
        plan = plan_load(
            notices,
            asked,
            state=self.tables[table],
            position=position,
            spoiled=self._spoiled,
            now=self._clock(),
        )
        match plan:
            case Load(meta):
                return meta
            case Ask(why):
                self._ask(table, asked, why)
            case Park(why):
                self._asked.pop(table, None)
                self._lake.states.set(table, self._refused(table, why))
                # A table that is gone may be in KV by another name, which was not looked at so far.
                self._known = {}
            case Wait():
                pass
        return None

    def _refused(self, table: TableName, why: str) -> TableState:
        """Of a table whose snapshots are refused: one that KV `schemas` lacks is not published."""
        if table not in self._stream.tables():
            return gone(NOT_PUBLISHED, self._lsn)
        return parked(f"{NO_SNAPSHOT}: {why}")

    def _ask(self, table: TableName, asked: Asked, why: str | None) -> None:
        if asked.times and why:
            warn("a snapshot failed and is asked for again", table=table, reason=why)
        request = self._stream.snapshots.ask(table)
        if request is not None:
            info("asked for a snapshot", table=table, reason=self.tables[table].reason)
        self._asked[table] = replace(
            asked,
            request=request or asked.request,
            times=asked.times + 1,
            at=self._clock(),
            refusals=asked.refusals + (why is not None),
        )

    def _finish(self, mark: Watermark) -> bool:
        for table, (meta, why) in self._lake.loads.take_failed().items():
            self._spoil(table, meta, why)
        under_way = dict(self._lake.loads.under_way)
        if under_way and not mark.commit_lsn:
            # Nothing was read yet, or nothing behind a gap: the newest snapshot says when it is.
            newest = max((load.meta for load in under_way.values()), key=lambda meta: meta.lsn)
            mark = Watermark(mark.stream_sequence, newest.lsn, newest.timestamp)
        live = self._lake.finish_loads(mark)
        for table in live:
            self._asked.pop(table, None)
        if live:
            self._waiting = Waiting()
        return bool(live)

    def _spoil(self, table: TableName, meta: Meta, why: str) -> None:
        self._spoiled.add(meta.snapshot_id)
        asked = self._asked.get(table, Asked())
        self._asked[table] = replace(asked, times=asked.times + 1, at=self._clock())
        error("a snapshot cannot be used; another one is asked for", table=table, reason=why)

    def close(self) -> None:
        """Stop loading; what is not live yet is loaded again next time."""
        self._lake.loads.close()

    def _take_resyncs(self, position: int) -> None:
        forgotten = self._lake.take_forgets(self._lsn)
        resynced = self._lake.take_resyncs(position, self._stream.snapshots.end)
        for table in (*forgotten, *resynced):
            self._asked.pop(table, None)
        if forgotten:
            # A table that was removed and is in KV nevertheless comes back as a new one.
            self._known = {}

    def wait(self) -> None:
        """Be patient while a bridge is at work on the snapshots; say so when none is."""
        if self._lake.loads.under_way:
            self._waiting = Waiting()
            return
        now, end = time.monotonic(), self._stream.snapshots.end()
        waiting = self._waiting
        if end != waiting.init_end:
            waiting.init_end, waiting.since = end, now
        names = ", ".join(str(table) for table in self.tables)
        if now - waiting.since > self._patience:
            raise NoSnapshot(
                f"nobody has worked on a snapshot of {names} for {self._patience:.0f} s"
            )
        if now - waiting.said_at >= PROGRESS_SECONDS:
            waiting.said_at = now
            info("waiting for snapshots", tables=names, stored=end, seconds=now - waiting.since)

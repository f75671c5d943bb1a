"""Cuts: which snapshot of every table shows the database as it was at one commit.

Every lake commit is a cut: all transactions up to one commit, and nothing of any later one. The
table of cuts has a row for each table that such a commit touched. A table that it did not touch
stands as its newest row before says. A row without a snapshot says that from there on the table's
mirror cannot be read, until a later row has one again; `gone_since` says that this is because
PostgreSQL dropped the table or does not publish it any more.

Rows carry a table's present name: a rename gives all of them the new one. `TableNames` knows which
name a table had at a cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lake_consumer.ddl_plan import Former
from lake_consumer.errors import BadOption, NotReached, NotReadable
from lake_consumer.forks import ForkMark, describe_fork
from schemas.names import TableName
from schemas.positions import Lsn

LATEST = "latest-cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRow:
    """One row of the table of cuts; `table` is None where a lake commit touched none."""

    table: str | None
    commit_lsn: int
    commit_ts: datetime
    stream_seq: int
    snapshot_id: int | None
    changes_snapshot_id: int | None
    gone_since: int | None = None
    """Since when PostgreSQL does not publish the table any more."""
    fork_seq: int | None = None
    """The fork after which this cut is of a history that never happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One state of the database that the lake can show."""

    stream_seq: int
    commit_lsn: Lsn
    commit_ts: datetime
    tables: tuple[str, ...]
    fork_seq: int | None = None

    def __str__(self) -> str:
        return f"{self.commit_lsn} of {self.commit_ts.isoformat()}"


When = Lsn | datetime | None
"""Where a reader wants to stand: at a WAL position, at a time, or, None, at the newest cut."""


def parse_when(text: str) -> When:
    """Read `0/1A2B3C`, an integer, an ISO time (UTC where it names no zone) or `latest-cut`."""
    if text == LATEST:
        return None
    try:
        if "/" in text:
            return Lsn.parse(text)
        if text.isdecimal():
            return Lsn(int(text))
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"{text!r} is neither a WAL position nor a time",
            advice=f"Write --at 0/1A2B3C, --at 2025-12-08T13:45:00Z or --at {LATEST}.",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class CutBook:
    """The table of cuts, read whole: it has one row per table and lake commit."""

    def __init__(self, rows: Iterable[CutRow], forks: Iterable[ForkMark] = ()) -> None:
        self._forks = tuple(forks)
        # A mirror that is rebuilt while the stream stands still can be read again at the same cut.
        self._rows = sorted(rows, key=lambda row: (row.stream_seq, row.snapshot_id is not None))

    def cuts(self) -> list[Cut]:
        """Every cut that can be read, oldest first."""
        return [cut for cut in self._all() if cut.fork_seq is None]

    def _all(self) -> list[Cut]:
        """Every cut, also those of a history that PostgreSQL does not have any more."""
        tables: dict[int, list[str]] = {}
        last: dict[int, CutRow] = {}
        for row in self._rows:
            last[row.stream_seq] = row
            tables.setdefault(row.stream_seq, []).extend([row.table] if row.table else [])
        return [
            Cut(
                stream_seq=sequence,
                commit_lsn=Lsn(row.commit_lsn),
                commit_ts=row.commit_ts,
                tables=tuple(sorted(tables[sequence])),
                fork_seq=row.fork_seq,
            )
            for sequence, row in last.items()
        ]

    def at(self, when: When) -> Cut:
        """The newest cut at or before a moment."""
        every, cuts = self._all(), self.cuts()
        self._refuse_dead([cut for cut in every if _reached(cut, when)])
        if not cuts:
            raise NotReadable(
                "the lake has no cut yet", advice="Run `lake-consumer drain`; each batch makes one."
            )
        found = [cut for cut in cuts if _reached(cut, when)]
        if not found:
            raise NotReadable(
                f"the lake has no cut at or before {when}; its first is {cuts[0]}",
                advice="`lake-consumer cuts` lists them.",
            )
        # What the database committed after the newest cut is not known here; another state than
        # the one that was asked for must not pass for it.
        if when is not None and not _reaches(cuts[-1], when):
            raise NotReached(f"the lake has not reached {when}; its newest cut is {cuts[-1]}")
        return found[-1]

    def _refuse_dead(self, reached: Sequence[Cut]) -> None:
        """Refuse a moment at which the lake was in a history that never happened."""
        if not reached or reached[-1].fork_seq is None:
            return
        fork = describe_fork(reached[-1].fork_seq, self._forks)
        live = [cut for cut in self.cuts() if cut.stream_seq < reached[-1].stream_seq]
        raise NotReadable(
            f"cut {reached[-1]} never happened on the surviving history of PostgreSQL ({fork})",
            advice="Tables of that source are rebuilt after the fork; choose a later cut"
            + (f", or {live[-1].commit_lsn}, the last one before it" if live else "")
            + " (`lake-consumer cuts`). Dead rows stay in change logs, marked by `fork_seq`.",
        )

    def unreadable(self) -> set[str]:
        """Tables whose mirror cannot be read at the newest cut."""
        newest = {row.table: row for row in self._rows if row.table is not None}
        return {table for table, row in newest.items() if row.snapshot_id is None}

    def mirror_snapshot(self, table: str, cut: Cut) -> int:
        """The mirror's snapshot that is the table at this cut."""
        row = self._row(table, cut)
        if row.gone_since is not None:
            raise table_gone(table, row.gone_since)
        if row.snapshot_id is None:
            raise NotReadable(
                f"the mirror of {table} cannot be read from cut {Lsn(row.commit_lsn)} on"
                f"{self._readable_again(table, cut)}",
                advice="It is being rebuilt, or has no key; `lake-consumer status` tells. "
                "Its change log can be read.",
            )
        return row.snapshot_id

    def log_snapshot(self, table: str, cut: Cut) -> int:
        """The change log's snapshot that ends at this cut."""
        row = self._row(table, cut)
        if row.changes_snapshot_id is None:
            raise NotReadable(f"the change log of {table} is not part of cut {cut}")
        return row.changes_snapshot_id

    def _row(self, table: str, cut: Cut) -> CutRow:
        rows = [row for row in self._rows if row.table == table]
        before = [row for row in rows if row.stream_seq <= cut.stream_seq]
        if before:
            return before[-1]
        first = f"; its first cut is {Lsn(rows[0].commit_lsn)}" if rows else ""
        raise NotReadable(
            f"{table} is not in the lake at cut {cut}{first}",
            advice="Choose a later cut; `lake-consumer cuts` lists them.",
        )

    def _readable_again(self, table: str, cut: Cut) -> str:
        later = (
            row
            for row in self._rows
            if row.table == table and row.stream_seq > cut.stream_seq and row.snapshot_id
        )
        found = next(later, None)
        return f"; it can again from {Lsn(found.commit_lsn)} on" if found else ""


class TableNames:
    """Which name a table had at a cut: the one that PostgreSQL gave it then.

    A reader at a cut says the name of that time. The present name does as well, if no table had
    it then.
    """

    def __init__(self, former: Iterable[Former]) -> None:
        self._former = sorted(former, key=lambda one: one.until)

    def name_at(self, table: TableName, stream_seq: int) -> TableName:
        """The name that the table, which is called so now, had at a stream sequence."""
        own = (one for one in self._former if one.table == table and one.until >= stream_seq)
        found = next(own, None)
        return table if found is None else found.name

    def names_at(
        self, tables: Collection[TableName], stream_seq: int
    ) -> dict[TableName, TableName]:
        """Every name that means one of these tables at a stream sequence, and which one."""
        then = {table: self.name_at(table, stream_seq) for table in tables}
        present = {table: table for table in tables}
        moved = {name: table for table, name in then.items() if name != table}
        return {**present, **moved}


def table_gone(table: str, since: int) -> NotReadable:
    """What a reader is told of a table that PostgreSQL does not publish any more."""
    return NotReadable(
        f"{table} is gone since {Lsn(since)}",
        advice=f"Read it as it was: --at {Lsn(max(0, since - 1))} or before. "
        "Its change log can still be read.",
    )


def _reaches(cut: Cut, when: Lsn | datetime) -> bool:
    """Whether a cut holds everything up to a moment."""
    return cut.commit_ts >= when if isinstance(when, datetime) else cut.commit_lsn >= when


def _reached(cut: Cut, when: When) -> bool:
    if when is None:
        return True
    if isinstance(when, datetime):
        return cut.commit_ts <= when
    return cut.commit_lsn <= when

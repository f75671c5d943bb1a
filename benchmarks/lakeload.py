"""Initial loads of the lake: their pace, and what they cost the tables that are live already.

Everything is real here: PostgreSQL, the bridge, NATS and `lake-consumer run`, on the same cores. A
writer commits at a steady rate into a table that is live; a commit is visible when the first batch
is applied that reaches its LSN. Then large or many tables are added to the publication: the bridge
announces them, the lake requests snapshots and loads them, and the writer goes on. The ceiling of
one large load is `COPY` of the same table through psql into /dev/null.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pyarrow.compute as pc
from psycopg.sql import SQL, Identifier, Literal

from benchmarks.lakerun import LakeFolder, LakeProcess, following
from benchmarks.listener import percentile
from benchmarks.loads import create_table, in_transactions, insert
from benchmarks.scenario import Family, Figures, Scenario, Setting, Target, Wrong
from benchmarks.snapshot import TABLE, copy_seconds
from benchmarks.stack import PUBLICATION, Stack, running_stack, wait_until
from examples.embedded import temporary_folder
from lake_consumer.iceberg.reading import open_catalog
from schemas.positions import Lsn

ROWS = 5_000_000
TABLES, TABLE_ROWS = 101, 1_000
ROWS_PER_COMMIT, COMMITS_PER_SECOND = 100, 10
WARM_UP_SECONDS, QUIET_SECONDS = 60, 60
TICKS = "ticks"

Reached = tuple[float, Lsn]
"""When an LSN was committed, or applied."""


@dataclass
class Writer:
    """Commits rows into `ticks` at a steady rate, and remembers when and at which LSN."""

    stack: Stack
    commits: list[Reached] = field(default_factory=list)

    @contextmanager
    def writing(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._write, args=[stop], daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _write(self, stop: threading.Event) -> None:
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            due = time.monotonic()
            while not stop.wait(max(0.0, due - time.monotonic())):
                due += 1 / COMMITS_PER_SECOND
                lsn = self._commit(connection)
                self.commits.append((time.monotonic(), lsn))

    def _commit(self, connection: psycopg.Connection) -> Lsn:
        """Give an LSN below that of the commit, and above every commit before it."""
        with connection.transaction():
            connection.execute(
                "INSERT INTO ticks SELECT n + (SELECT coalesce(max(id), 0) FROM ticks)"
                " FROM generate_series(1, %s) AS n",
                [ROWS_PER_COMMIT],
            )
            found = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        if found is None:
            raise Wrong("PostgreSQL does not say where its WAL is")
        return Lsn.parse(str(found[0]))


def ages(commits: Sequence[Reached], batches: Sequence[Reached]) -> list[float]:
    """Seconds from each commit until the first batch that shows it; there must be one."""
    found, later = [], iter(batches)
    shown_at, shown = 0.0, Lsn(0)
    for at, lsn in commits:
        while shown < lsn:
            try:
                shown_at, shown = next(later)
            except StopIteration:
                raise Wrong(f"no batch reached the commit at {lsn}") from None
        found.append(max(0.0, shown_at - at))
    return found


def measure_one(setting: Setting) -> Iterator[Figures]:
    """Load one large table."""
    rows = setting.scaled(ROWS)
    for _ in range(setting.rounds):
        with running_stack() as stack:
            create_table(stack.connection, TABLE)
            in_transactions(stack.connection, 1, insert(TABLE, Literal(1), Literal(rows)))
            stack.execute("VACUUM (FREEZE, ANALYZE) customers")
            copy_per_s = rows / copy_seconds(stack)
            figures = _load(stack, setting, {TABLE: rows})
            yield {
                **figures,
                "copy_per_s": copy_per_s,
                "ratio": figures["rows_per_s"] / copy_per_s,
            }


def measure_many(setting: Setting) -> Iterator[Figures]:
    """Load many small tables at the same time."""
    rows = {f"customers_{number}": TABLE_ROWS for number in range(TABLES)}
    for _ in range(setting.rounds):
        with running_stack() as stack:
            for table in rows:
                create_table(stack.connection, table)
                in_transactions(stack.connection, 1, insert(table, Literal(1), Literal(TABLE_ROWS)))
            yield _load(stack, setting, rows)


def _load(stack: Stack, setting: Setting, rows: dict[str, int]) -> Figures:
    stack.execute("CREATE TABLE ticks (id bigint PRIMARY KEY, at timestamptz DEFAULT now())")
    stack.publish([TICKS])
    writer = Writer(stack)
    with temporary_folder() as folder, stack.bridge() as bridge:
        lake = LakeFolder(folder / "lake")
        flags = ("--first-sight", "snapshot", "--interval", "1")
        with following(lake, bridge.server, *flags) as process:
            _await(process, lambda: _loaded(process, [TICKS]) > 0, "a live table")
            with writer.writing():
                time.sleep(WARM_UP_SECONDS * setting.scale)
                began = time.monotonic()
                time.sleep(max(10.0, QUIET_SECONDS * setting.scale))
                added = time.monotonic()
                tables = SQL(", ").join(map(Identifier, rows))
                stack.connection.execute(
                    SQL("ALTER PUBLICATION {} ADD TABLE {}").format(Identifier(PUBLICATION), tables)
                )
                _await(process, lambda: _loaded(process, rows) > 0, "the loads")
                loaded = _loaded(process, rows)
            _await(process, lambda: _newest(process) >= writer.commits[-1][1], "the last commit")
            figures = _sum_up(process, writer.commits, began, added, loaded)
            for table, count in rows.items():
                _demand(lake, table, count)
    total = sum(rows.values())
    return {"rows": total, "rows_per_s": total / figures["loading_s"], **figures}


def _sum_up(
    process: LakeProcess, commits: list[Reached], began: float, added: float, loaded: float
) -> dict[str, float]:
    seconds = list(zip(commits, ages(commits, _batches(process)), strict=True))
    quiet = [age for (at, _), age in seconds if began <= at < added]
    during = [age for (at, _), age in seconds if added <= at < loaded]
    return {
        "loading_s": loaded - added,
        "quiet_p95_s": percentile(quiet, 0.95),
        "during_p95_s": percentile(during, 0.95),
        "freshness_ratio": percentile(during, 0.95) / percentile(quiet, 0.95),
        "memory_mb": process.peak_mb,
    }


def _batches(process: LakeProcess) -> list[Reached]:
    return [
        (event.at, Lsn.parse(event.fields["commit_lsn"]))
        for event in process.events
        if event.fields.get("msg") == "batch applied"
    ]


def _newest(process: LakeProcess) -> Lsn:
    return max((lsn for _, lsn in _batches(process)), default=Lsn(0))


def _loaded(process: LakeProcess, tables: Iterable[str]) -> float:
    """Say when the last of the tables was live; 0 while one is missing."""
    names = {f"public.{table}" for table in tables}
    moments = {
        event.fields.get("table"): event.at
        for event in process.events
        if event.fields.get("msg") == "snapshot loaded"
    }
    return max(moments[name] for name in names) if moments.keys() >= names else 0.0


def _await(process: LakeProcess, reached: Callable[[], bool], what: str) -> None:
    def is_reached() -> bool:
        if process.process.poll() is not None:
            raise Wrong(f"the lake ended:\n{''.join(process.said)[-2_000:]}")
        return reached()

    wait_until(is_reached, what, every=0.1)


def _demand(lake: LakeFolder, table: str, rows: int) -> None:
    """Make sure the mirror holds keys 1 to `rows`, each once."""
    found = open_catalog(lake.catalog, lake.warehouse).load_table(f"public.{table}")
    keys = found.scan(selected_fields=("id",)).to_arrow()["id"]
    held = (len(keys), pc.count_distinct(keys).as_py(), pc.sum(keys).as_py())
    if held != (rows, rows, rows * (rows + 1) // 2):
        raise Wrong(f"the mirror of {table} holds {held}, and {rows} rows were committed")


FAMILY = Family(
    title="Initial load of the lake",
    columns={
        "rows": "rows",
        "loading_s": "published to live s",
        "rows_per_s": "rows/s",
        "copy_per_s": "`COPY` through psql",
        "ratio": "ratio",
        "quiet_p95_s": "other table visible p95 s, before",
        "during_p95_s": "during the load",
        "freshness_ratio": "ratio of both",
        "memory_mb": "memory MB",
    },
    scenarios=(
        Scenario(
            name="load-one",
            about="one table of 5,000,000 rows of 145 bytes, beside 1,000 changes/s of another",
            measure=measure_one,
            targets=(Target("freshness_ratio", "at most", 2),),
            guarded=("ratio",),
            most_rounds=3,
        ),
        Scenario(
            name="load-many",
            about="101 tables of 1,000 rows at the same time, beside 1,000 changes/s of another",
            measure=measure_many,
            targets=(Target("during_p95_s", "at most", 10),),
        ),
    ),
)

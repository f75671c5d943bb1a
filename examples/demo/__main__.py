"""The whole pipeline in one command: PostgreSQL, bridge, NATS, Spark, Iceberg, and a verdict.

Writes a shop's day into PostgreSQL while the bridge runs, lets the lake catch up, and compares
every row and every value. Ends with 0 only if all parts lived and everything is equal.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psycopg
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from examples.demo.screen import print_table, step
from examples.demo.stack import DATABASE, PARTS, SLOT, DemoFailed, Part, Stack
from examples.demo.story import life_of
from examples.demo.verdict import TableVerdict, judge
from examples.demo.workload import (
    CUSTOMERS,
    EARLIER,
    SCHEMA,
    STORY_CUSTOMER,
    TABLES,
    Done,
    run_workload,
)
from examples.embedded import ServerDied, temporary_folder

LAKE_KILL_AFTER_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    try:
        with temporary_folder(keep=options.keep) as folder:
            print(f"walbridge demo in {folder}", flush=True)
            equal = _demonstrate(folder, options.rows, options.kill)
            print(f"\n{time.monotonic() - began:.0f} s in all.", end=" ")
            print(_where(folder) if options.keep else "Everything is removed again (see --keep).")
    except (DemoFailed, ServerDied, psycopg.Error) as failure:
        print(f"\nFAILED: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; everything is stopped and removed.", file=sys.stderr)
        return 130
    return 0 if equal else 1


def _demonstrate(folder: Path, rows: int, victim: Part | None) -> bool:
    with Stack(folder) as stack:
        with step("starting PostgreSQL and NATS") as now:
            stack.start_servers()
            now.done(
                f"PostgreSQL on port {stack.postgres.port}, NATS JetStream on {stack.nats.port}"
            )
        dsn = stack.postgres.dsn(DATABASE)
        with psycopg.connect(dsn, autocommit=True) as database:
            with step("init.sh") as now:
                database.execute(SCHEMA)
                database.execute(EARLIER)
                now.done(f"init.sh: {stack.run_init_sh()}")
            with step("starting the bridge") as now:
                stack.start_bridge(now)
                now.done(f"bridge is streaming, {stack.http_url}/status")
            done = _write(stack, dsn, rows, victim)
            _await_confirmation(stack, database)
            _drain(stack, kill=victim == "lake")
            return _judge(stack, database, done)


def _write(stack: Stack, dsn: str, rows: int, victim: Part | None) -> Done:
    # Not awaited on the way out: with the servers gone the writers end by themselves.
    pool = ThreadPoolExecutor(1)
    try:
        with step("writing") as now:
            writing = pool.submit(run_workload, dsn, rows)
            for _ in stack.watch("the workload", writing.done):
                now.show("writing, while the bridge publishes")
                if victim in {"postgres", "nats", "bridge"}:
                    stack.kill(victim)
            done = writing.result()
            now.done(
                f"written: {done.changes.total():,} changes in {done.transactions:,} transactions"
            )
            return done
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _await_confirmation(stack: Stack, database: psycopg.Connection) -> None:
    end = _one(database, "SELECT pg_current_wal_lsn()::text")
    query = (
        "SELECT confirmed_flush_lsn >= %s::pg_lsn, confirmed_flush_lsn::text"
        " FROM pg_replication_slots WHERE slot_name = %s"
    )
    confirmed = ""

    def reached() -> bool:
        nonlocal confirmed
        found = database.execute(query, (end, SLOT)).fetchone()
        if found is None:
            raise DemoFailed(f"the slot {SLOT} is gone")
        confirmed = found[1]
        return bool(found[0])

    with step("publishing") as now:
        for _ in stack.watch(f"the bridge to confirm {end}", reached):
            now.show(f"publishing: {confirmed} of {end} stored, synced and confirmed")
        now.done(f"bridge has stored everything up to {confirmed} and told PostgreSQL so")


def _drain(stack: Stack, *, kill: bool) -> None:
    with step("draining") as now:
        lake, began, said = stack.start_lake(), time.monotonic(), 0
        while lake.running:
            stack.check()
            lines = lake.last_lines(1_000)
            for line in lines[said:]:
                if "downloading" in line:
                    now.say(line)
            said = len(lines)
            event = lines[-1].partition(" msg=")[2] if lines else "starting"
            now.show(f"lake-consumer drain: {event}")
            if kill and time.monotonic() - began > LAKE_KILL_AFTER_S:
                stack.kill("lake")
            time.sleep(0.1)
        if lake.process.returncode:
            tail = "\n".join(lake.last_lines(15))
            raise DemoFailed(f"lake-consumer ended with code {lake.process.returncode}:\n{tail}")
        now.done("lake-consumer has drained the stream into Iceberg")


def _judge(stack: Stack, database: psycopg.Connection, done: Done) -> bool:
    catalog = _open_lake(stack.warehouse)
    verdicts: list[TableVerdict] = []
    with step("comparing") as now:
        for table in TABLES:
            now.show(f"comparing {table}")
            verdicts.append(judge(database, catalog, table, done.changes))
        now.done("compared, row by row and value by value, by PostgreSQL")
    print()
    print_table(
        ("table", "PostgreSQL", "lake", "differ", "changes", "change log", ""),
        [
            (
                str(verdict.table),
                verdict.database_rows,
                verdict.lake_rows,
                len(verdict.missing) + len(verdict.surplus),
                sum(verdict.written.values()),
                sum(verdict.logged.values()),
                "equal" if verdict.equal else "DIFFERENT",
            )
            for verdict in verdicts
        ],
    )
    print(f"\nThe life of {CUSTOMERS} {STORY_CUSTOMER}, from its change log:\n")
    for line in life_of(catalog, CUSTOMERS, "id", STORY_CUSTOMER):
        print(f"  {line}")
    return _announce(verdicts)


def _announce(verdicts: Sequence[TableVerdict]) -> bool:
    different = [verdict for verdict in verdicts if not verdict.equal]
    if different:
        print(f"\nDIFFERENT: {len(different)} of {len(verdicts)} tables")
        for verdict in different:
            for line in verdict.explain():
                print(f"  {line}")
        return False
    rows = sum(verdict.database_rows for verdict in verdicts)
    changes = sum(sum(verdict.logged.values()) for verdict in verdicts)
    print(
        f"\nEQUAL: {rows:,} rows of {len(verdicts)} tables, every value;"
        f" {changes:,} changes, each once."
    )
    return True


def _open_lake(warehouse: Path) -> Catalog:
    return SqlCatalog(
        "lake", uri=f"sqlite:///{warehouse / 'catalog.db'}", warehouse=warehouse.as_uri()
    )


def _where(folder: Path) -> str:
    return (
        f"Kept in {folder}:\n"
        f"  lake/      the Iceberg tables; lake-consumer status --warehouse {folder}/lake\n"
        f"  postgres/  the database\n"
        f"  nats/      the streams\n"
        f"  *.log      what the commands said"
    )


def _one(database: psycopg.Connection, query: str) -> str:
    found = database.execute(query).fetchone()
    return str(found[0]) if found else ""


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the folder with everything in it")
    parser.add_argument(
        "--rows", type=int, default=20_000, metavar="N", help="rows of the largest transaction"
    )
    parser.add_argument("--kill", choices=PARTS, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

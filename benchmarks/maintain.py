"""Maintenance: a mirror after many small commits, cared for, beside a fresh copy of the same rows.

A commit is what a small batch leaves in a mirror: a file of a hundred rows, half of them new and
half in place of rows that are deleted. So that a thousand take a minute and not an hour, one Spark
job writes all files, each is then committed by itself, and the deletes of twenty commits are one.
Reads are full scans that touch every value, the best of three, so that the first one's compiling
is left out. The rows must be the same before, after and in the copy, or there is no figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.scenario import Family, Figures, Scenario, Setting, Target, Wrong
from examples.embedded import temporary_folder
from lake_consumer.care import CareOptions
from lake_consumer.catalogs import CatalogUri
from lake_consumer.columns import columns_of
from lake_consumer.iceberg.maintenance import Caretaker
from lake_consumer.iceberg.names import LakeName
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.iceberg.types import mirror_schema
from lake_consumer.session import SessionOptions, open_session
from lake_consumer.shapes import shape_properties
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.types import parse_type

BASE_ROWS = 200_000
ROWS_PER_COMMIT = 100
READS = 3
DELETE_EVERY = 20
MIRROR, FRESH = LakeName("public", "customers"), LakeName("public", "fresh")
SMALL = LakeName("public", "small")
"""Holds the files before they are committed to the mirror."""

TYPES = {"id": "int64", "name": "text", "balance": "decimal(12,2)"}
COLUMNS = {
    "commits": "small commits",
    "files_before": "files before",
    "files_after": "files after",
    "maintain_s": "maintenance, s",
    "before_vs_fresh": "read before / fresh",
    "after_vs_fresh": "read after / fresh",
}


def small_commits(commits: int) -> Callable[[Setting], Iterator[Figures]]:
    """Measure care after so many small commits."""

    def measure(setting: Setting) -> Iterator[Figures]:
        count = setting.scaled(commits, least=50)
        for _ in range(setting.rounds):
            with temporary_folder() as folder:
                spark = open_session(
                    SessionOptions(
                        master="local[2]",
                        warehouse=f"file://{folder}",
                        catalog=CatalogUri(f"sqlite:///{folder}/catalog.db"),
                    )
                )
                try:
                    yield measure_round(spark, count, setting.scaled(BASE_ROWS))
                finally:
                    spark.stop()

    return measure


def measure_round(spark: SparkSession, commits: int, rows: int) -> Figures:
    tables = LakeTables(spark)
    shape = _shape()
    properties = shape_properties(shape, 1)
    for name in (MIRROR, FRESH, SMALL):
        tables.create(name, mirror_schema(columns_of(shape)), properties=properties)
    _rows(spark, 0, rows).writeTo(MIRROR.sql).append()
    _live(spark, tables, commits, rows)
    files = _files(spark, MIRROR)
    before, sum_before = _read(spark, MIRROR)
    if sum_before[0] != rows + commits * ROWS_PER_COMMIT // 2:
        raise Wrong(f"{sum_before[0]} rows after {commits} commits onto {rows}")
    options = CareOptions(small_files=5, keep=timedelta(days=7), budget_seconds=3_600)
    began = time.monotonic()
    Caretaker(spark, options, lambda _: None).care([MIRROR])
    maintain_s = time.monotonic() - began
    after, sum_after = _read(spark, MIRROR)
    spark.table(MIRROR.sql).orderBy("id").coalesce(1).writeTo(FRESH.sql).append()
    fresh, sum_fresh = _read(spark, FRESH)
    if not sum_before == sum_after == sum_fresh:
        raise Wrong(f"rows changed: {sum_before} before, {sum_after} after, {sum_fresh} fresh")
    return {
        "commits": commits,
        "files_before": files,
        "files_after": _files(spark, MIRROR),
        "maintain_s": maintain_s,
        "read_before_s": before,
        "read_after_s": after,
        "read_fresh_s": fresh,
        "before_vs_fresh": before / fresh,
        "after_vs_fresh": after / fresh,
    }


def _shape() -> TableShape:
    columns = tuple(
        Column(name=name, position=n, data_type=kind, type_oid=0, type_modifier=-1,
               type=parse_type(kind), key=0 if name == "id" else None)
        for n, (name, kind) in enumerate(TYPES.items(), start=1)
    )  # fmt: skip
    return TableShape(
        name=TableName(MIRROR.namespace, MIRROR.name),
        relation_id=1,
        replica_identity="default",
        columns=columns,
    )


def _rows(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, 1, 2).selectExpr(
        "id",
        "concat('customer ', id) AS name",
        "CAST(id % 1000 AS decimal(12,2)) AS balance",
        "CAST(NULL AS map<string,string>) AS _bridge_text",
    )


def _live(spark: SparkSession, tables: LakeTables, commits: int, rows: int) -> None:
    """Leave what so many small batches leave; see the top of this file."""
    half = ROWS_PER_COMMIT // 2
    at, place = "id DIV 100", "id % 100"
    written = spark.range(0, commits * ROWS_PER_COMMIT, 1, commits).selectExpr(
        f"IF({place} < {half}, {at} * {half} + {place}, {rows} + {at} * {half} + {place} - {half})"
        " AS id",
        f"concat('written by ', {at}) AS name",
        "CAST(id % 1000 AS decimal(12,2)) AS balance",
        "CAST(NULL AS map<string,string>) AS _bridge_text",
    )
    written.writeTo(SMALL.sql).append()
    mirror, small = tables.load(MIRROR), tables.load(SMALL)
    # A file's name begins with the number of the task that wrote it.
    files = sorted((task.file() for task in small.newScan().planFiles().iterator()), key=_file_name)
    if len(files) != commits:
        raise Wrong(f"{len(files)} files for {commits} commits")
    for first in range(0, commits, DELETE_EVERY):
        keys = f"id >= {first * half} AND id < {(first + DELETE_EVERY) * half}"
        spark.sql(f"DELETE FROM {MIRROR.sql} WHERE {keys}")
        for file in files[first : first + DELETE_EVERY]:
            mirror.refresh()
            mirror.newAppend().appendFile(file).commit()


def _file_name(file: Any) -> str:
    return str(file.location()).rpartition("/")[2]


def _read(spark: SparkSession, name: LakeName) -> tuple[float, tuple[Any, ...]]:
    seconds: list[float] = []
    result: tuple[Any, ...] = ()
    for _ in range(READS):
        began = time.monotonic()
        result = tuple(
            spark.sql(
                f"SELECT count(*), sum(hash(id, name, balance)), min(id), max(id) FROM {name.sql}"
            ).collect()[0]
        )
        seconds.append(time.monotonic() - began)
    return min(seconds), result


def _files(spark: SparkSession, name: LakeName) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {name.sql}.files").collect()[0][0])


FAMILY = Family(
    title="Maintenance",
    columns=COLUMNS,
    scenarios=(
        Scenario(
            name="maintain-small-commits",
            about="1,000 commits of 100 rows onto 200,000; how a full read is before and after",
            measure=small_commits(1_000),
            targets=(Target("after_vs_fresh", "at most", 1.5),),
            guarded=(),
        ),
    ),
)

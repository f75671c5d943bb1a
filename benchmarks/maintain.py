"""Maintenance: a mirror after many small commits, cared for, beside a fresh copy of the same rows.

A commit is what a small batch leaves in a mirror: a MERGE of a hundred rows, half of them new.
Reads are full scans that touch every value, the best of three, so that the first one's compiling
is left out. The rows must be the same before, after and in the copy, or there is no figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

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
MIRROR, FRESH = LakeName("public", "customers"), LakeName("public", "fresh")
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
    for name in (MIRROR, FRESH):
        tables.create(name, mirror_schema(columns_of(shape)), properties=properties)
    _rows(spark, 0, rows).writeTo(MIRROR.sql).append()
    for number in range(commits):
        _commit(spark, number, rows)
    files = _files(spark, MIRROR)
    before, sum_before = _read(spark, MIRROR)
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


def _commit(spark: SparkSession, number: int, rows: int) -> None:
    """Half of the rows are new, half change rows all over the table."""
    half = ROWS_PER_COMMIT // 2
    new = rows + number * half
    step = max(1, rows // half)
    spark.sql(
        f"MERGE INTO {MIRROR.sql} t USING ("
        f"SELECT explode(sequence({new}, {new + half - 1})) AS id UNION ALL "
        f"SELECT (explode(sequence(0, {half - 1})) * {step} + {number}) % {rows}) s ON t.id = s.id "
        f"WHEN MATCHED THEN UPDATE SET balance = {number} "
        f"WHEN NOT MATCHED THEN INSERT (id, name, balance, _bridge_text) "
        f"VALUES (s.id, 'new', {number}, NULL)"
    )


def _read(spark: SparkSession, name: LakeName) -> tuple[float, object]:
    seconds, result = [], None
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

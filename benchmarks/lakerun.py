"""The lake consumer as a process of its own, on tables that are in the lake already.

Mirrors are filled by Spark before the clock starts, as a snapshot would have filled them. What a
batch cost is read from the line that the program prints of it; the tables are held against what was
committed by pyiceberg, which shares no code with what wrote them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import psutil
import pyarrow.compute as pc

from benchmarks.lakestream import Truth, shape_of
from benchmarks.scenario import Wrong
from examples.embedded import EmbeddedNats
from lake_consumer.catalogs import CatalogUri
from lake_consumer.columns import columns_of
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.reading import open_catalog
from lake_consumer.iceberg.tables import LakeTables
from lake_consumer.iceberg.types import log_schema, mirror_schema
from lake_consumer.session import SessionOptions, open_session
from lake_consumer.shapes import shape_properties
from schemas.names import TableName

_FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')
_ROWS = (
    "id", "concat('Customer number ', id) AS name",
    "concat('customer', id, '@example.test') AS email", "CAST(0.25 AS decimal(12,2)) AS balance",
    "id % 2 = 0 AS active", "TIMESTAMP '2025-01-01 00:00:00Z' AS created_at",
    "concat('ordered ', id % 97, ' pieces and wants them delivered by noon') AS note",
    "CAST(NULL AS map<string,string>) AS _bridge_text",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchLine:
    """What the program said of one batch."""

    messages: int
    seconds: float
    read_seconds: float
    write_seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the program's log, and when it was read."""

    at: float
    fields: Mapping[str, str]


class LakeFolder:
    """A warehouse and its catalog."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = f"file://{folder}"
        self.catalog = CatalogUri(f"sqlite:///{folder}/catalog.db")
        folder.mkdir(parents=True, exist_ok=True)

    def fill(self, tables: dict[str, int]) -> None:
        """Make mirrors of so many rows, in a process that ends before anything is measured."""
        program = (
            "from pathlib import Path; from benchmarks.lakerun import LakeFolder; "
            f"LakeFolder(Path({str(self.folder)!r})).fill_here({tables!r})"
        )
        subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)

    def fill_here(self, tables: dict[str, int]) -> None:
        spark = open_session(
            SessionOptions(
                master="local[2]", warehouse=self.warehouse, catalog=self.catalog, short=True
            )
        )
        lake = LakeTables(spark)
        for table, rows in tables.items():
            name, shape = TableName.parse(table), shape_of(table)
            columns, properties = columns_of(shape), shape_properties(shape, 1)
            log = log_schema(columns)
            lake.create(log_of(name), log, day_of="commit_ts", properties=properties)
            lake.create(mirror_of(name), mirror_schema(columns), properties=properties)
            files = max(1, rows // 250_000)
            frame = spark.range(1, rows + 1, 1, files).selectExpr(*_ROWS)
            frame.writeTo(mirror_of(name).sql).append()
        spark.stop()

    def demand(self, truth: Truth) -> None:
        """Make sure mirror and change log hold what was committed."""
        catalog = open_catalog(self.catalog, self.warehouse)
        mirror = catalog.load_table(f"public.{truth.table}")
        rows = mirror.scan(selected_fields=("id", "balance")).to_arrow()
        # A balance is the row's version and a quarter.
        versions = int((pc.sum(rows["balance"]).as_py() or 0) - Decimal("0.25") * rows.num_rows)
        found = (pc.count_distinct(rows["id"]).as_py(), pc.sum(rows["id"]).as_py(), versions)
        if found != truth.sums or rows.num_rows != found[0]:
            raise Wrong(f"{truth.table} holds {found}, and {truth.sums} was committed")
        log = catalog.load_table(f"public__changes.{truth.table}")
        sequences = log.scan(selected_fields=("stream_seq",)).to_arrow()["stream_seq"]
        made = (len(sequences), pc.count_distinct(sequences).as_py())
        if made != (truth.changes, truth.changes):
            raise Wrong(f"the log has {made} changes, and {truth.changes} were made")

    def version_of(self, table: str, key: int) -> int | None:
        """Which version of a row a reader sees now."""
        found = open_catalog(self.catalog, self.warehouse).load_table(f"public.{table}")
        rows = found.scan(f"id = {key}", selected_fields=("balance",)).to_arrow()
        return int(rows["balance"][0].as_py()) if rows.num_rows else None


class LakeProcess:
    """`lake-consumer`, what it said, and what its processes cost."""

    def __init__(self, lake: LakeFolder, server: EmbeddedNats, command: str, *flags: str) -> None:
        environ = {
            **os.environ,
            "LAKE_WAREHOUSE": str(lake.folder),
            "LAKE_FIRST_SIGHT": "stream",
            "NATS_URL": server.url,
            "SPARK_MASTER": "local[2]",
        }
        program = [sys.executable, "-m", "lake_consumer.cli", command, *flags]
        self.process = subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, text=True)
        self.batches: list[BatchLine] = []
        self.events: list[Event] = []
        self.said: list[str] = []
        self.peak_mb = 0.0
        self.cpu_seconds: dict[str, float] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._meter = threading.Thread(target=self._measure, daemon=True)
        self._reader.start()
        self._meter.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.said.append(line)
            fields = {name: value.strip('"') for name, value in _FIELD.findall(line)}
            self.events.append(Event(time.monotonic(), fields))
            if fields.get("msg") == "batch applied":
                self.batches.append(
                    BatchLine(
                        int(fields["messages"]),
                        float(fields["seconds"]),
                        float(fields["read_seconds"]),
                        float(fields["write_seconds"]),
                        time.monotonic(),
                    )
                )

    def _measure(self) -> None:
        """Sum up the memory of driver, JVM and workers twice a second; shared pages count once."""
        while self.process.poll() is None:
            total = 0.0
            cpu: dict[str, float] = {}
            for process in _family(self.process.pid):
                try:
                    info, times = process.memory_full_info(), process.cpu_times()
                    kind = _kind(process, self.process.pid)
                except psutil.Error:
                    continue
                total += info.pss
                cpu[kind] = cpu.get(kind, 0.0) + times.user + times.system
                if kind == "workers":
                    cpu[kind] += times.children_user + times.children_system
            self.peak_mb = max(self.peak_mb, total / (1 << 20))
            for kind, seconds in cpu.items():
                self.cpu_seconds[kind] = max(seconds, self.cpu_seconds.get(kind, 0.0))
            time.sleep(0.5)

    def finish(self, patience: float = 1_800) -> list[BatchLine]:
        code = self.process.wait(patience)
        self._reader.join()
        if code:
            raise Wrong(f"lake-consumer ended with {code}:\n{''.join(self.said)[-2_000:]}")
        return self.batches


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _kind(process: psutil.Process, driver: int) -> str:
    if process.pid == driver:
        return "driver"
    return "jvm" if "java" in process.name() else "workers"


@contextmanager
def following(lake: LakeFolder, server: EmbeddedNats, *flags: str) -> Iterator[LakeProcess]:
    """Let `lake-consumer run` follow, and end it."""
    process = LakeProcess(lake, server, "run", *flags)
    try:
        yield process
    finally:
        process.process.terminate()
        process.process.wait(120)

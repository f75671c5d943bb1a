"""Tables of the lake as relations of a DuckDB connection.

A table whose files are local is read by DuckDB's own Parquet reader. Everything else, object stores
above all, is read by pyiceberg through an Arrow stream: DuckDB then calls Python, but only from its
own tasks, which end with the query (`LakeDataset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table

from lake_consumer.iceberg.datasets import LakeDataset, compare
from lake_consumer.reading.deletions import are_vectors, read_bitmaps
from lake_consumer.reading.parquet_scan import ParquetScan, ScannedFile, plan_parquet_scan, quote


class Relation(Protocol):
    """Rows that DuckDB can select from."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that DuckDB must be allowed to read for it."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns, in order."""

    def select(self, connection: duckdb.DuckDBPyConnection, name: str) -> str:
        """Prepare the connection, with `name` for what must be stored there; gives the SELECT."""


@dataclass(frozen=True, slots=True)
class UpTo:
    """A condition on rows: an integer column is at most this."""

    column: str
    most: int

    @property
    def sql(self) -> str:
        return f"{quote(self.column)} <= {self.most}"


@dataclass(frozen=True, slots=True)
class ArrowRelation:
    """Rows of an Arrow dataset."""

    dataset: ds.Dataset
    paths: tuple[str, ...] = ()

    @property
    def columns(self) -> Sequence[str]:
        names: list[str] = self.dataset.schema.names
        return names

    def select(self, connection: duckdb.DuckDBPyConnection, name: str) -> str:
        connection.register(name, self.dataset)
        return f"FROM temp.main.{quote(name)}"


@dataclass(frozen=True, slots=True)
class ParquetRelation:
    """Rows of local Parquet files, less the deleted ones."""

    scan: ParquetScan
    bitmaps: tuple[bytes | None, ...] = ()
    only: UpTo | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return self.scan.paths

    @property
    def columns(self) -> Sequence[str]:
        return [column.name for column in self.scan.columns]

    def select(self, connection: duckdb.DuckDBPyConnection, name: str) -> str:
        deleted = None
        if any(bitmap is not None for bitmap in self.bitmaps):
            deleted = f"temp.main.{quote(name)}"
            self._store_bitmaps(connection, deleted)
        return self.scan.sql(deleted, None if self.only is None else self.only.sql)

    def _store_bitmaps(self, connection: duckdb.DuckDBPyConnection, table: str) -> None:
        # Stored as a table of DuckDB's own: an Arrow table would be read through Python.
        rows = pa.table({"files": pa.array([list(self.bitmaps)], pa.list_(pa.binary()))})
        connection.register("_bitmaps", rows)
        bits = "SELECT files::BIT[] AS files FROM _bitmaps"
        connection.execute(f"CREATE TEMP TABLE {table} AS {bits}")
        connection.unregister("_bitmaps")


def open_relation(
    table: Table, snapshot_id: int | None = None, only: UpTo | None = None
) -> Relation:
    """A table at one snapshot, by default the current one."""
    return _parquet(table, snapshot_id, only) or _arrow(table, snapshot_id, only)


def _parquet(table: Table, snapshot_id: int | None, only: UpTo | None) -> ParquetRelation | None:
    scan = table.scan(snapshot_id=snapshot_id)
    tasks = list(scan.plan_files())
    files = [
        ScannedFile(task.file.file_path, task.file.file_format == FileFormat.PARQUET)
        for task in tasks
    ]
    planned = plan_parquet_scan(scan.projection(), table.schemas().values(), files)
    if planned is None or not are_vectors(tasks):
        return None
    return ParquetRelation(planned, tuple(read_bitmaps(table.io, tasks)), only)


def _arrow(table: Table, snapshot_id: int | None, only: UpTo | None) -> ArrowRelation:
    condition = None if only is None else compare(only.column, "<=", only.most)
    return ArrowRelation(LakeDataset(table, snapshot_id, condition))

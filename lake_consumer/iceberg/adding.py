"""Files that executors wrote, added to their table in one commit, through Iceberg's own API.

Iceberg reads sizes, counts and bounds of every column from the footer of a file, so a file is in
the table as if Spark had written it. Rows are looked at by nobody here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lake_consumer.iceberg.datafiles import FileTarget, Written, arrow_schema, can_write, codec_of
from lake_consumer.iceberg.staging import MAIN
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.logs import warn
from lake_consumer.stores import ObjectStore


class FileAdder:
    """Says where executors may write, and adds what they wrote."""

    def __init__(self, tables: LakeTables, store: ObjectStore | None = None) -> None:
        self._tables = tables
        self._store = store
        # Found once: every look-up of a class by its name asks Java's class loaders several times.
        iceberg = tables.iceberg
        self._schema_to_json = iceberg.SchemaParser.toJson
        self._everything = iceberg.expressions.Expressions.alwaysTrue()
        self._metrics_config = iceberg.MetricsConfig.forTable
        self._file_metrics = iceberg.parquet.ParquetUtil.fileMetrics
        self._data_file_builder = iceberg.DataFiles.builder

    def target(self, table: Table) -> FileTarget | None:
        """How executors write files of a table; None where only Spark can."""
        properties = self._tables.properties(table)
        folder = str(table.locationProvider().newDataLocation(""))
        days = _day_partition(table)
        codec = codec_of(properties)
        if days is None or codec is None or not can_write(folder, self._store):
            return None
        day_of, partition = days
        schema = json.loads(self._schema_to_json(table.schema()))
        return FileTarget(
            schema=arrow_schema(schema),
            folder=folder if folder.endswith("/") else f"{folder}/",
            store=self._store,
            day_of=day_of,
            partition=partition,
            codec=codec,
        )

    def add(
        self, table: Table, files: Iterable[Written], branch: str = MAIN, *, instead: bool = False
    ) -> None:
        """Add files, on a branch and with the batch's stamp; `instead` of all that is there."""
        if instead:
            change = table.newOverwrite().overwriteByRowFilter(self._everything)
        else:
            change = table.newAppend()
        config = self._metrics_config(table)
        for file in files:
            found = self._data_file(table, file, config)
            change = change.addFile(found) if instead else change.appendFile(found)
        for name, value in self._tables.stamp.items():
            change = change.set(name, value)
        change.toBranch(branch).commit()

    def _data_file(self, table: Table, file: Written, config: Any) -> Any:
        source = table.io().newInputFile(file.path, file.size)
        spec = table.spec()
        builder = self._data_file_builder(spec).withFormat("PARQUET").withPath(file.path)
        builder = builder.withMetrics(self._file_metrics(source, config))
        builder = builder.withFileSizeInBytes(file.size)
        if file.day is not None:
            builder = builder.withPartitionPath(f"{spec.fields()[0].name()}={file.day}")
        return builder.build()

    def forget(self, table: Table, files: Iterable[Written]) -> None:
        """Remove files that will not be added after all; what stays is an orphan, and no more."""
        for file in files:
            try:
                table.io().deleteFile(file.path)
            except Exception as failure:
                warn("a file that is not needed stays", path=file.path, reason=failure)
                return


def _day_partition(table: Table) -> tuple[str | None, str] | None:
    """The column of a partition by day and the partition's name; None for any other partition."""
    spec = table.spec()
    fields = list(spec.fields())
    if not fields:
        return None, ""
    if len(fields) > 1 or str(fields[0].transform()) != "day":
        return None
    return str(table.schema().findColumnName(fields[0].sourceId())), str(fields[0].name())

"""Files that executors wrote, added to their table in one commit, through Iceberg's own API.

Iceberg reads sizes, counts and bounds of every column from the footer of a file, so a file is in
the table as if Spark had written it. Rows are looked at by nobody here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lake_consumer.iceberg.datafiles import FileTarget, Written, arrow_schema, can_write, codec_of
from lake_consumer.iceberg.staging import MAIN
from lake_consumer.iceberg.tables import LakeTables, Table
from lake_consumer.logs import warn
from lake_consumer.stores import ObjectStore


class FileAdder:
    """Says where executors may write, and adds what they wrote."""

    def __init__(self, tables: LakeTables, store: ObjectStore | None = None) -> None:
        self._tables = tables
        self._iceberg = tables.iceberg
        self._store = store

    def target(self, table: Table) -> FileTarget | None:
        """How executors write files of a table; None where only Spark can."""
        properties = self._tables.properties(table)
        folder = str(table.locationProvider().newDataLocation(""))
        days = _day_partition(table)
        codec = codec_of(properties)
        if days is None or codec is None or not can_write(folder, self._store):
            return None
        day_of, partition = days
        schema = json.loads(self._iceberg.SchemaParser.toJson(table.schema()))
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
            everything = self._iceberg.expressions.Expressions.alwaysTrue()
            change = table.newOverwrite().overwriteByRowFilter(everything)
        else:
            change = table.newAppend()
        for file in files:
            found = self._data_file(table, file)
            change = change.addFile(found) if instead else change.appendFile(found)
        for name, value in self._tables.stamp.items():
            change = change.set(name, value)
        change.toBranch(branch).commit()

    def _data_file(self, table: Table, file: Written) -> object:
        source = table.io().newInputFile(file.path, file.size)
        config = self._iceberg.MetricsConfig.forTable(table)
        metrics = self._iceberg.parquet.ParquetUtil.fileMetrics(source, config)
        spec = table.spec()
        builder = self._iceberg.DataFiles.builder(spec).withFormat("PARQUET").withPath(file.path)
        builder = builder.withFileSizeInBytes(file.size).withMetrics(metrics)
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

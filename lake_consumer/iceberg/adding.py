"""Files that executors wrote, added to their table in one commit, through Iceberg's own API.

Iceberg reads sizes, counts and bounds of every column from the footer of a file, so a file is in
the table as if Spark had written it. Rows are looked at by nobody here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
        self._spec_to_json = iceberg.PartitionSpecParser.toJson
        self._everything = iceberg.expressions.Expressions.alwaysTrue()
        self._metrics_config = iceberg.MetricsConfig.forTable
        self._file_metrics = iceberg.parquet.ParquetUtil.fileMetrics
        self._data_file_builder = iceberg.DataFiles.builder

    def target(self, table: Table) -> FileTarget | None:
        """How executors write files of a table; None where only Spark can."""
        properties = self._tables.properties(table)
        folder = str(table.locationProvider().newDataLocation(""))
        schema = self._tables.schema(table)
        days = day_partition(json.loads(self._spec_to_json(table.spec())), schema)
        codec = codec_of(properties)
        if days is None or codec is None or not can_write(folder, self._store):
            return None
        day_of, partition = days
        return FileTarget(
            schema=arrow_schema(schema),
            folder=folder if folder.endswith("/") else f"{folder}/",
            store=self._store,
            day_of=day_of,
            partition=partition,
            codec=codec,
        )

    def add(
        self,
        table: Table,
        files: Iterable[Written],
        branch: str = MAIN,
        *,
        change: Any = None,
        instead: bool = False,
    ) -> None:
        """Add files, on a branch and with the batch's stamp; `instead` of all that is there.

        They are a commit of their own, or a part of the `change` that they are given.
        """
        change = table if change is None else change
        found = self.data_files(table, files)
        if instead:
            adding = change.newOverwrite().overwriteByRowFilter(self._everything)
        else:
            adding = change.newAppend()
        for file in found:
            adding = adding.addFile(file) if instead else adding.appendFile(file)
        for name, value in self._tables.stamp.items():
            adding = adding.set(name, value)
        adding.toBranch(branch).commit()

    def data_files(self, table: Table, files: Iterable[Written]) -> list[Any]:
        """Make Iceberg's own objects of files."""
        config, io, spec = self._metrics_config(table), table.io(), table.spec()
        found = []
        for file in files:
            source = io.newInputFile(file.path, file.size)
            builder = self._data_file_builder(spec).withFormat("PARQUET").withInputFile(source)
            builder = builder.withMetrics(self._file_metrics(source, config))
            if file.day is not None:
                builder = builder.withPartitionPath(f"{spec.fields().get(0).name()}={file.day}")
            found.append(builder.build())
        return found

    def forget(self, table: Table, files: Iterable[Written]) -> None:
        """Remove files that will not be added after all; what stays is an orphan, and no more."""
        for file in files:
            try:
                table.io().deleteFile(file.path)
            except Exception as failure:
                warn("a file that is not needed stays", path=file.path, reason=failure)
                return


def day_partition(
    spec: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[str | None, str] | None:
    """The column of a partition by day and the partition's name; None for any other partition."""
    fields = spec["fields"]
    if not fields:
        return None, ""
    names = {field["id"]: field["name"] for field in schema["fields"]}
    first = fields[0]
    if len(fields) > 1 or first["transform"] != "day" or first["source-id"] not in names:
        return None
    return names[first["source-id"]], first["name"]

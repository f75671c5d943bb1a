"""Iceberg tables through Iceberg's own API in Spark's JVM: make, evolve, and read their position.

SQL cannot name a uuid, cannot give several changes of shape one commit and cannot read a snapshot's
summary without a job; the API can. Everything here is metadata: no row is read or written.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from lake_consumer.columns import Columns, read_doc
from lake_consumer.evolution import AddColumn, DropColumn, RenameColumn, SetAside, Step, WidenColumn
from lake_consumer.formats import DEFAULT_FORMAT, FORMAT_SETTING, FORMATS, format_of
from lake_consumer.iceberg.javas import JavaReader
from lake_consumer.iceberg.names import CATALOG, CUTS, RESYNCS, LakeName, quote, table_of_log
from lake_consumer.iceberg.types import IcebergType, iceberg_type, one_type_schema
from lake_consumer.logs import info
from lake_consumer.order import Reached, Rung, reached_summary, read_reached
from lake_consumer.requests import Identity
from lake_consumer.watermark import EMPTY, Watermark
from schemas.names import TableName

PROPERTIES: Mapping[str, str] = {
    # A batch has few files anyway; a shuffle before the write would cost more than it saves.
    "write.distribution-mode": "none",
    # A MERGE here only deletes: its few positions go to one task per data file, because a file has
    # one deletion vector and a large file is read by several tasks.
    "write.merge.distribution-mode": "hash",
    "write.spark.fanout.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

DEFAULTS_SINCE = 3
"""The format version of Iceberg that knows `initial-default`."""

_STAMP = "spark.sql.iceberg.snapshot-property."

Table = Any
"""A Java `org.apache.iceberg.Table`."""


class RenameImpossible(Exception):
    """The catalog cannot rename tables."""


class LakeTables:
    """The lake's catalog."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.consumer = secrets.token_hex(4)
        """Tells this consumer's branches from those of any other."""
        self._making_namespace = threading.Lock()
        self._format = str(spark.conf.get(FORMAT_SETTING, DEFAULT_FORMAT))
        self._has_levels = spark.conf.get(f"spark.sql.catalog.{CATALOG}.type", None) == "jdbc"
        self._told: set[LakeName] = set()
        self.moved_from: frozenset[LakeName] = frozenset()
        """Names that a table had which has another one now."""
        gateway: Any = spark.sparkContext._gateway
        self._gateway = gateway
        self._jvm = gateway.jvm
        self.iceberg = self._iceberg = self._jvm.org.apache.iceberg
        self.java = JavaReader(self._iceberg)
        self.stamp: Mapping[str, str] = {}
        # Found once: every look-up of a class by its name asks Java's class loaders several times.
        self._namespace = self._iceberg.catalog.Namespace.of
        self._table_identifier = self._iceberg.catalog.TableIdentifier.of
        self._schema_to_json = self._iceberg.SchemaParser.toJson
        self._catalog = self._iceberg.spark.Spark3Util.loadIcebergCatalog(
            spark._jsparkSession, CATALOG
        )

    def set_stamp(self, mark: Watermark, reached: Reached) -> None:
        """Let every commit from now on say how far in the stream it is, Spark's own as well."""
        # Session-wide, and so the same for every table of the batch, which is what is meant.
        self.stamp = {**mark.to_summary(), **reached_summary(reached)}
        for name, value in self.stamp.items():
            self._spark.conf.set(_STAMP + name, value)

    def exists(self, name: LakeName) -> bool:
        return bool(self._catalog.tableExists(self._identifier(name)))

    def load(self, name: LakeName) -> Table:
        table = self._catalog.loadTable(self._identifier(name))
        self._tell_format(name, table)
        return table

    def _tell_format(self, name: LakeName, table: Table) -> None:
        """Say once where a table was made with another format than is asked for now."""
        if name in self._told:
            return
        self._told.add(name)
        found = format_of(table.operations().current().formatVersion(), self.properties(table))
        if found != self._format:
            info("the table keeps the format it has", table=name, has=found, asked=self._format)

    def create(
        self,
        name: LakeName,
        schema: dict[str, Any],
        *,
        day_of: str | None = None,
        properties: Mapping[str, str] = {},
    ) -> Table:
        # "If not exists" is two steps in a JDBC catalog, and tables are made side by side.
        with self._making_namespace:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quote(name.namespace)}")
        read = self._iceberg.SchemaParser.fromJson(json.dumps(schema))
        spec = self._iceberg.PartitionSpec.builderFor(read)
        if day_of is not None:
            spec = spec.day(day_of)
        settings = self._jvm.java.util.HashMap()
        for key, value in {**PROPERTIES, **FORMATS[self._format], **properties}.items():
            settings.put(key, value)
        if name not in self.moved_from:
            return self._catalog.createTable(self._identifier(name), read, spec.build(), settings)
        # A table that had this name keeps its files in the folder of the name, and removing orphans
        # of this one must not find them: it is created in another folder.
        made = LakeName(name.namespace, f"{name.name}__{secrets.token_hex(4)}")
        self._catalog.createTable(self._identifier(made), read, spec.build(), settings)
        self.rename(made, name)
        return self._catalog.loadTable(self._identifier(name))

    def rename(self, before: LakeName, after: LakeName) -> None:
        """Give a table another name; its files stay where they are."""
        with self._making_namespace:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quote(after.namespace)}")
        try:
            self._catalog.renameTable(self._identifier(before), self._identifier(after))
        except Py4JJavaError as error:
            if "UnsupportedOperationException" in str(error.java_exception):
                raise RenameImpossible(str(error.java_exception)) from error
            raise

    def drop(self, name: LakeName) -> None:
        """Drop a table with its data and metadata, if it is there."""
        self._catalog.dropTable(self._identifier(name), True)

    def add_fields(self, table: Table, schema: Mapping[str, Any]) -> None:
        """Add top-level fields that a table of an earlier version does not have."""
        held = {field["name"] for field in self.schema(table)["fields"]}
        missing = [field for field in schema["fields"] if field["name"] not in held]
        if not missing:
            return
        update = table.updateSchema()
        for field in missing:
            update.addColumn(field["name"], self._type(field["type"]), field["doc"])
        update.commit()

    def names(self) -> list[LakeName]:
        """All tables of the lake."""
        return [
            LakeName(str(space), identifier.name())
            for space in self._namespaces(self._catalog.listNamespaces())
            for identifier in self.java.list(self._catalog.listTables(space))
        ]

    def _namespaces(self, listed: Any) -> Iterator[Any]:
        """These and all below; a schema with dots is several levels in a JDBC catalog."""
        for space in self.java.list(listed):
            yield space
            if self._has_levels:
                yield from self._namespaces(self._catalog.listNamespaces(space))

    def identities(self) -> dict[TableName, Identity]:
        """Who every table of the lake is, by its change log."""
        logs = {table: self.load(name) for name in self.names() if (table := table_of_log(name))}
        return {table: Identity.of(log.uuid(), self.properties(log)) for table, log in logs.items()}

    def wishes(self) -> dict[str, str]:
        """What `resync` and `forget` have left to be done."""
        return self.properties(self.load(RESYNCS)) if self.exists(RESYNCS) else {}

    def wishes_done(self, keys: Iterable[str]) -> None:
        self.set_properties(self.load(RESYNCS), {}, without=keys)

    def watermark(self, table: Table) -> Watermark:
        """The newest stamp in the table's history; snapshots of others are looked through."""
        snapshot = table.currentSnapshot()
        while snapshot is not None:
            found = Watermark.from_summary(self.java.map(snapshot.summary()))
            if found is not None:
                return found
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return EMPTY

    def reached(self) -> dict[str, Rung]:
        """The position that each source has reached, by the newest cut that says so."""
        if not self.exists(CUTS):
            return {}
        table = self.load(CUTS)
        snapshot = table.currentSnapshot()
        while snapshot is not None:
            found = read_reached(self.java.map(snapshot.summary()))
            if found is not None:
                return found
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return {}

    def columns(self, table: Table, parent: str | None = None) -> Columns:
        """The columns we made, of the table or of one of its struct columns."""
        struct = self.schema(table)
        if parent is not None:
            struct = next(field["type"] for field in struct["fields"] if field["name"] == parent)
        found = [read_doc(field["name"], field.get("doc")) for field in struct["fields"]]
        return tuple(column for column in found if column is not None)

    def schema(self, table: Table) -> dict[str, Any]:
        """Iceberg's own JSON of a table's schema."""
        schema: dict[str, Any] = json.loads(self._schema_to_json(table.schema()))
        return schema

    def has_defaults(self, name: LakeName) -> bool:
        """Whether a table's format knows columns with an `initial-default`."""
        if not self.exists(name):
            return True
        return int(self.load(name).operations().current().formatVersion()) >= DEFAULTS_SINCE

    def properties(self, table: Table) -> dict[str, str]:
        return self.java.map(table.properties())

    def commit_schema(self, table: Table) -> bool:
        """Commit an empty snapshot if the newest one is of an older schema; False if it is not.

        Who reads a snapshot by its id sees the columns that the table had when it was committed.
        """
        snapshot = table.currentSnapshot()
        if snapshot is None or snapshot.schemaId() == table.schema().schemaId():
            return False
        append = table.newFastAppend()
        for key, value in self.stamp.items():
            append.set(key, value)
        append.commit()
        return True

    def set_properties(
        self, table: Table, properties: Mapping[str, str], *, without: Iterable[str] = ()
    ) -> None:
        settings = table.updateProperties()
        for key, value in properties.items():
            settings.set(key, value)
        for key in without:
            settings.remove(key)
        settings.commit()

    def evolve(
        self,
        table: Table,
        steps: list[Step],
        parents: tuple[str | None, ...],
        properties: Mapping[str, str],
    ) -> None:
        """Take all steps, in each of the parent structs, and set properties: one commit."""
        transaction = table.newTransaction()
        for step in steps:
            update = transaction.updateSchema()
            for parent in parents:
                self._take(update, step, parent)
            update.commit()
        settings = transaction.updateProperties()
        for key, value in properties.items():
            settings.set(key, value)
        settings.commit()
        transaction.commitTransaction()

    def _take(self, update: Any, step: Step, parent: str | None) -> None:
        prefix = "" if parent is None else f"{parent}."
        match step:
            case AddColumn(column, None):
                made = self._type(iceberg_type(column.type))
                update.addColumn(parent, column.name, made, column.doc)
            case AddColumn(column, default):
                made = self._field(iceberg_type(column.type), default)
                literal = made.initialDefaultLiteral()
                update.addColumn(parent, column.name, made.type(), column.doc, literal)
            case DropColumn(column):
                update.deleteColumn(prefix + column.name)
            case RenameColumn(before, after):
                update.renameColumn(prefix + before, after)
            case SetAside(before, after):
                if before.name != after.name:
                    update.renameColumn(prefix + before.name, after.name)
                update.updateColumnDoc(prefix + before.name, after.doc)
            case WidenColumn(column):
                if column.type.element is None:
                    update.updateColumn(prefix + column.name, self._type(iceberg_type(column.type)))
                update.updateColumnDoc(prefix + column.name, column.doc)

    def _type(self, type: IcebergType) -> Any:
        return self._field(type).type()

    def _field(self, type: IcebergType, default: Any = None) -> Any:
        text = json.dumps(one_type_schema(type, default))
        return self._iceberg.SchemaParser.fromJson(text).findField("x")

    def _identifier(self, name: LakeName) -> Any:
        levels = self._gateway.new_array(self._jvm.java.lang.String, 1)
        levels[0] = name.namespace
        return self._table_identifier(self._namespace(levels), name.name)

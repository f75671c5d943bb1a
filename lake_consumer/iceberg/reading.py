"""The lake through pyiceberg: no Spark, no Java, and no table of data is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, StringType
from sqlalchemy import inspect

from lake_consumer.catalogs import CatalogUri
from lake_consumer.cuts import CutBook, CutRow, TableNames
from lake_consumer.ddl_plan import read_former
from lake_consumer.errors import CatalogLocked, NoLake, NoLakeYet
from lake_consumer.forks import read_forks
from lake_consumer.iceberg.names import (
    CATALOG,
    CUTS,
    RESYNCS,
    VERIFICATIONS,
    LakeName,
    log_of,
    mirror_of,
    table_of,
    table_of_log,
    table_of_mirror,
)
from lake_consumer.requests import Identity, Request
from lake_consumer.tablestates import GONE, LIVE, StateKind, TableState, describe_state
from lake_consumer.verifications import Verification, read_verifications
from lake_consumer.watermark import EMPTY, Watermark
from schemas.names import TableName
from schemas.positions import Lsn

ATTEMPTS = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Where one table stands."""

    name: str
    rows: int
    snapshots: int
    watermark: Watermark
    data_files: int = 0
    deleted_rows: int = 0
    """Rows that are still in data files and that readers skip."""

    table: str = ""
    """The PostgreSQL table, if this is its change log."""
    kind: StateKind = "live"
    verified: Verification | None = None
    state: str = "following"
    note: str = ""
    """Why the table's mirror cannot be read, or what its change log lacks."""


def open_catalog(uri: CatalogUri, warehouse: str) -> Catalog:
    """Open the catalog as it is: whoever reads a lake that is just being made must not make it too.

    Of two that make the tables of a catalog at the same moment, one fails.
    """
    options = {"init_catalog_tables": "false", **uri.pyiceberg()}
    return load_catalog(CATALOG, **options, warehouse=warehouse)


class LakeReader:
    """The lake's catalog, its tables and its cuts; whatever is not there is said in a sentence."""

    def __init__(self, uri: CatalogUri, warehouse: str) -> None:
        if (file := uri.sqlite_file) is not None and not file.exists():
            raise NoLakeYet(f"there is no lake yet: no catalog at {file}")
        self._uri = uri
        with self._clear_errors():
            self._catalog = open_catalog(uri, warehouse)
            is_made = _is_made(self._catalog)
        if not is_made:
            self.close()
            raise NoLakeYet(f"there is no lake yet: the catalog {uri.shown} is empty")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the catalog's connections; a process that follows for weeks opens many."""
        self._catalog.close()

    def names(self) -> list[LakeName]:
        """All tables of the lake, in order."""
        with self._clear_errors():
            names = [name for at in self._namespaces() for name in self._catalog.list_tables(at)]
        return sorted(LakeName(".".join(name[:-1]), name[-1]) for name in names)

    def _namespaces(self, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """All namespaces; a PostgreSQL schema with dots is several levels in a SQL catalog."""
        for found in self._catalog.list_namespaces(parent):
            yield found
            if isinstance(self._catalog, SqlCatalog):
                yield from self._namespaces(found)

    def load(self, name: LakeName) -> Table:
        with self._clear_errors():
            return self._catalog.load_table((name.namespace, name.name))

    def set_properties(self, name: LakeName, properties: dict[str, str]) -> None:
        """Set properties of a table, made without columns or rows of a meaning where missing.

        In format 2: what pyiceberg 0.12 can write. Somebody may commit at the same moment.
        """
        kind = Schema(NestedField(1, "nothing", StringType(), required=False))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._clear_errors():
                    table = self._catalog.create_table_if_not_exists(
                        (name.namespace, name.name), kind, properties={"format-version": "2"}
                    )
                    table.transaction().set_properties(properties).commit_transaction()
                return
            except NoLake as error:
                if attempt == ATTEMPTS or not isinstance(error.__cause__, CommitFailedException):
                    raise
                time.sleep(0.1 * attempt)

    def request(
        self, prefix: str, tables: Iterable[TableName], *, purge: bool = False, force: bool = False
    ) -> None:
        """Leave a request for each of these tables, as who they are now."""
        properties: dict[str, str] = {}
        for table in tables:
            log = self.load(log_of(table))
            identity = Identity.of(log.metadata.table_uuid, log.properties)
            request = Request(table=table, identity=identity, purge=purge, force=force)
            properties |= request.to_property(prefix)
        self.set_properties(RESYNCS, properties)

    def cuts(self) -> CutBook:
        if CUTS not in self.names():
            return CutBook([])
        rows = self.read(lambda: self.load(CUTS).scan().to_arrow().to_pylist())
        forks = read_forks(self.load(CUTS).properties)
        return CutBook((CutRow(table=row.pop("table_name"), **row) for row in rows), forks)

    def table_names(self) -> TableNames:
        """The names that tables had before they were renamed."""
        if CUTS not in self.names():
            return TableNames([])
        return TableNames(read_former(self.load(CUTS).properties))

    def states(self) -> dict[TableName, TableState]:
        """The state of every table, as its change log says."""
        found = {name: table_of_log(name) for name in self.names()}
        return {
            table: TableState.from_properties(self.load(name).properties)
            for name, table in found.items()
            if table is not None
        }

    def read(self, read: Callable[[], T]) -> T:
        """Read, again if maintenance removed what the metadata that was just loaded names."""
        for _ in range(ATTEMPTS - 1):
            try:
                return read()
            except FileNotFoundError:
                time.sleep(0.1)
        return read()

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if "database is locked" in str(error):
                raise CatalogLocked(
                    f"another process holds the catalog {self._uri.shown}"
                ) from error
            raise NoLake(f"the catalog {self._uri.shown} cannot be read: {error}") from error


def _is_made(catalog: Catalog) -> bool:
    """Whether a catalog in a database has the tables it is kept in."""
    if not isinstance(catalog, SqlCatalog):
        return True
    kept_in = (IcebergTables, IcebergNamespaceProperties)
    held = inspect(catalog.engine).get_table_names()
    return all(table.__tablename__ in held for table in kept_in)


def read_statuses(uri: CatalogUri, warehouse: str) -> list[TableStatus]:
    """Say where every table stands; there are none before a consumer made the lake."""
    try:
        lake = LakeReader(uri, warehouse)
    except NoLakeYet:
        return []
    with lake:
        names = lake.names()
        unreadable = lake.cuts().unreadable()
        tables = {name: lake.load(name) for name in names}
        statuses = {name: _status(str(name), table) for name, table in tables.items()}
        kept = tables[VERIFICATIONS].properties if VERIFICATIONS in tables else {}
        verified = read_verifications(kept)
    states = {
        table: TableState.from_properties(tables[name].properties)
        for name in names
        if (table := table_of_log(name)) is not None
    }
    return [
        replace(
            status,
            state=_state(name, held, names, unreadable),
            kind=held.kind,
            table="" if (table := table_of_log(name)) is None else str(table),
            verified=None if (own := table_of_mirror(name)) is None else verified.get(own),
        )
        for name, status in statuses.items()
        if not (held := _held(name, states)).is_forgotten
    ]


def _held(name: LakeName, states: Mapping[TableName, TableState]) -> TableState:
    """The state of the table that a mirror or a change log is of."""
    table = table_of(name)
    return LIVE if table is None else states.get(table, LIVE)


def _state(
    name: LakeName,
    held: TableState,
    names: Collection[LakeName],
    unreadable: Collection[str],
) -> str:
    """What `status` says of a table beyond its numbers."""
    if held.is_gone:
        return f"{GONE} {Lsn(held.lsn)}"
    if (logged := table_of_log(name)) is not None:
        is_followed = mirror_of(logged) in names or not held.is_live
        return "following" if is_followed else "log only: the table has no key"
    return "not readable: being rebuilt" if str(table_of(name)) in unreadable else "following"


def _status(name: str, table: Table) -> TableStatus:
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    return TableStatus(
        name,
        rows_of(table),
        len(table.metadata.snapshots),
        watermark_of(table),
        data_files=int((summary and summary.get("total-data-files")) or 0),
        deleted_rows=int((summary and summary.get("total-position-deletes")) or 0),
        note=describe_state(table.properties),
    )


def rows_of(table: Table, snapshot_id: int | None = None) -> int:
    """Rows of a snapshot, by default the current one, from its summary alone."""
    snapshot = (
        table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    )
    if snapshot is None or snapshot.summary is None:
        return 0
    records = snapshot.summary.get("total-records") or "0"
    deleted = snapshot.summary.get("total-position-deletes") or "0"
    return int(records) - int(deleted)


def watermark_of(table: Table) -> Watermark:
    """The newest stamp in the table's history, as in `tables`."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary
        found = Watermark.from_summary(summary.additional_properties if summary else {})
        if found is not None:
            return found
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return EMPTY

"""The lake through pyiceberg: no Spark, no Java, and nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from lake_consumer.catalogs import CatalogUri
from lake_consumer.errors import LakeError
from lake_consumer.iceberg.names import CATALOG
from lake_consumer.watermark import EMPTY, Watermark


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Where one table stands."""

    name: str
    rows: int
    snapshots: int
    watermark: Watermark


def open_catalog(uri: CatalogUri, warehouse: str) -> Catalog:
    return load_catalog(CATALOG, **uri.pyiceberg(), warehouse=warehouse)


def read_statuses(uri: CatalogUri, warehouse: str) -> list[TableStatus]:
    if (file := uri.sqlite_file) is not None and not file.exists():
        return []
    try:
        catalog = open_catalog(uri, warehouse)
        names = [name for space in catalog.list_namespaces() for name in catalog.list_tables(space)]
        return [_status(".".join(name), catalog.load_table(name)) for name in sorted(names)]
    except Exception as error:
        raise LakeError(
            f"the catalog {uri.uri} cannot be read: {error}",
            advice="Check LAKE_WAREHOUSE and LAKE_CATALOG_URI.",
        ) from error


def _status(name: str, table: Table) -> TableStatus:
    return TableStatus(name, _rows(table), len(table.metadata.snapshots), watermark_of(table))


def _rows(table: Table) -> int:
    """Rows of the current snapshot, from its summary alone."""
    snapshot = table.current_snapshot()
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

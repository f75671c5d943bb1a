"""Reading the lake leaves nothing open behind it."""

from __future__ import annotations

from pathlib import Path

import psutil

from lake_consumer.catalogs import CatalogUri
from lake_consumer.iceberg.names import LakeName
from lake_consumer.iceberg.reading import LakeReader, open_catalog, read_statuses


def test_status_asked_for_again_and_again_keeps_no_catalog_open(tmp_path: Path) -> None:
    """`run` asks for it at every scrape of its metrics, for weeks."""
    uri, warehouse = CatalogUri(f"sqlite:///{tmp_path}/catalog.db"), f"file://{tmp_path}"
    catalog = open_catalog(uri, warehouse)
    catalog.create_namespace("public")
    catalog.close()
    with LakeReader(uri, warehouse) as lake:
        lake.set_properties(LakeName("public", "docs"), {"a": "b"})

    found = [[status.name for status in read_statuses(uri, warehouse)] for _ in range(3)]

    assert found == [["public.docs"]] * 3
    open_files = [Path(file.path) for file in psutil.Process().open_files()]
    assert not [file for file in open_files if file.name == "catalog.db"]

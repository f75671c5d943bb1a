"""Reading the lake makes nothing, and leaves nothing open behind it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from pyiceberg.catalog import load_catalog

from lake_consumer import catalogs
from lake_consumer.catalogs import CatalogUri
from lake_consumer.errors import CatalogLocked, NoLake, NoLakeYet
from lake_consumer.iceberg.names import CATALOG, LakeName
from lake_consumer.iceberg.reading import LakeReader, read_statuses


def test_status_asked_for_again_and_again_keeps_no_catalog_open(tmp_path: Path) -> None:
    """`run` asks for it at every scrape of its metrics, for weeks."""
    uri, warehouse = CatalogUri(f"sqlite:///{tmp_path}/catalog.db"), f"file://{tmp_path}"
    catalog = load_catalog(CATALOG, **uri.pyiceberg(), warehouse=warehouse)
    catalog.create_namespace("public")
    catalog.close()
    with LakeReader(uri, warehouse) as lake:
        lake.set_properties(LakeName("public", "docs"), {"a": "b"})

    found = [[status.name for status in read_statuses(uri, warehouse)] for _ in range(3)]

    assert found == [["public.docs"]] * 3
    open_files = [Path(file.path) for file in psutil.Process().open_files()]
    assert not [file for file in open_files if file.is_relative_to(tmp_path)]


@pytest.mark.parametrize("made", [(), ("iceberg_tables",)])
def test_a_catalog_that_is_just_being_made_is_left_to_whoever_makes_it(
    tmp_path: Path, made: tuple[str, ...]
) -> None:
    """Spark makes its tables one after the other; a reader that made one too would fail either."""
    file = tmp_path / "catalog.db"
    uri, warehouse = CatalogUri(f"sqlite:///{file}"), f"file://{tmp_path}"
    with closing(sqlite3.connect(file)) as connection:
        for table in made:
            connection.execute(f"CREATE TABLE {table} (catalog_name TEXT)")

        assert read_statuses(uri, warehouse) == []
        with pytest.raises(NoLakeYet, match="no lake yet"):
            LakeReader(uri, warehouse)

        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert [name for (name,) in found] == list(made)


def test_a_catalog_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """`status` would say that nothing was applied so far."""
    file = tmp_path / "catalog.db"
    file.write_text("this is not a database, and longer than the header of one " * 10)

    with pytest.raises(NoLake, match="cannot be read") as raised:
        read_statuses(CatalogUri(f"sqlite:///{file}"), f"file://{tmp_path}")

    assert not isinstance(raised.value, NoLakeYet)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CatalogUri, str]:
    """A lake with one table; nobody waits long for its catalog."""
    monkeypatch.setattr(catalogs, "_BUSY_SECONDS", 0.05)
    uri, warehouse = CatalogUri(f"sqlite:///{tmp_path}/catalog.db"), f"file://{tmp_path}"
    catalog = load_catalog(CATALOG, **uri.pyiceberg(), warehouse=warehouse)
    for namespace in ("_bridge", "public", "a.b"):
        catalog.create_namespace((namespace,))
    catalog.close()
    with LakeReader(uri, warehouse) as lake:
        lake.set_properties(LakeName("public", "t"), {})
    return uri, warehouse


def test_a_catalog_that_another_process_holds_is_said_to_be_locked(
    made: tuple[CatalogUri, str],
) -> None:
    """After a wait, for readers as for who leaves a request."""
    uri, warehouse = made
    with LakeReader(uri, warehouse) as lake, closing(sqlite3.connect(str(uri.sqlite_file))) as held:
        held.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogLocked, match="another process holds the catalog"):
            lake.names()
        with pytest.raises(CatalogLocked):
            lake.load(LakeName("public", "t"))
        with pytest.raises(CatalogLocked):
            lake.set_properties(LakeName("public", "t"), {"a": "b"})
        with pytest.raises(CatalogLocked):
            LakeReader(uri, warehouse)
        held.rollback()

        assert lake.names() == [LakeName("public", "t")]


def test_a_schema_with_dots_is_one_name(made: tuple[CatalogUri, str]) -> None:
    with LakeReader(*made) as lake:
        lake.set_properties(LakeName("a.b", "c"), {"x": "y"})

        assert LakeName("a.b", "c") in lake.names()
        assert lake.load(LakeName("a.b", "c")).properties["x"] == "y"


def test_metadata_that_maintenance_removed_meanwhile_is_read_again(
    made: tuple[CatalogUri, str],
) -> None:
    """What was loaded a moment ago names manifests that are expired now."""
    tries: list[int] = []

    def read() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise FileNotFoundError("Cannot open file, does not exist: snap-1.avro")
        return "rows"

    with LakeReader(*made) as lake:
        assert lake.read(read) == "rows"

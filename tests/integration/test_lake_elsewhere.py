"""Other catalogs, other stores, other formats: chosen by configuration alone."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat
from pyspark.sql import SparkSession

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.cli import main
from lake_consumer.config import read_config
from lake_consumer.formats import FORMAT_SETTING
from lake_consumer.iceberg.reading import open_catalog
from lake_consumer.session import SessionOptions, catalog_settings
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape
from tests.support.objectstore import BUCKET, S3Server, s3_server
from tests.support.restcatalog import TOKEN, rest_catalog

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
PASSWORD = "p@ss/word:of the catalog"
ROLE = "lake_catalog"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def postgres_catalog(postgres: EmbeddedPostgres, database: str) -> Iterator[dict[str, str]]:
    """A database that one role owns, whose password is full of traps."""
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f'ALTER DATABASE "{database}" OWNER TO {ROLE}')
        yield {
            "LAKE_CATALOG_URI": f"postgresql://127.0.0.1:{postgres.port}/{database}",
            "LAKE_CATALOG_USER": ROLE,
            "LAKE_CATALOG_PASSWORD": PASSWORD,
        }
        connection.execute(f"REASSIGN OWNED BY {ROLE} TO CURRENT_USER")
        connection.execute(f"DROP OWNED BY {ROLE}")
        connection.execute(f'ALTER DATABASE "{database}" OWNER TO CURRENT_USER')
        connection.execute(f"DROP ROLE {ROLE}")


@dataclass(frozen=True, slots=True)
class Lakes:
    """Makes lakes on the run's Spark, wherever the environment says they are."""

    spark: SparkSession
    folder: Path

    def at(self, environ: Mapping[str, str]) -> LakeRig:
        config = read_config({}, environ, {})
        rig = LakeRig(self.spark, self.folder, config.nats.url)
        rig.warehouse, rig.catalog = config.warehouse, config.catalog
        options = SessionOptions(master="", warehouse=config.warehouse, catalog=config.catalog)
        for key, value in catalog_settings(options).items():
            rig.spark.conf.set(key, value)
        rig.spark.conf.set(FORMAT_SETTING, config.table_format)
        return rig


@pytest.fixture
def lakes(spark: SparkSession, tmp_path: Path) -> Iterator[Lakes]:
    yield Lakes(spark, tmp_path)
    # Catalogs leave their connections to the garbage collector, which must find them here.
    gc.collect()


def tell_a_story(stream: HandMadeStream) -> list[dict[str, object]]:
    """Two transactions, so that rows are there to be changed; gives the rows that are left."""
    shape = make_shape("users", {"id": "int64", "name": "text"})
    inserts = [change("users", "INSERT", {"id": at, "name": f"n{at}"}) for at in range(10)]
    stream.commit(announce(shape, 1), *inserts)
    stream.commit(
        change("users", "UPDATE", {"id": 1, "name": "changed"}),
        change("users", "DELETE", {"id": 2, "name": None}),
    )
    stream.send()
    names = {at: f"n{at}" for at in range(10) if at != 2} | {1: "changed"}
    return [{"id": at, "name": name} for at, name in sorted(names.items())]


def assert_read_by_commands(
    environ: Mapping[str, str],
    expected: list[dict[str, object]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status, query and cuts see the same lake, without Spark."""
    capsys.readouterr()

    assert main(["query", "--json", "SELECT id, name FROM users ORDER BY id"], environ) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == expected

    assert main(["status"], environ) == 0
    shown = capsys.readouterr().out
    assert "public.users " in shown
    assert "the lake is 0 messages behind" in shown

    assert main(["cuts", "--json"], environ) == 0
    assert [json.loads(line)["tables"] for line in capsys.readouterr().out.splitlines()] == [
        ["public.users"],
        ["public.users"],
    ]


def files_of(rig: LakeRig, name: str) -> list[tuple[DataFileContent, FileFormat]]:
    table = open_catalog(rig.catalog, rig.warehouse).load_table(name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [
        (entry.data_file.content, entry.data_file.file_format)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


def test_tables_in_s3_and_a_catalog_in_postgresql(
    lakes: Lakes,
    nats: EmbeddedNats,
    s3: S3Server,
    postgres_catalog: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No local file is any part of the lake."""
    environ = {"NATS_URL": nats.url, **s3.env(), **postgres_catalog}
    expected = tell_a_story(HandMadeStream(nats.url))
    rig = lakes.at(environ)

    rig.drain(max_messages=11)

    assert [{k: row[k] for k in ("id", "name")} for row in rig.mirror("users")] == expected
    assert any(name.startswith("tables/public/users/data/") for name in s3.names())
    assert list(lakes.folder.iterdir()) == []
    assert_read_by_commands(environ, expected, capsys)


def test_a_rest_catalog(
    lakes: Lakes,
    nats: EmbeddedNats,
    s3: S3Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says where tables lie; we bring the token, and the key to the store."""
    store = read_config({}, {**s3.env(), "LAKE_CATALOG_URI": "http://x"}, {}).catalog.store
    assert store is not None
    expected = tell_a_story(HandMadeStream(nats.url))
    with rest_catalog(lakes.folder, f"s3://{BUCKET}/served", **store.pyiceberg()) as url:
        # Behind this server is pyiceberg, which does not write metadata of v3.
        own = {"LAKE_CATALOG_URI": url, "LAKE_CATALOG_TOKEN": TOKEN, "LAKE_FORMAT": "v2-cow"}
        environ = {"NATS_URL": nats.url, **s3.env(), **own}
        del environ["LAKE_WAREHOUSE"]
        rig = lakes.at(environ)

        rig.drain(max_messages=11)

        assert_read_by_commands(environ, expected, capsys)
        assert any(name.startswith("served/public/users/data/") for name in s3.names())
        assert main(["status"], {**environ, "LAKE_CATALOG_TOKEN": "wrong"}) == 1
        assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("format", "version", "deletes"),
    [("v3-mor", 3, {FileFormat.PUFFIN}), ("v2-cow", 2, set())],
)
def test_each_format_ends_equal_and_is_written_as_its_name_says(
    lakes: Lakes,
    nats: EmbeddedNats,
    format: str,
    version: int,
    deletes: set[FileFormat],
) -> None:
    """Deletion vectors are v3's; a reader of v2 copy-on-write need not know of any delete file."""
    environ = {"NATS_URL": nats.url, "LAKE_WAREHOUSE": str(lakes.folder), "LAKE_FORMAT": format}
    expected = tell_a_story(HandMadeStream(nats.url))
    rig = lakes.at(environ)

    rig.drain(max_messages=11)

    table = open_catalog(rig.catalog, rig.warehouse).load_table("public.users")
    rows = table.scan(selected_fields=("id", "name")).to_arrow().sort_by("id").to_pylist()
    found = files_of(rig, "public.users")
    assert rows == expected
    assert [{k: row[k] for k in ("id", "name")} for row in rig.mirror("users")] == expected
    assert table.metadata.format_version == version
    assert {kind for content, kind in found if content != DataFileContent.DATA} == deletes


def test_a_table_that_is_there_keeps_its_format(
    lakes: Lakes, nats: EmbeddedNats, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another setting must not rewrite a lake behind its readers' backs; it is said, though."""
    environ = {"NATS_URL": nats.url, "LAKE_WAREHOUSE": str(lakes.folder)}
    stream = HandMadeStream(nats.url)
    tell_a_story(stream)
    lakes.at({**environ, "LAKE_FORMAT": "v2-cow"}).drain()
    stream.commit(change("users", "DELETE", {"id": 3, "name": None}))
    stream.send()
    capsys.readouterr()

    rig = lakes.at(environ)
    rig.drain()

    assert {content for content, _ in files_of(rig, "public.users")} == {DataFileContent.DATA}
    said = capsys.readouterr().out
    assert 'msg="the table keeps the format it has" table=public.users' in said
    assert "has=v2-cow asked=v3-mor" in said

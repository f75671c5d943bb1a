from __future__ import annotations

from pathlib import Path

import pytest

from lake_consumer import jars
from lake_consumer.config import read_config
from lake_consumer.session import (
    SessionOptions,
    catalog_settings,
    is_local,
    secrets_of,
    session_settings,
)


def options(environ: dict[str, str], extra: dict[str, str] | None = None) -> SessionOptions:
    config = read_config({}, environ, {})
    return SessionOptions(
        master="local[*]",
        warehouse=config.warehouse,
        catalog=config.catalog,
        format=config.table_format,
        extra=extra or {},
    )


S3 = {
    "LAKE_WAREHOUSE": "s3://bucket/lake",
    "LAKE_S3_ENDPOINT": "http://minio:9000",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "s3cret-1",
    "AWS_SESSION_TOKEN": "s3cret-2",
}


def test_no_secret_is_a_setting_of_the_start() -> None:
    """pyspark starts Java with all of these on its command line, for everybody to see."""
    chosen = options({
        **S3,
        "LAKE_CATALOG_URI": "postgresql://me:s3cret-3@db/lake",
        "LAKE_CATALOG_PROPERTIES": "header.X-Any=s3cret-4",
    })  # fmt: skip

    settings = session_settings(chosen, Path("/log4j"))

    assert "s3cret" not in str(settings)
    assert "s3cret" not in repr(chosen)
    told = "".join(secrets_of(chosen).values())
    assert [n for n in range(1, 5) if f"s3cret-{n}" not in told] == []
    assert {**settings, **secrets_of(chosen)}.items() >= catalog_settings(chosen).items()


@pytest.mark.parametrize(
    ("environ", "needed"),
    [
        ({"LAKE_WAREHOUSE": "/lake"}, [jars.ICEBERG, jars.SQLITE]),
        ({**S3, "LAKE_CATALOG_URI": "postgresql://db/lake"},
         [jars.ICEBERG, jars.POSTGRES, jars.ICEBERG_AWS]),
        ({**S3, "LAKE_CATALOG_URI": "https://catalog"}, [jars.ICEBERG, jars.ICEBERG_AWS]),
        ({"LAKE_CATALOG_URI": "https://catalog"}, [jars.ICEBERG]),
        ({"LAKE_CATALOG_URI": "https://catalog",
          "LAKE_CATALOG_PROPERTIES": "io-impl=org.apache.iceberg.aws.s3.S3FileIO"},
         [jars.ICEBERG, jars.ICEBERG_AWS]),
        ({"LAKE_CATALOG_URI": "glue:", "LAKE_WAREHOUSE": "s3://b/l"},
         [jars.ICEBERG, jars.ICEBERG_AWS]),
        ({"LAKE_CATALOG_URI": "thrift://hive:9083", "LAKE_WAREHOUSE": "hdfs://n/l"},
         [jars.ICEBERG]),
    ],
)  # fmt: skip
def test_only_jars_that_are_needed_are_loaded(environ: dict[str, str], needed: list[str]) -> None:
    """A laptop should not download what S3 needs."""
    assert list(options(environ).packages) == needed


def test_packages_of_the_user_come_on_top() -> None:
    """Another store's jar must not replace Iceberg's."""
    chosen = options({"LAKE_WAREHOUSE": "/lake"}, {"spark.jars.packages": "a:b:1"})

    settings = session_settings(chosen, Path("/log4j"))

    assert settings["spark.jars.packages"] == f"{jars.ICEBERG},{jars.SQLITE},a:b:1"


@pytest.mark.parametrize(
    "place",
    [
        "ivy/jars/org.xerial_sqlite-jdbc-3.53.4.0.jar",
        "ivy/cache/org.xerial/sqlite-jdbc/jars/sqlite-jdbc-3.53.4.0.jar",
        "ivy/local/org.xerial/sqlite-jdbc/3.53.4.0/jars/sqlite-jdbc.jar",
        "maven/org/xerial/sqlite-jdbc/3.53.4.0/sqlite-jdbc-3.53.4.0.jar",
    ],
)
def test_what_is_there_is_not_announced_as_a_download(tmp_path: Path, place: str) -> None:
    """Spark looks into all of these before it downloads."""
    folders = jars.Folders(tmp_path / "ivy", tmp_path / "maven")
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).touch()

    assert jars.missing((jars.ICEBERG, jars.SQLITE), folders) == (jars.ICEBERG,)


def test_the_folder_of_spark_jars_ivy_is_looked_into() -> None:
    """A machine that keeps its jars elsewhere downloads nothing either."""
    assert jars.Folders.of("/opt/ivy").jars == Path("/opt/ivy/jars")
    assert jars.Folders.of(None).jars == Path.home() / ".ivy2.5.2" / "jars"


@pytest.mark.parametrize(
    ("master", "local"), [("local[*]", True), ("local-cluster[2,1,512]", False), ("yarn", False)]
)
def test_only_executors_elsewhere_are_sent_the_code(master: str, local: bool) -> None:
    assert is_local(master) == local

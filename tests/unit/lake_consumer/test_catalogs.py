from __future__ import annotations

import re
from pathlib import Path

import pytest

from lake_consumer.catalogs import CatalogUri, read_properties
from lake_consumer.config import read_config
from lake_consumer.errors import BadOption
from lake_consumer.jars import packages
from lake_consumer.stores import S3_FILE_IO

WHO = {"LAKE_CATALOG_USER": "me", "LAKE_CATALOG_PASSWORD": "p@ss/w:d"}


def catalog(uri: str, **environ: str) -> CatalogUri:
    return read_config({}, {"LAKE_CATALOG_URI": uri, **environ}, {}).catalog


@pytest.mark.parametrize("uri", ["postgresql://db:5433/lake", "jdbc:postgresql://db:5433/lake"])
def test_one_postgresql_serves_spark_and_pyiceberg(uri: str) -> None:
    """Whichever way it is written; and a password may hold anything."""
    found = catalog(uri, **WHO)

    spark = found.spark()
    assert spark["uri"] == "jdbc:postgresql://db:5433/lake"
    assert (spark["jdbc.user"], spark["jdbc.password"]) == ("me", "p@ss/w:d")
    assert found.pyiceberg() == {
        "type": "sql", "uri": "postgresql+psycopg://me:p%40ss%2Fw%3Ad@db:5433/lake",
    }  # fmt: skip


def test_user_and_password_in_the_address_are_taken_out_of_it() -> None:
    """What is shown to people is the address."""
    found = catalog("postgresql://you:s3cr%3At@db/lake?sslmode=require", **WHO)

    assert (found.uri, found.user, found.password) == (
        "postgresql://db/lake?sslmode=require", "you", "s3cr:t",
    )  # fmt: skip
    assert "s3cr" not in f"{found!r} {found.shown}"


def test_a_rest_catalog_knows_its_warehouses_by_name() -> None:
    """A name must not become a folder of this machine; none at all is the catalog's own choice."""
    proof = {"LAKE_CATALOG_URI": "https://c", "LAKE_CATALOG_CREDENTIAL": "id:s3cret"}
    named = read_config({}, {**proof, "LAKE_WAREHOUSE": "prod"}, {})
    unnamed = read_config({}, proof, {})

    assert (named.warehouse, unnamed.warehouse) == ("prod", "")
    assert named.catalog.spark() == named.catalog.pyiceberg()
    assert named.catalog.spark()["credential"] == "id:s3cret"


def test_s3_is_told_in_the_words_of_each() -> None:
    """Keys are sent along, so that executors need none of their own."""
    found = catalog(
        "http://c", LAKE_WAREHOUSE="s3://b/l", LAKE_S3_ENDPOINT="http://minio:9000",
        AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s",
    )  # fmt: skip

    keys = {
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
        "s3.endpoint": "http://minio:9000",
    }
    assert found.spark().items() >= {
        **keys, "io-impl": S3_FILE_IO, "client.region": "us-east-1", "s3.path-style-access": "true",
    }.items()  # fmt: skip
    assert found.pyiceberg().items() >= {**keys, "s3.region": "us-east-1"}.items()
    assert "io-impl" not in found.pyiceberg()


def test_a_folder_has_nothing_to_do_with_s3(tmp_path: object) -> None:
    """Keys of AWS are in many an environment."""
    found = read_config({}, {"LAKE_WAREHOUSE": str(tmp_path), "AWS_ACCESS_KEY_ID": "k"}, {})

    assert found.catalog.store is None
    assert "io-impl" not in found.catalog.spark()


def test_other_kinds_are_passed_on_with_their_properties() -> None:
    given = "client.region=eu-west-1,glue.id=12,header.Accept=a,b"
    glue = catalog("glue:", LAKE_WAREHOUSE="s3://b/l", LAKE_CATALOG_PROPERTIES=given)
    hive = catalog("thrift://hive:9083", LAKE_WAREHOUSE="hdfs://n/l")

    assert glue.spark().items() >= {"type": "glue", "glue.id": "12", "header.Accept": "a,b"}.items()
    assert glue.pyiceberg()["client.region"] == "eu-west-1"
    assert hive.spark() == {"type": "hive", "uri": "thrift://hive:9083"} == hive.pyiceberg()


@pytest.mark.parametrize("text", ["nonsense", "=x", "a=1,b"])
def test_properties_that_are_none_are_refused(text: str) -> None:
    if text == "a=1,b":
        assert read_properties(text) == {"a": "1,b"}
        return
    with pytest.raises(BadOption, match="KEY=VALUE"):
        read_properties(text)


def test_a_format_that_is_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadOption) as caught:
        read_config({}, {"LAKE_FORMAT": "v1"}, {})

    assert "v3-mor, v2-cow" in caught.value.advice


def test_the_settings_of_the_readme_are_those_that_we_use() -> None:
    """A plain Spark opens the lake with them."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    shown = dict(re.findall(r"--conf spark\.sql\.catalog\.lake\.([\w.-]+)=(\S+)", text))

    ours = CatalogUri("sqlite:////lake/catalog.db").spark()

    assert shown == {**ours, "warehouse": "file:///lake"}
    assert all(jar in text for jar in packages(CatalogUri("sqlite:////lake/catalog.db"), "/lake"))

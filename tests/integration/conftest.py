"""One Spark for the whole run: a JVM costs as much as all the tests that use it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.embedded import EmbeddedNats
from lake_consumer.catalogs import CatalogUri
from lake_consumer.jars import ICEBERG_AWS, POSTGRES
from lake_consumer.session import SessionOptions, open_session
from tests.support.lake import HandMadeStream, LakeRig


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM; every lake has a session and a catalog of its own on it."""
    folder = tmp_path_factory.mktemp("spark")
    session = open_session(
        SessionOptions(
            master="local[2]",
            warehouse=f"file://{folder}",
            catalog=CatalogUri(f"sqlite:///{folder}/catalog.db"),
            driver_memory="1g",
            short=True,
            # Jars can only be given at the start, and tests of other catalogs share this JVM.
            extra={
                "spark.sql.shuffle.partitions": "2",
                "spark.jars.packages": f"{POSTGRES},{ICEBERG_AWS}",
            },
        )
    )
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What a file's tests left to the garbage collector must not be found in the next one's."""
    yield
    gc.collect()


@pytest.fixture
def stream(nats: EmbeddedNats) -> HandMadeStream:
    return HandMadeStream(nats.url)


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path, nats: EmbeddedNats) -> Iterator[LakeRig]:
    yield LakeRig(spark, tmp_path, nats.url)
    # Spark leaves sockets to the garbage collector, which must not find them in another's test.
    gc.collect()

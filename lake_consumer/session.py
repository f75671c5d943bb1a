"""The Spark session: its jars, its catalog, and its silence.

Spark's launcher, its dependency resolver and its logger all write to the terminal. They get a file
of their own instead, whose name is said once and again when something fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from lake_consumer.catalogs import CatalogUri
from lake_consumer.errors import SparkFailed
from lake_consumer.java import provide_java
from lake_consumer.logs import error, info

PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.53.4.0",
)
_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a session needs to know; a `short` one is made for minutes, not for days."""

    master: str
    warehouse: str
    catalog: CatalogUri
    driver_memory: str = "2g"
    short: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)


def session_settings(options: SessionOptions, log4j: Path) -> dict[str, str]:
    """Everything Spark is told; what the user adds comes last and wins."""
    return {
        "spark.app.name": "lake-consumer",
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": _java_options(log4j, short=options.short),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # A batch that waits for busy machines is late, not wrong.
        "spark.sql.broadcastTimeout": "3600",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
        # A cached row is a block of one table: each by itself, so that tables find theirs alone.
        "spark.sql.inMemoryColumnarStorage.batchSize": "1",
        **_workers(options.master),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.warehouse": options.warehouse,
        **{f"spark.sql.catalog.lake.{k}": v for k, v in options.catalog.spark().items()},
        **options.extra,
    }


def _workers(master: str) -> dict[str, str]:
    # On a cluster the package comes with the job, after the machines' daemons have started.
    local = master.startswith("local")
    return {"spark.python.daemon.module": "lake_consumer.workers"} if local else {}


def _java_options(log4j: Path, *, short: bool) -> str:
    options = [f"-Dlog4j2.configurationFile=file:{log4j}", "-XX:+UseParallelGC"]
    if short:
        # Java's optimising compiler pays off late. Without it the JVM spent 47 s of CPU on a drain
        # of 270,000 messages on two cores, with it 86 s; one run each.
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)


def open_session(options: SessionOptions, environ: Mapping[str, str] = os.environ) -> SparkSession:
    """Start Spark, or say why it does not start."""
    os.environ["JAVA_HOME"] = str(provide_java(environ))
    # Local executors must find this package: the `python3` on the PATH may be another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = Path(tempfile.mkdtemp(prefix="lake-consumer-"))
    log4j, log = folder / "log4j2.properties", folder / "spark.log"
    log4j.write_text(_LOG4J)
    _announce(log)
    builder = SparkSession.builder.master(options.master)
    for key, value in session_settings(options, log4j).items():
        builder = builder.config(key, value)
    try:
        with _stderr_into(log):
            return builder.getOrCreate()
    except Exception as failure:
        error("Spark did not start", spark_log=log)
        raise SparkFailed(f"Spark did not start: {_reason(log) or failure}") from failure


def _announce(log: Path) -> None:
    missing = [package for package in PACKAGES if not (_jars() / _jar_name(package)).exists()]
    if missing:
        info(
            "downloading Spark's packages, about 60 MB, this once",
            packages=" ".join(missing),
            into=_jars(),
        )
    info("starting Spark", spark_log=log)


def _jars() -> Path:
    return Path.home() / ".ivy2.5.2" / "jars"


def _jar_name(coordinate: str) -> str:
    group, artifact, version = coordinate.split(":")
    return f"{group}_{artifact}-{version}.jar"


def _reason(log: Path) -> str:
    """The line of Spark's log that says what went wrong."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    telling = [line.strip() for line in lines if "rror" in line or "not found" in line]
    return telling[-1] if telling else ""


@contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """Let the JVM inherit a file as its stderr; ours comes back afterwards."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

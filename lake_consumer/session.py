"""The Spark session: its jars, its catalog, its secrets, and its silence.

Here or on a cluster, and under `spark-submit`, which has its own mind about master, jars and
memory. Executors get this package from the driver. Settings of a session end up on a command line
and in Spark's log, so secrets are none: the catalog is opened with them, and they are taken back.

Spark's launcher, its dependency resolver and its logger all write to the terminal. They get a file
of their own instead, whose name is said once and again when something fails.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from lake_consumer import jars
from lake_consumer.catalogs import CatalogUri
from lake_consumer.errors import SparkFailed
from lake_consumer.formats import DEFAULT_FORMAT, FORMAT_SETTING
from lake_consumer.java import provide_java
from lake_consumer.logs import error, info
from lake_consumer.packaging import CODE, write_code

CATALOG = "lake"
_CATALOG = f"spark.sql.catalog.{CATALOG}"
_DAEMON = "spark.python.daemon.module"
_PACKAGES = "spark.jars.packages"
_IVY = "spark.jars.ivy"
_SECRET = re.compile(r"(?i)secret|password|token|credential|access.?key")
"""As Spark writes it: settings whose names fit are shown nowhere."""
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
    format: str = DEFAULT_FORMAT
    driver_memory: str = "2g"
    short: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def packages(self) -> tuple[str, ...]:
        """The jars to load: those needed, and those that the user adds."""
        added = self.extra.get(_PACKAGES, "")
        return (*jars.packages(self.catalog, self.warehouse), *filter(None, added.split(",")))


def session_settings(options: SessionOptions, log4j: Path) -> dict[str, str]:
    """Everything a session is started with; what the user adds comes last and wins."""
    return {
        "spark.app.name": "lake-consumer",
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": _java_options(log4j, short=options.short),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _SECRET.pattern,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "true",
        "spark.sql.shuffle.partitions": "8",
        # Writing a batch and reading the next share the cores, and neither waits for the other.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # A batch that waits for busy machines is late, not wrong.
        "spark.sql.broadcastTimeout": "3600",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
        # A cached row is a block of one table: each by itself, so that tables find theirs alone.
        "spark.sql.inMemoryColumnarStorage.batchSize": "1",
        **_workers(options.master),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        FORMAT_SETTING: options.format,
        **{k: v for k, v in catalog_settings(options).items() if k not in secrets_of(options)},
        **options.extra,
        _PACKAGES: ",".join(options.packages),
    }


def _workers(master: str) -> dict[str, str]:
    # On a cluster the package comes with the job, after the machines' daemons have started.
    return {_DAEMON: "lake_consumer.workers"} if is_local(master) else {}


def catalog_settings(options: SessionOptions) -> dict[str, str]:
    """The catalog `lake`, secrets included."""
    place = {"warehouse": options.warehouse} if options.warehouse else {}
    properties = {"cache-enabled": "false", **place, **options.catalog.spark()}
    return {
        _CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{_CATALOG}.{key}": value for key, value in properties.items()},
    }


def secrets_of(options: SessionOptions) -> dict[str, str]:
    """What no command line may show; nobody can tell what a property of the user's own holds."""
    owned = {f"{_CATALOG}.{key}" for key in options.catalog.properties}
    # Iceberg wants a password where there is none.
    empty = {f"{_CATALOG}.jdbc.password"} if options.catalog.password is None else set()
    settings = catalog_settings(options)
    names = {key for key in settings if _SECRET.search(key)} | owned
    return {key: settings[key] for key in names - empty}


def _java_options(log4j: Path, *, short: bool) -> str:
    options = [f"-Dlog4j2.configurationFile=file:{log4j}", "-XX:+UseParallelGC"]
    if short:
        # Java's optimising compiler pays off late. Without it the JVM spent 47 s of CPU on a drain
        # of 270,000 messages on two cores, with it 86 s; one run each.
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(options)


def open_session(options: SessionOptions, environ: Mapping[str, str] = os.environ) -> SparkSession:
    """Start Spark, or say why it does not start."""
    folder = Path(tempfile.mkdtemp(prefix="lake-consumer-"))
    log4j, log = folder / "log4j2.properties", folder / "spark.log"
    log4j.write_text(_LOG4J)
    if is_submitted(environ):
        info("starting in the session of spark-submit")
        spark = _start(_submitted_builder(options, log4j), None)
    else:
        os.environ["JAVA_HOME"] = str(provide_java(environ))
        # Local executors must find this package: the `python3` on the PATH may be another one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        _announce(log, options)
        spark = _start(_builder(session_settings(options, log4j)).master(options.master), log)
    _open_catalog(spark, secrets_of(options), options.catalog.shown)
    _send_code(spark, folder)
    _keep_jars_from_python(spark)
    return spark


def _open_catalog(spark: SparkSession, secrets: Mapping[str, str], shown: str) -> None:
    """Let the catalog read its secrets, and forget them: Spark logs settings with every job."""
    if not secrets:
        return
    for key, value in secrets.items():
        spark.conf.set(key, value)
    try:
        spark._jsparkSession.sessionState().catalogManager().catalog(CATALOG)
    except Exception as failure:
        raise SparkFailed(
            f"the catalog {shown} cannot be opened: {_first_cause(failure)}",
            advice="Check LAKE_CATALOG_URI and what proves who we are there.",
        ) from None
    finally:
        for key in secrets:
            spark.conf.unset(key)


def _send_code(spark: SparkSession, folder: Path) -> None:
    """Give executors elsewhere this package, unless spark-submit was told to."""
    sent = spark.sparkContext.getConf().get("spark.submit.pyFiles", "") or ""
    if CODE not in sent and not is_local(str(spark.sparkContext.master)):
        spark.sparkContext.addPyFile(str(write_code(folder / CODE)))


def _keep_jars_from_python(spark: SparkSession) -> None:
    """Leave Java's jars off the Python workers' path, where Spark puts them with its packages.

    A worker reads the directory of every archive on its path anew before each task, and Iceberg's
    jar lists tens of thousands of files: that was most of what the workers did.
    """
    includes = spark.sparkContext._python_includes
    if includes is not None:
        includes[:] = [name for name in includes if not name.endswith(".jar")]


def is_submitted(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started us: the JVM is there already."""
    return "PYSPARK_GATEWAY_PORT" in environ


def is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def _submitted_builder(options: SessionOptions, log4j: Path) -> SparkSession.Builder:
    """Leave alone what spark-submit decided: master, jars, and the JVM that runs already."""
    decided = ("spark.driver.", _PACKAGES, _DAEMON, "spark.ui.enabled", "spark.app.name")
    settings = session_settings(options, log4j)
    return _builder({k: v for k, v in settings.items() if not k.startswith(decided)})


def _builder(settings: Mapping[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def _start(builder: SparkSession.Builder, log: Path | None) -> SparkSession:
    try:
        with _stderr_into(log) if log else nullcontext():
            return builder.getOrCreate()
    except Exception as failure:
        if log is None:
            raise SparkFailed(f"Spark did not start: {_first_cause(failure)}") from failure
        error("Spark did not start", spark_log=log)
        raise SparkFailed(f"Spark did not start: {_reason(log) or failure}") from failure


def _announce(log: Path, options: SessionOptions) -> None:
    folders = jars.Folders.of(options.extra.get(_IVY))
    if missing := jars.missing(options.packages, folders):
        info(
            f"downloading Spark's packages, about {jars.megabytes(missing)} MB, this once",
            packages=" ".join(missing),
            into=folders.jars,
        )
    info("starting Spark", spark_log=log)


def _first_cause(failure: Exception) -> str:
    """What Java says, without where it was at the time."""
    lines = str(failure).splitlines() or [type(failure).__name__]
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0])


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

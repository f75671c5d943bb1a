"""The lake on a cluster: a packaged job under spark-submit, and the command by itself."""

from __future__ import annotations

import gc
import http.client
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres, free_port
from lake_consumer.config import read_config
from lake_consumer.iceberg.reading import open_catalog, read_statuses
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.packaging import CODE, DEPENDENCIES, START, submit_command, write_package
from schemas.events import Change
from tests.support.lake import HandMadeStream, announce, change, make_shape
from tests.support.objectstore import SECRET, S3Server, s3_server
from tests.support.sparkcluster import SPARK_HOME, WORKERS, SparkCluster, spark_cluster

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
PATIENCE_S = 900
NATS_PASSWORD = "s3cret-of-nats"
ROWS = 300


@dataclass
class Driver:
    """Runs one driver to its end, looking over its shoulder meanwhile."""

    command: Sequence[str]
    environ: dict[str, str]
    folder: Path
    ui_port: int
    seen: list[str] = field(default_factory=list)

    def run(self) -> str:
        out = self.folder / "driver.log"
        with out.open("wb") as log:
            process = subprocess.Popen(
                self.command, env=self.environ, cwd=self.folder, stdout=log, stderr=log
            )
            deadline = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < deadline:
                self.seen += _command_lines()
                self.seen.append(_page(f"http://127.0.0.1:{self.ui_port}/environment/"))
                self.seen.append(_page(f"http://127.0.0.1:{self.ui_port}/SQL/"))
                time.sleep(0.3)
            if process.poll() is None:
                process.kill()
        said = out.read_text(errors="replace")
        assert process.wait() == 0, said[-6000:]
        return said


def _command_lines() -> list[str]:
    return [" ".join(found.info["cmdline"] or ()) for found in psutil.process_iter(["cmdline"])]


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())
    except (OSError, http.client.HTTPException):
        return ""


@pytest.fixture
def cluster(server_folder: Path) -> Iterator[SparkCluster]:
    with spark_cluster(server_folder) as found:
        yield found


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server
    # Catalogs leave their connections to the garbage collector, which must find them here.
    gc.collect()


def test_the_packaged_job_runs_where_only_spark_and_python_are(
    cluster: SparkCluster, s3: S3Server, postgres: EmbeddedPostgres, database: str, tmp_path: Path
) -> None:
    """Executors get code, dependencies and secrets from the driver, and no secret is on display."""
    with ExitStack() as stack:
        config = f"authorization {{ user: lake, password: {NATS_PASSWORD} }}"
        server = EmbeddedNats(cluster.folder / "nats", config=config)
        stack.enter_context(server)
        access = NatsOptions(url=server.url, user="lake", password=NATS_PASSWORD)
        stream = HandMadeStream(server.url, access=access)
        shape = make_shape("users", {"id": "int64", "name": "text"})
        stream.commit(announce(shape, 1), *[_insert(at) for at in range(ROWS)])
        stream.send()
        package, ui_port = tmp_path / "package", free_port()
        environ = _environ(cluster, s3, server, postgres, database)
        config_read = read_config({"spark_master": cluster.url}, environ, {})
        write_package(package, dependencies=True)
        words = shlex.split(submit_command(config_read, package, dependencies=True))
        settings = _settings(ui_port)

        submitted = Driver(
            [str(SPARK_HOME / "bin" / words[0]), *words[1:-2], *settings, str(package / START),
             "drain"],
            environ, tmp_path, ui_port,
        )  # fmt: skip
        said = submitted.run()

        assert "msg=drained" in said, said[-3000:]
        assert _rows(environ) == ROWS
        assert cluster.executors() == {f"worker-{at}" for at in range(WORKERS)}

        # The command by itself: the code travels, so the executors' Python may stay as bare.
        stream.commit(_insert(ROWS))
        stream.send()
        flags = ["--spark-master", cluster.url]
        flags += [word.replace("--conf", "--spark-conf") for word in settings]
        for setting in (
            f"spark.archives={package / DEPENDENCIES}#dependencies",
            "spark.executorEnv.PYTHONPATH=dependencies",
            "spark.ui.enabled=true",
        ):
            flags += ["--spark-conf", setting]
        program = Path(sys.executable).with_name("lake-consumer")
        Driver([str(program), "drain", *flags], environ, tmp_path, ui_port, submitted.seen).run()

    assert _rows(environ) == ROWS + 1
    shown = "\n".join(submitted.seen)
    assert CODE in shown, "the process list was not looked at"
    assert "spark.redaction.regex" in shown, "Spark's own pages were not looked at"
    for secret in (NATS_PASSWORD, SECRET, postgres.password):
        assert secret not in shown
        assert secret not in cluster.worker_logs()
        assert secret not in (tmp_path / "driver.log").read_text(errors="replace")


def _insert(at: int) -> Change:
    return change("users", "INSERT", {"id": at, "name": f"n{at}"})


def _environ(
    cluster: SparkCluster, s3: S3Server, nats: EmbeddedNats, postgres: EmbeddedPostgres, db: str
) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "JAVA_HOME": str(cluster.java_home),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYSPARK_PYTHON": str(cluster.python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "NATS_URL": nats.url,
        "NATS_LAKE_USER": "lake",
        "NATS_LAKE_PASSWORD": NATS_PASSWORD,
        "LAKE_CATALOG_URI": f"postgresql://127.0.0.1:{postgres.port}/{db}",
        "LAKE_CATALOG_USER": postgres.superuser,
        "LAKE_CATALOG_PASSWORD": postgres.password,
        "LAKE_FIRST_SIGHT": "stream",
        **s3.env(),
    }


def _settings(ui_port: int) -> list[str]:
    found = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.ui.port": str(ui_port),
        "spark.sql.shuffle.partitions": "2",
    }
    return [word for key, value in found.items() for word in ("--conf", f"{key}={value}")]


def _rows(environ: dict[str, str]) -> int:
    config = read_config({}, environ, {})
    table = open_catalog(config.catalog, config.warehouse).load_table("public.users")
    statuses = read_statuses(config.catalog, config.warehouse)
    counted = next(status.rows for status in statuses if status.name == "public.users")
    rows = table.scan(selected_fields=("id",)).to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(counted))
    return counted

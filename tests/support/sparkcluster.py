"""A standalone Spark cluster on this machine, whose workers have nothing but Spark and Python.

Workers have a home, a folder and an environment of their own, and their Python is a bare one: what
an executor imports either came with Spark or was sent to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from examples.embedded import free_port
from examples.embedded.process import kill_family, spawn
from lake_consumer.java import provide_java
from tests.support.bridge import wait_for

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = 2


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A master, its workers, and the Python that workers have."""

    url: str
    python: Path
    java_home: Path
    folder: Path

    def worker_logs(self) -> str:
        """Everything that executors said."""
        found = self.folder.glob("worker-*/jobs/*/*/std*")
        return "\n".join(file.read_text(errors="replace") for file in found)

    def executors(self) -> set[str]:
        """Workers that ran an executor."""
        return {file.parts[-5] for file in self.folder.glob("worker-*/jobs/*/*/stderr")}


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    java_home = provide_java(os.environ)
    python = folder / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    master = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    worker = ("worker.Worker", url, "--host", "127.0.0.1", "--webui-port", "0")
    running = []
    try:
        running.append(_start(folder / "master", java_home, *master))
        _await(folder / "master", r"I have been elected leader|Starting Spark master")
        for at in range(WORKERS):
            home = folder / f"worker-{at}"
            limits = ("--cores", "1", "--memory", "700m", "--work-dir", str(home / "jobs"))
            running.append(_start(home, java_home, *worker, *limits))
        for at in range(WORKERS):
            _await(folder / f"worker-{at}", "Successfully registered with master")
        yield SparkCluster(url, python / "bin" / "python", java_home, folder)
    finally:
        for process in running:
            kill_family(process)


def _start(home: Path, java_home: Path, main: str, *flags: str) -> subprocess.Popen[bytes]:
    home.mkdir()
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "JAVA_HOME": str(java_home)}
    environ["SPARK_DAEMON_MEMORY"] = "256m"
    program = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
    return spawn([*program, *flags], home / "log", cwd=home, env=environ)


def _await(home: Path, line: str) -> None:
    log = home / "log"
    wait_for(lambda: re.search(line, log.read_text(errors="replace")), f"{line!r} in {log}")

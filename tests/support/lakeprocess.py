"""`lake-consumer run` as a real process with a catalog to watch, for tests that kill it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from examples.embedded.process import alive, spawn
from lake_consumer.catalogs import CatalogUri
from lake_consumer.config import read_config
from lake_consumer.iceberg.names import LakeName
from lake_consumer.resync import ask_resync
from tests.support.bridge import wait_for

COMMAND = Path(sys.executable).with_name("lake-consumer")
QUICK = (
    "--spark-conf", "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1",
    "--spark-conf", "spark.sql.shuffle.partitions=2",
)  # fmt: skip


class LakeProcess:
    """One lake in a folder; everything else that it writes goes to a scratch folder."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *flags: str) -> None:
        self.warehouse = f"file://{folder}/lake"
        self.catalog = CatalogUri(f"sqlite:///{folder}/lake/catalog.db")
        self.log = folder / "lake.log"
        self._scratch = folder / "scratch"
        self._flags = ("run", *QUICK, *flags)
        self._environ = {
            **os.environ,
            "LAKE_WAREHOUSE": f"{folder}/lake",
            "SPARK_MASTER": "local[2]",
            "SPARK_DRIVER_MEMORY": "1g",
            "TMPDIR": str(self._scratch),
            "XDG_CACHE_HOME": str(self._scratch / "cache"),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        self._heads: dict[str, int | None] = {}
        self._family: list[psutil.Process] = []

    def __enter__(self) -> LakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill(alone=False)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the lake consumer was not started")
        return self._process

    def start(self) -> None:
        """Start with nothing but warehouse and catalog left of earlier runs."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        self._said_before = len(self.said()) if self.log.exists() else 0
        self._process = spawn(
            [str(COMMAND), *self._flags],
            self.log,
            cwd=self._scratch,
            farewell=signal.SIGKILL,
            env=self._environ,
        )

    def kill(self, *, alone: bool) -> None:
        """`kill -9`: the driver alone, which leaves its JVM an orphan, or all of them at once."""
        # At once: looking for the family takes longer than the moment lasts that was waited for.
        (os.kill if alone else os.killpg)(self.process.pid, signal.SIGKILL)
        self._family = session_of(self.process.pid)
        self.process.wait()

    def wait_family_gone(self) -> None:
        wait_for(lambda: not any(map(alive, self._family)), "the orphans of the driver to end")

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(120)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def said_now(self) -> str:
        """What it said since it was started last."""
        return self.said()[self._said_before :]

    def check(self) -> None:
        """Fail with what it said where it ended by itself."""
        code = self.process.poll()
        assert code is None, f"the lake consumer ended with {code}:\n{self.said()[-4000:]}"

    def heads(self) -> dict[str, int]:
        """The snapshot that readers of each table see; when one moves, something was published."""
        file = self.catalog.sqlite_file
        if file is None or not file.exists():
            return {}
        try:
            with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=1) as connection:
                rows = connection.execute(
                    "SELECT table_namespace || '.' || table_name, metadata_location"
                    " FROM iceberg_tables"
                ).fetchall()
            connection.close()
        except sqlite3.OperationalError:
            # Not made yet, or being written.
            return {}
        found = {name: self._head(at) for name, at in rows}
        return {name: head for name, head in found.items() if head is not None}

    def _head(self, metadata: str) -> int | None:
        if metadata not in self._heads:
            # The oldest metadata are removed while they are looked for, but never the newest.
            content = json.loads(Path(metadata.removeprefix("file:")).read_bytes())
            head = content.get("current-snapshot-id")
            self._heads[metadata] = None if head in (None, -1) else int(head)
        return self._heads[metadata]

    def data_files(self, of: LakeName | None = None) -> int:
        """How many there are, in one table or in all, whether any snapshot knows them or not."""
        folder = Path(self.warehouse.removeprefix("file://"))
        if of is not None:
            folder = folder / of.namespace / of.name
        return sum(1 for _ in folder.rglob("data/**/*.parquet"))

    def command(
        self, *args: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run another command of the lake consumer, beside it or alone, to its end."""
        self._scratch.mkdir(exist_ok=True)
        return subprocess.run(
            [str(COMMAND), *args],
            env={**self._environ, **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def resync(self, table: str) -> None:
        """Have a mirror built anew, by whoever follows the stream now or next."""
        values = {"warehouse": self.warehouse, "catalog_uri": self.catalog.uri}
        ask_resync(read_config(values, {}, {}), [table])


def session_of(leader: int) -> list[psutil.Process]:
    """Who is left of the session that a process began; Spark's workers leave its group only."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if process.pid != leader and os.getsid(process.pid) == leader:
                found.append(process)
    return found

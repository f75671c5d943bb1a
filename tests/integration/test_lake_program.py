"""The program as people run it: killed in the middle, on a machine without Java."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.embedded import EmbeddedNats
from lake_consumer.catalogs import CatalogUri
from lake_consumer.iceberg.names import CUTS
from lake_consumer.iceberg.reading import open_catalog, read_statuses
from tests.support.lake import HandMadeStream, announce, change, make_shape

PROGRAM = Path(sys.executable).with_name("lake-consumer")
PATIENCE_S = 240


class Program:
    """`lake-consumer` with a folder of its own and no Java in sight."""

    def __init__(self, folder: Path, nats: EmbeddedNats) -> None:
        self.catalog = CatalogUri(f"sqlite:///{folder}/lake/catalog.db")
        self.warehouse = f"file://{folder}/lake"
        self._environ = {
            "HOME": os.environ.get("HOME", str(folder)),
            "PATH": str(_path_without_java(folder / "bin")),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "LAKE_WAREHOUSE": str(folder / "lake"),
            "NATS_URL": nats.url,
            "SPARK_MASTER": "local[2]",
            # The stream is written by hand: no bridge would take a snapshot.
            "LAKE_FIRST_SIGHT": "stream",
            "SPARK_DRIVER_MEMORY": "1g",
            # The program of this tree, wherever another one is installed.
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, command], env=self._environ, stdout=subprocess.PIPE, text=True
        )

    def run(self, command: str) -> tuple[int, str]:
        process = self.start(command)
        shown, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, shown

    def committed(self) -> set[str]:
        """Tables that were written; the empty snapshot they begin with says no place."""
        statuses = read_statuses(self.catalog, self.warehouse)
        return {status.name for status in statuses if status.watermark.stream_sequence}


def _path_without_java(folder: Path) -> Path:
    folder.mkdir()
    for place in ("/bin", "/usr/bin"):
        for tool in Path(place).iterdir():
            link = folder / tool.name
            if not tool.name.startswith("java") and not link.exists():
                link.symlink_to(tool)
    return folder


@pytest.fixture
def program(tmp_path: Path, nats: EmbeddedNats) -> Program:
    return Program(tmp_path, nats)


def test_killed_between_two_commits_neither_loses_nor_repeats(
    program: Program, nats: EmbeddedNats
) -> None:
    """The change log has the batch, mirrors and cuts may not: only the tables know how far."""
    stream = HandMadeStream(nats.url)
    tables = ("a", "b")
    for revision, table in enumerate(tables, start=1):
        shape = make_shape(table, {"id": "int64", "v": "text"})
        stream.commit(
            announce(shape, revision), change(table, "INSERT", {"id": 0, "v": "0"}, revision)
        )
    for key in range(1, 150):
        stream.commit(
            *[change(t, "INSERT", {"id": key, "v": str(key)}, r) for r, t in enumerate(tables, 1)],
            *[change(t, "UPDATE", {"id": 0, "v": str(key)}, r) for r, t in enumerate(tables, 1)],
        )
    end = stream.send()
    victim = program.start("drain")
    _wait_for_a_commit(program, victim)

    victim.kill()
    victim.communicate()
    interrupted = str(CUTS) not in program.committed()
    code, shown = program.run("drain")

    assert code == 0, shown
    assert ("taking an interrupted batch again" in shown) == interrupted
    catalog = open_catalog(program.catalog, program.warehouse)
    expected = {0: "149", **{key: str(key) for key in range(1, 150)}}
    for table in tables:
        mirror = catalog.load_table(f"public.{table}").scan().to_arrow().to_pylist()
        log = catalog.load_table(f"public__changes.{table}").scan().to_arrow()
        assert {row["id"]: row["v"] for row in mirror} == expected
        assert len(mirror) == len(expected)
        assert log.num_rows == len(set(log["stream_seq"].to_pylist())) == 299
    assert stream.durable_position() == end

    code, shown = program.run("status")

    assert code == 0
    assert "the lake is 0 messages behind" in shown
    assert "public__changes.b" in shown


def _wait_for_a_commit(program: Program, victim: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not program.committed() and time.monotonic() < deadline:
        assert victim.poll() is None, victim.communicate()[0]
        time.sleep(0.02)


def test_drain_without_a_stream_says_what_to_start(program: Program) -> None:
    """An empty success would look like an empty database."""
    code, shown = program.run("drain")

    assert code == 3
    assert "has no stream CDC yet" in shown
    assert "Start the bridge" in shown

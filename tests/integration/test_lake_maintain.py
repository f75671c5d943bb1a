"""Care for a lake of many small commits: less of everything, and nothing changed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.embedded import EmbeddedNats, temporary_folder
from lake_consumer.care import CareOptions
from lake_consumer.cli import main
from lake_consumer.iceberg.maintenance import ORPHANS, STEPS, Caretaker, Done
from lake_consumer.iceberg.names import CUTS, LakeName
from lake_consumer.iceberg.reading import open_catalog, watermark_of
from lake_consumer.maintaining import Rounds
from lake_consumer.metrics import Meter
from lake_consumer.watermark import STREAM_SEQUENCE
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

COMMITS = int(os.environ.get("LAKE_SMALL_COMMITS", "5"))
DOCS = make_shape("docs", {"id": "int64", "body": "text"})
QUIET = make_shape("Quiet Table", {"id": "int64", "body": "text"})
MIRROR = LakeName("public", "docs")
LOG = LakeName("public__changes", "docs")
FOREVER = timedelta(days=36_500)
PATIENCE_S = 600
PROGRAM = Path(sys.executable).with_name("lake-consumer")


class Lived:
    """A lake with a past of small commits, and what must be in it."""

    def __init__(self, stream: HandMadeStream, rig: LakeRig) -> None:
        self.stream = stream
        self.rig = rig
        self.rows: dict[int, str] = {}
        self.commits = 0
        quiet = change("Quiet Table", "INSERT", {"id": 1, "body": "q"}, 2)
        stream.commit(announce(DOCS, 1), announce(QUIET, 2), quiet)
        for _ in range(COMMITS):
            self.live()
        self.follow()

    def live(self) -> None:
        """One transaction: some rows come, one changes, one goes."""
        number = self.commits
        self.commits += 1
        parts: list[Any] = []
        for key in range(number * 5, number * 5 + 5):
            self.rows[key] = f"v{number}"
            parts.append(change("docs", "INSERT", {"id": key, "body": self.rows[key]}))
        for key in (number * 5, max(0, number - 1) * 5):
            self.rows[key] = f"w{number}"
            parts.append(change("docs", "UPDATE", {"id": key, "body": self.rows[key]}))
        del self.rows[number * 5 + 4]
        parts.append(change("docs", "DELETE", {"id": number * 5 + 4, "body": None}))
        self.stream.commit(*parts)

    def follow(self) -> None:
        self.stream.send()
        self.rig.drain(max_messages=9)

    def assert_right(self) -> None:
        expected = [{"id": key, "body": body} for key, body in sorted(self.rows.items())]
        mirror = [{k: row[k] for k in ("id", "body")} for row in self.rig.mirror("docs")]
        assert mirror == expected
        seen = sorted(self.rig.pyiceberg("public.docs"), key=lambda row: row["id"])
        assert [{k: row[k] for k in ("id", "body")} for row in seen] == expected
        logged = [row["stream_seq"] for row in self.rig.log("docs")]
        assert len(logged) == len(set(logged)) == 8 * (len(self.rows) // 4)

    def table(self, name: LakeName) -> Any:
        return open_catalog(self.rig.catalog, self.rig.warehouse).load_table(
            (name.namespace, name.name)
        )

    def marks(self) -> list[int]:
        names = (MIRROR, LOG, CUTS)
        return [watermark_of(self.table(name)).stream_sequence for name in names]

    def files(self, name: LakeName) -> tuple[int, int]:
        """Data files, and delete files."""
        files = self.rig.spark.sql(f"SELECT content FROM {name.sql}.files").collect()
        return sum(f[0] == 0 for f in files), sum(f[0] != 0 for f in files)

    def care(self, *, with_orphans: bool = False, **options: Any) -> tuple[bool, list[Done]]:
        done: list[Done] = []
        chosen = CareOptions(**{"small_files": 3, "budget_seconds": 300, **options})
        caretaker = Caretaker(self.rig.spark, chosen, done.append)
        return caretaker.care(steps=(*STEPS, ORPHANS) if with_orphans else STEPS), done

    def ask(self, lsn: int) -> int:
        folder = self.rig.warehouse.removeprefix("file://")
        query = ["query", "--at", str(lsn), "--csv", "SELECT count(*) FROM docs"]
        return main([*query, "--warehouse", folder], {})


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """One lake for all tests here: each leaves it right, and with something left to care for."""
    with temporary_folder() as folder, EmbeddedNats(folder) as nats:
        lake = tmp_path_factory.mktemp("lived")
        yield Lived(HandMadeStream(nats.url), LakeRig(spark, lake, nats.url))
    gc.collect()


def test_care_keeps_to_its_budget(lived: Lived) -> None:
    """A round that is out of time says so and leaves the tables right."""
    finished, done = lived.care(keep=FOREVER, budget_seconds=0.51)

    assert not finished
    assert not [step for step in done if step.is_finished and step.table != CUTS]
    lived.assert_right()


def test_run_cares_between_batches_when_it_is_due(lived: Lived) -> None:
    """Not before its time, not when it is off, and it is counted."""
    meter = Meter()
    for interval in (3_600.0, 0.0, 1e-6):
        options = CareOptions(interval_seconds=interval, budget_seconds=0.51)
        Rounds(Caretaker(lived.rig.spark, options, lambda _: None), meter).between_batches()

    assert (meter.care_rounds, meter.care_failures) == (1, 0)
    lived.assert_right()


def test_a_lake_of_small_commits_is_healthy_again_and_equal(
    lived: Lived, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few files, no deleted rows, every kept cut readable, and it goes on from where it was."""
    marks, before = lived.marks(), lived.files(MIRROR)
    cuts = [row["commit_lsn"] for row in lived.rig.cuts() if row["table_name"] == "public.docs"]
    assert before[0] >= 3
    assert before[1] > 0

    finished, done = lived.care(keep=FOREVER, with_orphans=True)

    assert finished
    assert {step.table for step in done if step.step == "compact"} == {MIRROR, LOG, CUTS}
    assert lived.files(MIRROR) == (1, 0)
    assert lived.files(LOG) == (1, 0)
    assert lived.marks() == marks
    newest = lived.table(MIRROR).current_snapshot()
    assert STREAM_SEQUENCE not in newest.summary.additional_properties
    lived.assert_right()
    assert [lived.ask(lsn) for lsn in cuts] == [0] * len(cuts)
    counts = [int(line) for line in capsys.readouterr().out.splitlines() if line.isdecimal()]
    assert counts == [4 * number for number in range(1, lived.commits + 1)]

    assert lived.care(keep=FOREVER) == (True, [])
    lived.care(keep=timedelta(0), keep_cuts=1)

    assert lived.marks() == marks
    lived.assert_right()
    assert len({row["stream_seq"] for row in lived.rig.cuts()}) == 1
    assert {row["table_name"] for row in lived.rig.cuts()} == {"public.docs", "public.Quiet Table"}
    assert len(lived.table(MIRROR).metadata.snapshots) <= 3
    assert [lived.ask(lsn) for lsn in (cuts[0], cuts[-1])] == [1, 0]
    assert "no cut at or before" in capsys.readouterr().err

    lived.live()
    lived.follow()

    lived.assert_right()
    assert lived.rig.drain() == 0


def test_killed_during_maintenance_the_lake_is_right_and_goes_on(lived: Lived) -> None:
    """A killed rewrite leaves files that nobody knows, and no half-made state."""
    for _ in range(2):
        lived.live()
    lived.follow()
    folder = lived.rig.warehouse.removeprefix("file://")
    environ = {**os.environ, "LAKE_WAREHOUSE": folder, "SPARK_MASTER": "local[2]"}
    data = Path(folder) / "public" / "docs" / "data"
    known = len(list(data.glob("*")))
    victim = subprocess.Popen(
        [PROGRAM, "maintain", "docs", "--small-files", "1", "--keep-days", "36500"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and victim.poll() is None:
        if len(list(data.glob("*"))) > known:
            break
        time.sleep(0.005)
    victim.kill()
    said = victim.communicate()[0]

    assert len(list(data.glob("*"))) > known, said
    lived.assert_right()
    marks = lived.marks()
    lived.live()
    lived.follow()
    lived.assert_right()
    assert lived.marks() > marks
    assert lived.rig.drain() == 0

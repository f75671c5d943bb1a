"""Kill the lake: whenever its driver dies, every change is in the lake once.

Real servers, several writers, and a driver that is killed with `kill -9` where it hurts most: while
it loads a table's snapshot, when that is loaded and no cut says so, while it reads, in the middle
of a write, between the commits of two tables, and behind the last commit before JetStream is told.
Nothing is left to the next driver but warehouse and catalog; at times not
even the last driver's JVM is dead yet when it starts. `CHAOS_ROUNDS` sets the number of kills; the
seed is printed, and `CHAOS_SEED` repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo.verdict import changes_of, differences, scan
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.iceberg.names import CUTS, LakeName
from lake_consumer.iceberg.reading import LakeReader, open_catalog, watermark_of
from schemas.names import TableName
from schemas.streams import CDC_STREAM, LAKE_CONSUMER
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.lakeprocess import LakeProcess
from tests.support.stream import StoredMessage, administer, read_stream
from tests.support.truth import PUBLICATION, TABLES, Truth, assert_tells_the_truth, writing

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "7"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000))))
SLOT = "lake_chaos"
ROWS = 20_000
"""What the first table holds before anybody follows it; only a snapshot brings that."""

LOADED = LakeName("public", "accounts")
PATIENCE_SECONDS = 240.0
"""A JVM starts in ten seconds, and in a minute where the machine is busy."""


@dataclass
class Stage:
    """A pipeline under load, whose last part is going to die."""

    nats: EmbeddedNats
    bridge: BridgeProcess
    lake: LakeProcess
    truth: Truth
    random: random.Random

    def settle(self) -> list[StoredMessage]:
        """Wait until the stream has all of PostgreSQL's history; gives the stream."""
        end = self.truth.wal_end()
        wait_for(lambda: self.truth.confirmed(SLOT) >= end, f"the slot to reach {end}")
        return read_stream(self.nats.url)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Watch closely: a moment to kill at is over in milliseconds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            self.lake.check()
            assert time.monotonic() < deadline, f"{what} never came:\n{self.lake.said()[-4000:]}"
            time.sleep(0.003)


@pytest.fixture
def stage(server_folder: Path, tmp_path: Path) -> Iterator[Stage]:
    print(f"CHAOS_SEED={SEED}")
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(server_folder / "pg", durable=False))
        server = stack.enter_context(EmbeddedNats(server_folder / "nats"))
        truth = Truth(postgres.dsn(), "truth")
        with truth.connect() as connection:
            connection.execute(
                "INSERT INTO accounts SELECT -g, 'old', g FROM generate_series(1, %s) g", [ROWS]
            )
            # Not part of the history that the stream has to tell.
            connection.execute("TRUNCATE audit")
        bridge = BridgeProcess(
            {**postgres.env(), **server.env()},
            *("--slot", SLOT, "--pub", PUBLICATION, "--durability", "acked"),
            log=tmp_path / "bridge.log",
        )
        stack.enter_context(bridge)
        bridge.wait_streaming()
        lake = stack.enter_context(LakeProcess(tmp_path, server.env(), "--interval", "0.1"))
        yield Stage(server, bridge, lake, truth, random.Random(SEED))


def begin_loading(stage: Stage) -> None:
    """The first time it is due anyway; later somebody has to ask."""
    if str(LOADED) not in stage.lake.heads():
        return
    stage.lake.resync("accounts")
    stage.until(lambda: "waits for a snapshot" in stage.lake.said_now(), "a table that loads")


def while_loading(stage: Stage) -> None:
    """A file of a snapshot's rows is there that no table knows yet."""
    begin_loading(stage)
    before = stage.lake.data_files(LOADED)
    stage.until(lambda: stage.lake.data_files(LOADED) > before, "a data file of a snapshot")


def loaded_without_a_cut(stage: Stage) -> None:
    """The mirror has its snapshot, and neither its state nor a cut says so."""
    begin_loading(stage)
    before = stage.lake.heads().get(str(LOADED))
    stage.until(lambda: stage.lake.heads().get(str(LOADED)) not in (before, None), "a mirror")


def while_reading(stage: Stage) -> None:
    """Anywhere: most of a driver's life is reading, decoding and waiting."""
    stage.until(lambda: "msg=ready " in stage.lake.said_now(), "a driver that is ready")
    time.sleep(stage.random.uniform(0, 4))


def while_writing(stage: Stage) -> None:
    """A data file is there that no table knows yet."""
    before = stage.lake.data_files()
    stage.until(lambda: stage.lake.data_files() > before, "a data file")


def between_two_commits(stage: Stage) -> None:
    """One table has the batch; the others, and the cuts, may not."""
    before = stage.lake.heads()
    cuts = str(CUTS)

    def moved() -> bool:
        now = stage.lake.heads()
        return any(at != before.get(name) for name, at in now.items() if name != cuts)

    stage.until(moved, "a table's commit")
    time.sleep(stage.random.choice((0, 0.05, 0.2)))


def before_the_ack(stage: Stage) -> None:
    """All tables have the batch, and JetStream does not know."""
    before = stage.lake.heads().get(str(CUTS))
    stage.until(lambda: stage.lake.heads().get(str(CUTS)) not in (before, None), "a cut")


def at_birth(stage: Stage) -> None:
    """Spark is half up."""
    time.sleep(stage.random.uniform(0.5, 8))


MOMENTS = (
    while_loading,
    loaded_without_a_cut,
    between_two_commits,
    before_the_ack,
    while_writing,
    at_birth,
    while_reading,
)


def test_every_change_is_in_the_lake_once_whenever_the_driver_dies(stage: Stage) -> None:
    """Nothing lost, nothing twice, nothing altered, and every cut a state the database was in."""
    lake = stage.lake
    lake.start()
    with writing(stage.truth, SEED, pause_seconds=0.5):
        for at in range(ROUNDS):
            # All of them in turn first, so that the short form has each of them once.
            moment = MOMENTS[at] if at < len(MOMENTS) else stage.random.choice(MOMENTS)
            moment(stage)
            lake.kill(alone=at % 2 == 0)
            lake.start()
            lake.wait_family_gone()

    stream = stage.settle()
    await_lake(stage, stream[-1].sequence)
    code = lake.terminate()

    assert code == 0, lake.said()[-4000:]
    changes = [message for message in stream if message.is_change]
    assert_tells_the_truth(changes, stage.truth)
    assert_lake_tells_the_truth(stage, changes)
    assert asyncio.run(ack_floor(stage.nats.url)) == stream[-1].sequence


def await_lake(stage: Stage, end: int) -> None:
    catalog = open_catalog(stage.lake.catalog, stage.lake.warehouse)

    def reached() -> bool:
        time.sleep(0.2)
        return watermark_of(catalog.load_table(str(CUTS))).stream_sequence >= end

    stage.until(lambda: str(CUTS) in stage.lake.heads() and reached(), f"sequence {end}")


async def ack_floor(url: str) -> int:
    """Where operators see the lake."""
    async with administer(url) as js:
        found = await js.consumer_info(CDC_STREAM.name, LAKE_CONSUMER)
        return int(found.ack_floor.stream_seq)


def assert_lake_tells_the_truth(stage: Stage, changes: list[StoredMessage]) -> None:
    """Mirrors against PostgreSQL, change logs and cuts against the stream."""
    catalog = open_catalog(stage.lake.catalog, stage.lake.warehouse)
    with stage.truth.connect() as connection:
        for token in TABLES:
            table = TableName.from_token(token)
            missing, surplus = differences(connection, table, scan(catalog, table))
            assert (missing[:3], surplus[:3]) == ([], []), f"the mirror of {table} differs"
            told = [change for change in changes if change.subject.split(".")[1] == token]
            log = scan(catalog, changes_of(table)).sort_by("stream_seq").to_pylist()
            assert_each_once([row["stream_seq"] for row in log], [c.sequence for c in told])
            for row, change in zip(log, told, strict=True):
                assert logged(row) == sent(change)
    ends = {change.sequence for change in changes if change.fields["last"]}
    cuts = LakeReader(stage.lake.catalog, stage.lake.warehouse).cuts().cuts()
    assert {cut.stream_seq for cut in cuts} <= ends, "a cut is in the middle of a transaction"


def assert_each_once(found: list[int], expected: list[int]) -> None:
    assert [seq for seq, count in Counter(found).items() if count > 1][:5] == [], "logged twice"
    assert sorted(set(expected) - set(found))[:5] == [], "not in the change log"
    assert found == expected


def logged(row: dict[str, Any]) -> tuple[object, ...]:
    image = row["old"] if row["operation"] == "DELETE" else row["new"]
    values = {name: value for name, value in image.items() if not name.startswith("_bridge")}
    return (row["operation"], row["xid"], row["commit_lsn"], row["seq"], row["last"], values)


def sent(change: StoredMessage) -> tuple[object, ...]:
    fields = change.fields
    place = (fields[name] for name in ("operation", "xid", "commit_lsn", "seq", "last"))
    return (*place, fields["data"])

"""The pipeline in the storm: real servers, two writers, and somebody who kills and freezes.

The SQL depends on the seed alone. What is killed when is planned by the seed too, in steps of the
writers, but how far each program has come by then depends on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.errors import LakeError, NatsUnreachable
from lake_consumer.iceberg.names import LakeName
from schemas.names import TableName
from schemas.streams import CDC_STREAM
from tests.storm.judge import CutJudge, Finding, LogJudge, describe, judge_gone, judge_mirrors
from tests.storm.lake import LakeView
from tests.storm.truth import (
    CommittedChanges,
    Connection,
    History,
    TableVersion,
    connect,
    open_sessions,
    published_names,
    read_tables,
)
from tests.storm.world import PUBLICATION, publish
from tests.storm.writer import Writer
from tests.support.bridge import BridgeProcess
from tests.support.lakeprocess import LakeProcess
from tests.support.stream import StoredMessage, administer, read_stream

SLOT = "storm"
KINDS = (
    ("a", ("plain", "composite", "toast", "root")),
    ("b", ("text", "full", "index", "keyless", "leaves")),
)
"""Which tables the two writers begin with."""

PATIENCE_SECONDS = 300.0
STEPS_BESIDE = 6
"""So many steps the writers may take while something is disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a storm is."""

    seed: int
    steps: int
    pause_seconds: float
    disturbances: int
    sampled_cuts: int
    capabilities: frozenset[str]


@dataclass
class Storm:
    """Servers, programs, writers, and what was seen."""

    plan: Plan
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    bridge: BridgeProcess
    lake: LakeProcess
    writers: Sequence[Writer]
    connection: Connection
    committed: CommittedChanges
    rng: random.Random
    done: list[str] = field(default_factory=list)
    read: list[StoredMessage] = field(default_factory=list)
    """The whole stream, once a report needs it."""
    published: int = 0

    # The storm itself

    def rage(self) -> None:
        """Let the writers run and disturb everything else meanwhile."""
        plan = self.plan
        disturbances = plan_disturbances(self.rng, plan.disturbances)
        starts = {
            plan.steps * (at + 1) // (plan.disturbances + 1): do
            for at, do in enumerate(disturbances)
        }
        # While the lake is dead, changes pile up that make its next batch a large one.
        big_at = {step + 2 for step, do in starts.items() if do is Storm.leave_lake_dead}
        threads = [
            threading.Thread(target=writer.run, args=(plan.steps, plan.pause_seconds, big_at))
            for writer in self.writers
        ]
        for thread in threads:
            thread.start()
        try:
            for step, disturb in starts.items():
                self._allow(step + STEPS_BESIDE)
                self._until_step(step)
                self._note(getattr(disturb, "__name__", ""))
                before = self._applied()
                self._tend_lake()
                disturb(self)
                # Writers that outrun the lake leave it one cut, and nothing to be disturbed.
                self._until(partial(self._moved_on, before), "the lake to move on")
        finally:
            self._allow(plan.steps)
            for thread in threads:
                thread.join()
        for writer in self.writers:
            if writer.failure is not None:
                raise AssertionError(f"writer {writer.letter} failed") from writer.failure

    def _allow(self, step: int) -> None:
        for writer in self.writers:
            writer.limit = max(writer.limit, step)

    def _applied(self) -> int:
        with self.view() as view:
            return 0 if view is None else view.applied()

    def _moved_on(self, before: int) -> bool:
        applied = self._applied()
        return applied > before or applied >= self._stream_end()

    def _until_step(self, step: int) -> None:
        self._allow(step)
        while any(writer.steps < step and writer.failure is None for writer in self.writers):
            time.sleep(0.02)

    def _note(self, what: str) -> None:
        steps = "/".join(str(writer.steps) for writer in self.writers)
        self.done.append(f"{steps} {what}")

    # Disturbances

    def kill_bridge(self) -> None:
        self.bridge.kill()
        time.sleep(self.rng.uniform(0, 1))
        self.bridge.start()

    def restart_bridge(self) -> None:
        assert self.bridge.terminate() == 0, self.bridge.said()[-3000:]
        self.bridge.start()

    def freeze_bridge(self) -> None:
        self.bridge.process.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.5, 3))
        self.bridge.process.send_signal(signal.SIGCONT)

    def kill_lake(self) -> None:
        """The next one starts at once, maybe beside the JVM of the last one."""
        self.lake.kill(alone=self.rng.random() < 0.5)
        self.lake.start()
        self.lake.wait_family_gone()

    def leave_lake_dead(self) -> None:
        """Let changes pile up, so that the next batch is beyond the lake's thresholds."""
        self.lake.kill(alone=False)
        self._until_step(min(self.plan.steps, max(writer.steps for writer in self.writers) + 4))
        self.lake.start()

    def restart_lake(self) -> None:
        assert self.lake.terminate() == 0, self.lake.said()[-3000:]
        self.lake.start()

    def freeze_lake(self) -> None:
        os.killpg(self.lake.process.pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.5, 3))
        os.killpg(self.lake.process.pid, signal.SIGCONT)

    def restart_nats(self) -> None:
        self.nats.restart()

    def kill_nats(self) -> None:
        self.nats.kill()
        self.nats.start()

    def resync_some(self) -> None:
        """Have mirrors rebuilt in the middle of everything."""
        for writer in self.writers:
            tables = [table for table in writer.world.tables if not table.partitions and table.key]
            table = self.rng.choice(tables)
            try:
                self.lake.resync(table.sql if table.schema != "public" else table.name)
            except LakeError as error:
                self._note(f"no resync of {table.sql}: {error}")

    # The end of it

    def quiesce(self) -> None:
        """Wait until the lake has everything, and no mirror waits for a snapshot."""
        self.connection.execute("UPDATE moment SET n = n + 1 WHERE w = 'z'")
        row = self.connection.execute("SELECT n FROM moment WHERE w = 'z'").fetchone()
        assert row is not None
        last = self._publish_last()
        self._until(lambda: self._reached(row[0], last), "the lake to have everything")

    def _publish_last(self) -> LakeName:
        """Publish a table without rows: who tells of it has seen all DDL before it."""
        self.published += 1
        name = LakeName("public", f"z_last_{self.published}")
        self.connection.execute(f"CREATE TABLE {name} (nothing int)".encode())
        self.connection.execute(publish(str(name)).encode())
        return name

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            self._tend_lake()
            assert self.bridge.process.poll() is None, self.bridge.said()[-3000:]
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}:\n{self.report([])}")
            time.sleep(0.5)

    def _tend_lake(self) -> None:
        """Do what a supervisor does: start it again if it ended because NATS was away."""
        if self.lake.process.poll() == NatsUnreachable.exit_code:
            self._note("the lake ended without NATS, and is started again")
            self.lake.start()
        self.lake.check()

    def _reached(self, moment: int, last: LakeName) -> bool:
        with self.view() as view:
            if view is None:
                return False
            found = view.moment()
            if found.get("z") != moment or view.applied() < self._stream_end():
                return False
            states = view.states()
            return last in states and all(state.kind != "loading" for state in states.values())

    def _stream_end(self) -> int:
        async def end() -> int:
            async with administer(self.nats.url) as js:
                return int((await js.stream_info(CDC_STREAM.name)).state.last_seq)

        return asyncio.run(end())

    @contextmanager
    def view(self) -> Iterator[LakeView | None]:
        try:
            view = LakeView(self.lake)
        except LakeError:
            yield None
            return
        try:
            yield view
        finally:
            view.close()

    def tables(self) -> list[TableVersion]:
        """Every published table as PostgreSQL has it now."""
        return [
            table
            for writer in self.writers
            for table in read_tables(self.connection, writer.letter).values()
        ]

    def judge(self) -> list[Finding]:
        """Hold mirrors, a sample of cuts and all change logs against PostgreSQL."""
        changes = self.committed.read(self.connection)
        with self.view() as view:
            assert view is not None
            found = judge_mirrors(self.connection, view, self.tables(), ALLOWED)
            found += judge_gone(view, published_names(self.connection))
            cuts = CutJudge(self.connection, view, [writer.history for writer in self.writers])
            known = cuts.cuts()
            for cut in self.rng.sample(known, min(len(known), self.plan.sampled_cuts)):
                found += cuts.judge(cut)
            names = History("m")
            names.note_columns(self.connection)
            attnums = dict(names.attnums)
            for writer in self.writers:
                attnums.update(writer.history.attnums)
            found += LogJudge(self.connection, view, attnums).judge(changes)
            self._note(
                f"judged {len(self.tables())} tables, {len(changes)} changes, {len(known)} cuts:"
                f" {cuts.compared} tables at cuts compared, {cuts.unreadable} not readable"
            )
        return found

    def verify(self) -> list[Finding]:
        """Hear a second opinion: what `lake-consumer verify` says of all mirrors."""
        environ = {**self.postgres.env(), **self.nats.env(), "BRIDGE_PUBLICATION": PUBLICATION}
        done = self.lake.command("verify", "--json", environ=environ)
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert any(one["verdict"] == "equal" for one in said), done.stdout + done.stderr
        return [
            Finding(one["table"], f"`verify` says that it differs: {one}")
            for one in said
            if one["verdict"] == "differs"
        ]

    def succeeded(self) -> float:
        """The share of statements that PostgreSQL took."""
        outcomes = [item for writer in self.writers for item in writer.outcomes.items()]
        good = sum(count for (_, ok), count in outcomes if ok)
        return good / max(1, sum(count for _, count in outcomes))

    def report(self, findings: Sequence[Finding]) -> str:
        """All that is needed to debug it at once."""
        lines = [f"STORM_SEED={self.plan.seed} STORM_STEPS={self.plan.steps}", *self.done, ""]
        with self.view() as view:
            states = view.states() if view is not None else {}
        lines += [
            f"  {name}: {state.kind} {state.reason}"
            for name, state in states.items()
            if not state.is_live
        ]
        lines += [f"  session {session}" for session in open_sessions(self.connection)]
        for finding in findings:
            lines += [str(finding), f"  state: {describe(states, finding.table)}"]
        for table in list(dict.fromkeys(finding.table for finding in findings))[:6]:
            lines += [f"\n{table}: newest statements", *self._told(table)]
            lines += [f"{table}: announced", *self._announced(table)]
        return "\n".join(lines)

    def _announced(self, table: str) -> list[str]:
        """What the stream says of a table's shape: sequence, revision, columns."""
        token = TableName(*table.split(".", 1)).token
        return [
            f"    {message.sequence} commit {message.fields['commit_lsn']:X}"
            f" revision {message.fields['schema_revision']}"
            f" relation {message.fields['relation_id']}"
            f"{' rewritten' if message.fields.get('rewritten') else ''} "
            + ", ".join(
                f"{c['position']} {c['name']} {c['type']}" for c in message.fields["columns"]
            )
            for message in self._stream()
            if message.subject == f"cdc.{token}.schema"
        ]

    def _stream(self) -> list[StoredMessage]:
        if not self.read:
            self.read += read_stream(self.nats.url)
        return self.read

    def _told(self, table: str) -> list[str]:
        name = table.split(".", 1)[1]
        for writer in self.writers:
            if name.startswith(writer.letter):
                return [f"    {line}" for line in writer.told_of(writer.label_of(name))]
        return []


ALLOWED = ("which Iceberg cannot do in place",)
"""Reasons for which a mirror may be parked at the end."""

Disturbance = Callable[[Storm], None]
ALWAYS: tuple[Disturbance, ...] = (
    Storm.resync_some,
    Storm.kill_bridge,
    Storm.leave_lake_dead,
    Storm.freeze_bridge,
    Storm.restart_nats,
)
SOMETIMES: tuple[Disturbance, ...] = (
    Storm.kill_bridge, Storm.restart_bridge, Storm.freeze_bridge, Storm.kill_lake,
    Storm.leave_lake_dead, Storm.restart_lake, Storm.freeze_lake, Storm.restart_nats,
    Storm.kill_nats, Storm.resync_some,
)  # fmt: skip


def plan_disturbances(rng: random.Random, count: int) -> list[Disturbance]:
    """Those that no storm goes without first, in random order, then any."""
    first = list(ALWAYS)
    rng.shuffle(first)
    return [*first, *(rng.choice(SOMETIMES) for _ in range(count))][:count]


@contextmanager
def brewing(plan: Plan, server_folder: Path, folder: Path) -> Iterator[Storm]:
    """Everything a storm needs, running, with the first tables in place."""
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(server_folder / "pg", durable=False))
        nats = stack.enter_context(EmbeddedNats(server_folder / "nats"))
        connection = stack.enter_context(connect(postgres.dsn()))
        writers = set_up(connection, postgres.dsn(), plan)
        prepare_database(postgres)
        bridge = BridgeProcess(
            {**postgres.env(), **nats.env()},
            *("--slot", SLOT, "--pub", PUBLICATION, "--durability", "acked"),
            *("--catalog-poll", "1"),
            log=folder / "bridge.log",
        )
        stack.enter_context(bridge)
        bridge.wait_streaming()
        # Nobody writes yet: both slots begin at the same place in the history.
        committed = CommittedChanges(connection)
        lake = stack.enter_context(
            LakeProcess(folder, nats.env(), "--interval", "0.2", "--verbose")
        )
        lake.start()
        rng = random.Random(f"{plan.seed}-disturbances")
        storm = Storm(plan, postgres, nats, bridge, lake, writers, connection, committed, rng)
        if plan.seed % 2 == 0:
            # Else the lake meets tables whose history is in the stream already.
            storm.quiesce()
        yield storm


def prepare_database(postgres: EmbeddedPostgres) -> None:
    """Run `init.sh`, which also installs what reports DDL in the WAL where it has that."""
    environ = {
        **os.environ,
        **postgres.psql_env(),
        "POSTGRES_BRIDGE_PASSWORD": "storm",
        "BRIDGE_PUBLICATION": PUBLICATION,
        "BRIDGE_TABLES": "moment",
    }
    script = Path(__file__).parents[2] / "init.sh"
    done = subprocess.run(
        ["sh", str(script)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def set_up(connection: Connection, dsn: str, plan: Plan) -> list[Writer]:
    connection.execute("CREATE SEQUENCE storm_counter")
    connection.execute("CREATE TABLE moment (w text PRIMARY KEY, n int)")
    connection.execute("INSERT INTO moment VALUES ('z', 0)")
    connection.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE moment"
        " WITH (publish_via_partition_root = true)".encode()
    )
    writers = [Writer(dsn, letter, plan.seed, kinds, plan.capabilities) for letter, kinds in KINDS]
    for writer in writers:
        writer.set_up(connection)
    return writers

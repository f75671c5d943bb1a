"""The servers and the bridge of a benchmark, and what there is to ask them.

PostgreSQL holds one slot, `origin`, made before the load was written. Each round reads a copy of
it, so every reader of a round gets the same WAL; the bridge gets a NATS server of its own each
time, because a stream takes a table from one slot only.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import LiteralString

import nats
import psycopg
from nats.js.api import RawStreamMsg, StreamInfo
from psycopg.sql import SQL, Identifier

from benchmarks.measure import settle
from benchmarks.scenario import Wrong
from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from schemas.streams import CDC_STREAM
from tests.support.bridge import BridgeProcess

PUBLICATION = "bench"
END = "bench_end"
"""The prefix of the logical message that ends a load: when it is stored, everything is."""

PATIENCE_SECONDS = 1_800.0


class Stack:
    """One PostgreSQL, and bridges over it one after the other."""

    def __init__(self, folder: Path, postgres: EmbeddedPostgres) -> None:
        self.folder = folder
        self.postgres = postgres
        self.connection = psycopg.connect(postgres.dsn(), autocommit=True)

    def execute(self, statement: LiteralString) -> None:
        self.connection.execute(SQL(statement))

    def ask(self, statement: LiteralString, *values: object) -> tuple[object, ...]:
        found = self.connection.execute(SQL(statement), values).fetchone()
        if found is None:
            raise Wrong(f"no answer to {statement}")
        return found

    def publish(self, tables: Sequence[str] = ()) -> None:
        """Publish these tables, or every table, from now on."""
        named = SQL("TABLE {}").format(SQL(", ").join(map(Identifier, tables)))
        self.connection.execute(
            SQL("CREATE PUBLICATION {} FOR {}").format(
                Identifier(PUBLICATION), named if tables else SQL("ALL TABLES")
            )
        )
        self.execute("SELECT pg_create_logical_replication_slot('origin', 'pgoutput')")

    def forget_wal(self) -> None:
        """Let the load begin here: what was written before is not read again."""
        self.ask("SELECT pg_replication_slot_advance('origin', pg_current_wal_flush_lsn())")

    def end_load(self) -> str:
        """Mark the end of the load and give the LSN behind it."""
        self.ask("SELECT pg_logical_emit_message(true, %s, '')", END)
        self.execute("CHECKPOINT")
        return str(self.ask("SELECT pg_current_wal_flush_lsn()")[0])

    @contextmanager
    def slot(self) -> Iterator[str]:
        """Give a slot that stands where the load begins."""
        name = f"round_{secrets.token_hex(4)}"
        self.ask("SELECT pg_copy_logical_replication_slot('origin', %s)", name)
        try:
            yield name
        finally:
            wait_until(lambda: not self._is_active(name), "the slot to be free")
            self.ask("SELECT pg_drop_replication_slot(%s)", name)

    def _is_active(self, slot: str) -> bool:
        statement: LiteralString = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return bool(self.ask(statement, slot)[0])

    def walsender(self, slot: str) -> tuple[int, datetime]:
        """Give the process that serves a slot, and when its client connected."""
        pid, since = self.ask(
            "SELECT pid, backend_start FROM pg_stat_activity WHERE pid ="
            " (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s)",
            slot,
        )
        if not isinstance(pid, int) or not isinstance(since, datetime):
            raise Wrong(f"nobody reads slot {slot}")
        return pid, since

    @contextmanager
    def bridge(
        self, *flags: str, environ: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[RunningBridge]:
        """Run a bridge into a NATS server of its own, from where the load begins."""
        with self.slot() as slot, temporary_folder() as folder, EmbeddedNats(folder) as server:
            settle()
            process = BridgeProcess(
                {**self.postgres.env(), **server.env(), **environ},
                *("--slot", slot, "--pub", PUBLICATION, "--durability", "acked", *flags),
                log=self.folder / f"{slot}.log",
            )
            with process, Stream(server.url) as stream:
                wait_until(process.is_streaming, "streaming")
                yield RunningBridge(slot, process, server, stream)


class RunningBridge:
    """A bridge that streams, with all there is to ask about it."""

    def __init__(
        self, slot: str, process: BridgeProcess, server: EmbeddedNats, stream: Stream
    ) -> None:
        self.slot = slot
        self.process = process
        self.server = server
        self.stream = stream

    @property
    def pid(self) -> int:
        return self.process.process.pid

    @property
    def nats_pid(self) -> int:
        if self.server.process is None:
            raise Wrong("NATS is gone")
        return self.server.process.pid

    def wait_stored(self) -> datetime:
        """Wait for the end of the load and say when it was stored."""
        subject = f"cdc._message.{END}"
        # The time is the message's own; asking more often would take CPU from who is measured.
        stored = lambda: self.is_alive() and subject in self.stream.counts(subject)  # noqa: E731
        wait_until(stored, "the end", every=0.25)
        return self.stream.stored_at(subject)

    def is_alive(self) -> bool:
        if self.process.process.poll() is not None:
            raise Wrong(f"the bridge ended:\n{self.process.said()[-2_000:]}")
        return True

    def demand(self, expected: Mapping[str, int]) -> None:
        """Make sure the stream holds what was committed: no change more, no change less."""
        counts = self.stream.counts("cdc.*.*")
        changes = {
            subject: count
            for subject, count in counts.items()
            if not subject.endswith(".schema") and not subject.startswith("cdc._message.")
        }
        if changes != dict(expected):
            raise Wrong(f"the stream holds {changes}, and {dict(expected)} was committed")


class Stream:
    """The CDC stream, asked directly."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()

    def __enter__(self) -> Stream:
        self._client = self._runner.run(nats.connect(self._url))
        self._js = self._client.jetstream()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def counts(self, subjects: str) -> dict[str, int]:
        """Give how many messages the stream holds, by subject."""
        info: StreamInfo = self._runner.run(
            self._js.stream_info(CDC_STREAM.name, subjects_filter=subjects)
        )
        return info.state.subjects or {}

    def stored_at(self, subject: str) -> datetime:
        """Give when the last message of a subject was stored."""
        stored = self._last(subject).time
        if stored is None:
            raise Wrong(f"{subject} has no time")
        return stored

    def last_body(self, subject: str) -> bytes:
        return self._last(subject).data or b""

    def _last(self, subject: str) -> RawStreamMsg:
        return self._runner.run(self._js.get_last_msg(CDC_STREAM.name, subject))


@contextmanager
def running_stack() -> Iterator[Stack]:
    """Start a PostgreSQL whose disk does not decide: nothing is synced while a load is written."""
    with temporary_folder() as folder:
        settings = {"max_wal_size": "16GB", "shared_buffers": "256MB", "checkpoint_timeout": "1h"}
        with EmbeddedPostgres(folder / "postgres", durable=False, settings=settings) as postgres:
            stack = Stack(folder, postgres)
            try:
                yield stack
            finally:
                stack.connection.close()


def wait_until(reached: Callable[[], bool], what: str, every: float = 0.005) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise Wrong(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(every)

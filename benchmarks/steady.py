"""Steady load: how late a change arrives while the bridge is busy, and what it costs when idle.

The server writes at the asked rate by itself, so there is no load generator that takes the CPU it
measures. A process of its own receives what JetStream has stored, from a consumer, and takes the
age of each change: from its commit, by PostgreSQL's clock, to the socket that received it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from psycopg.sql import SQL, Literal

from benchmarks.loads import create_table, insert
from benchmarks.measure import CpuMeter, peak_memory_mb
from benchmarks.scenario import Family, Figures, Scenario, Setting, Target, Wrong
from benchmarks.stack import RunningBridge, Stack, running_stack
from schemas.streams import CDC_STREAM

INBOX = "bench.received"
LEAST_SECONDS = 2.0
SETTLE_SECONDS = 2.0


def steady(
    rate: int, per_transaction: int, seconds: float
) -> Callable[[Setting], Iterator[Figures]]:
    """Measure latency at a rate of changes, committed so many at a time."""

    def measure(setting: Setting) -> Iterator[Figures]:
        lasting = max(seconds * setting.scale, LEAST_SECONDS)
        transactions = int(rate * lasting) // per_transaction
        with running_stack() as stack:
            create_table(stack.connection, "customers")
            stack.publish()
            for number in range(setting.rounds):
                yield measure_round(stack, rate, per_transaction, transactions, number)

    return measure


def measure_round(
    stack: Stack, rate: int, per_transaction: int, transactions: int, number: int
) -> Figures:
    changes = transactions * per_transaction
    stack.forget_wal()
    with stack.bridge() as bridge, listening(bridge, changes) as heard:
        meter = CpuMeter(bridge=bridge.pid, nats=bridge.nats_pid)
        first = number * changes
        seconds = write_steadily(stack, rate, per_transaction, transactions, first)
        shares = meter.shares()
        stack.end_load()
        bridge.wait_stored()
        bridge.demand({"cdc.customers.insert": changes})
        received = heard()
        return {
            "asked_per_s": rate,
            "written_per_s": changes / seconds,
            **received,
            **shares,
            "bridge_memory_mb": peak_memory_mb(bridge.pid),
        }


def write_steadily(
    stack: Stack, rate: int, per_transaction: int, transactions: int, first: int
) -> float:
    """Let the server insert at a rate by its own clock; give how long it took."""
    rows = insert(
        "customers",
        SQL("{} + i * {} + 1").format(Literal(first), Literal(per_transaction)),
        SQL("{} + (i + 1) * {}").format(Literal(first), Literal(per_transaction)),
    )
    # Due times are counted from the start, so one late commit does not make all others late.
    program = SQL(
        "DO $do$ DECLARE start timestamptz := clock_timestamp(); BEGIN"
        " FOR i IN 0..{last} LOOP"
        "  PERFORM pg_sleep(greatest(0, extract(epoch FROM start - clock_timestamp())"
        "   + i * {every}));"
        "  {rows}; COMMIT;"
        " END LOOP; END $do$"
    ).format(last=Literal(transactions - 1), every=Literal(per_transaction / rate), rows=rows)
    started = time.perf_counter()
    stack.connection.execute(program)
    # The last transaction has its time too.
    return max(time.perf_counter() - started, transactions * per_transaction / rate)


@contextmanager
def listening(bridge: RunningBridge, changes: int) -> Iterator[Callable[[], dict[str, float]]]:
    """Receive changes in a process of its own; ask for its figures when all is stored."""
    command = [sys.executable, "-m", "benchmarks.listener", str(bridge.server.port), INBOX]
    with subprocess.Popen([*command, str(changes)], stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise Wrong("the listener did not start")
            asyncio.run(_deliver(bridge.server.url))

            def hear() -> dict[str, float]:
                said: dict[str, Any] = json.loads(process.communicate()[0])
                if (count := said.pop("count")) != changes:
                    raise Wrong(f"{count} of {changes} changes were received")
                return said

            yield hear
        finally:
            process.kill()


async def _deliver(url: str) -> None:
    """Make a consumer that sends every change it stores to the listener."""
    config = ConsumerConfig(
        deliver_subject=INBOX,
        deliver_policy=DeliverPolicy.NEW,
        ack_policy=AckPolicy.NONE,
        filter_subject="cdc.customers.insert",
    )
    async with await nats.connect(url) as client:
        await client.jetstream().add_consumer(CDC_STREAM.name, config)


def idle(seconds: float) -> Callable[[Setting], Iterator[Figures]]:
    """Measure what a bridge costs while nobody writes."""

    def measure(setting: Setting) -> Iterator[Figures]:
        lasting = max(seconds * setting.scale, LEAST_SECONDS)
        with running_stack() as stack:
            create_table(stack.connection, "customers")
            stack.publish()
            for _ in range(setting.rounds):
                with stack.bridge() as bridge:
                    time.sleep(SETTLE_SECONDS)
                    meter = CpuMeter(bridge=bridge.pid, nats=bridge.nats_pid)
                    time.sleep(lasting)
                    memory = peak_memory_mb(bridge.pid)
                    yield {"asked_per_s": 0, **meter.shares(), "bridge_memory_mb": memory}
                    bridge.demand({})

    return measure


COLUMNS = {
    "asked_per_s": "changes/s asked",
    "written_per_s": "written",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "most_ms": "longest ms",
    "bridge_cpu_percent": "bridge % of a core",
    "nats_cpu_percent": "NATS % of a core",
    "bridge_memory_mb": "memory MB",
}

FAMILY = Family(
    title="Steady load: from commit to received",
    columns=COLUMNS,
    plot="steady",
    scenarios=(
        Scenario(
            name="steady-1000",
            about="1,000 inserts a second, 10 per transaction",
            measure=steady(1_000, 10, seconds=20),
            targets=(
                Target("written_per_s", "at least", 990),
                Target("p50_ms", "at most", 5),
                Target("p99_ms", "at most", 25),
            ),
        ),
        Scenario(
            name="steady-10000",
            about="10,000 inserts a second, 20 per transaction",
            measure=steady(10_000, 20, seconds=20),
            targets=(
                Target("written_per_s", "at least", 9_900),
                Target("p99_ms", "at most", 100),
            ),
        ),
        Scenario(
            name="idle",
            about="nobody writes",
            measure=idle(seconds=20),
            targets=(Target("bridge_cpu_percent", "at most", 1),),
        ),
    ),
)

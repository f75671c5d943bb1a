"""Snapshots: a whole table on request, stored and acknowledged, beside what COPY alone costs.

The clock runs from the request until `init.meta` is heard, which the bridge publishes only when
every chunk is stored. Then, off the clock, the stream is read as a consumer would: every chunk is
there, their rows are the table's, and their checksum is the one that was told.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import nats
from nats.aio.msg import Msg
from psycopg.sql import Literal

from benchmarks.loads import create_table, in_transactions, insert
from benchmarks.measure import CpuMeter, peak_memory_mb
from benchmarks.scenario import Family, Figures, Scenario, Setting, Target, Wrong
from benchmarks.stack import PATIENCE_SECONDS, RunningBridge, Stack, running_stack, wait_until
from schemas.snapshots import Checksum
from schemas.streams import INIT_STREAM

TABLE = "customers"
REPLY_SECONDS = 60.0


def snapshot(rows: int, readers: int) -> Callable[[Setting], Iterator[Figures]]:
    """Measure a snapshot of so many rows beside psql's COPY of the same table."""

    def measure(setting: Setting) -> Iterator[Figures]:
        count = setting.scaled(rows)
        with running_stack() as stack:
            fill(stack, count)
            for _ in range(setting.rounds):
                yield measure_round(stack, count, readers)

    return measure


def fill(stack: Stack, rows: int) -> None:
    """Write the table and let it settle, so that no reader pays for what the writer left."""
    create_table(stack.connection, TABLE)
    in_transactions(stack.connection, 1, insert(TABLE, Literal(1), Literal(rows)))
    stack.execute("VACUUM (FREEZE, ANALYZE) customers")
    stack.publish()
    stack.execute("CHECKPOINT")


def measure_round(stack: Stack, rows: int, readers: int) -> Figures:
    before = copy_seconds(stack)
    with stack.bridge("--snapshot-readers", str(readers)) as bridge:
        wait_until(lambda: 'msg="serving snapshots"' in bridge.process.said(), "snapshots")
        meter = CpuMeter(bridge=bridge.pid, nats=bridge.nats_pid)
        seconds, meta = asyncio.run(take(bridge.server.url))
        figures = {
            "rows": rows,
            "rows_per_s": rows / seconds,
            **meter.microseconds_each(rows),
            "bridge_memory_mb": peak_memory_mb(bridge.pid),
            "chunks": meta["batch_count"],
        }
        asyncio.run(demand(bridge, meta, rows))
    # On both sides of the snapshot: a second of a shared machine may be twice as fast as the next.
    copying = (before + copy_seconds(stack)) / 2
    return {**figures, "copy_per_s": rows / copying, "ratio": copying / seconds}


def copy_seconds(stack: Stack) -> float:
    """The table's own pace: `psql` and its COPY into /dev/null."""
    psql = stack.postgres.binaries / "psql"
    command = [str(psql), "--quiet", "--no-psqlrc", "--command", f"COPY {TABLE} TO STDOUT"]
    started = time.perf_counter()
    subprocess.run(
        command,
        env={**os.environ, **stack.postgres.psql_env()},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


async def take(url: str, table: str = TABLE) -> tuple[float, dict[str, Any]]:
    """Ask for a snapshot; give how long it took and its meta."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Msg] = loop.create_future()

    async def end(message: Msg) -> None:
        if not ended.done():
            ended.set_result(message)

    async with await nats.connect(url) as client:
        for kind in ("meta", "error"):
            await client.subscribe(f"init.{kind}.{table}", cb=end)
        started = time.perf_counter()
        answer = await client.request(f"snapshot.request.{table}", timeout=REPLY_SECONDS)
        reply = json.loads(answer.data)
        if reply["status"] != "accepted":
            raise Wrong(f"the bridge refused a snapshot: {reply}")
        message = await asyncio.wait_for(ended, PATIENCE_SECONDS)
        seconds = time.perf_counter() - started
    meta: dict[str, Any] = msgpack.unpackb(message.data)
    if message.subject != f"init.meta.{table}" or meta["snapshot_id"] != reply["snapshot_id"]:
        raise Wrong(f"the snapshot failed: {meta}")
    return seconds, meta


async def demand(bridge: RunningBridge, meta: dict[str, Any], rows: int) -> None:
    """Make sure the stream holds the table: every chunk, every row once, and the checksum."""
    checksum, chunks, found = Checksum(), 0, 0
    async with await nats.connect(bridge.server.url) as client:
        subject = f"init.snap.{TABLE}.{meta['snapshot_id']}.*"
        stored = await client.jetstream().subscribe(
            subject, stream=INIT_STREAM.name, ordered_consumer=True
        )
        while chunks < meta["batch_count"]:
            message = await stored.next_msg(timeout=REPLY_SECONDS)
            checksum.add(message.data)
            found += len(msgpack.unpackb(message.data)["data"])
            chunks += 1
        info = await client.jetstream().stream_info(INIT_STREAM.name, subjects_filter=subject)
    held = len(info.state.subjects or {})
    if (rows, rows, chunks, str(checksum)) != (found, meta["row_count"], held, meta["checksum"]):
        raise Wrong(f"{found} rows in {held} chunks of {rows}, and the meta says {meta}")


COLUMNS = {
    "rows": "rows",
    "rows_per_s": "rows/s",
    "copy_per_s": "`COPY` through psql",
    "ratio": "ratio",
    "bridge_cpu_us": "bridge us",
    "nats_cpu_us": "NATS us",
    "bridge_memory_mb": "memory MB",
    "chunks": "chunks",
}
_GUARDED = ("ratio",)

FAMILY = Family(
    title="Snapshot of a table",
    columns=COLUMNS,
    plot="snapshot",
    scenarios=(
        Scenario(
            name="snapshot-one",
            about="rows of 145 bytes, one reader",
            measure=snapshot(1_000_000, readers=1),
            targets=(Target("ratio", "at least", 0.5),),
            guarded=_GUARDED,
        ),
        Scenario(
            name="snapshot-two",
            about="the same with two readers",
            measure=snapshot(1_000_000, readers=2),
            guarded=_GUARDED,
        ),
        Scenario(
            name="snapshot-10m",
            about="ten times as many rows, one round",
            measure=snapshot(10_000_000, readers=1),
            targets=(Target("bridge_memory_mb", "at most", 150),),
            most_rounds=1,
        ),
    ),
)

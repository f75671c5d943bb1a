"""The lake: from a stream to verified mirrors and change logs, with Spark doing the work.

The ceiling of a drain is reading the same range of the stream with the lake's own reader and
throwing it away, on one core. Rates after the first batch leave out the JVM's warm-up; the overall
rate has it in.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.lakerun import BatchLine, LakeFolder, LakeProcess, following
from benchmarks.lakestream import StreamMaker, Truth
from benchmarks.lakeways import measure_ways
from benchmarks.measure import CpuMeter
from benchmarks.scenario import Family, Figures, Scenario, Setting, Target, Wrong
from examples.embedded import EmbeddedNats, temporary_folder
from lake_consumer.jetstream.connection import connect
from lake_consumer.jetstream.reader import RangeReader
from lake_consumer.natsoptions import NatsOptions
from schemas.streams import CDC_STREAM

DRAIN_CHANGES, DRAIN_ROWS = 2_000_000, 1_000_000
TABLES, TABLE_ROWS, TABLE_CHANGES = 20, 100_000, 1_000_000
SIZE_CHANGES, SIZES = 500_000, (1_000_000, 10_000_000)
SIZE_BATCH = 100_000
FRESH_RATE, FRESH_SECONDS, FRESH_WARM_UP = 1_000, 60, 60


@contextmanager
def _server(folder: Path) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(folder / f"nats-{secrets.token_hex(4)}") as server:
        yield server


def _pid(server: EmbeddedNats) -> int:
    if server.process is None:
        raise Wrong("NATS is gone")
    return server.process.pid


def read_only(server: EmbeddedNats, messages: int) -> float:
    """How many messages a second the plain reader reads, into nothing."""

    async def read() -> float:
        client = await connect(NatsOptions(url=server.url))
        started = time.perf_counter()
        async for _ in RangeReader(client, CDC_STREAM.name, 1, messages).blocks():
            pass
        seconds = time.perf_counter() - started
        await client.close()
        return messages / seconds

    return asyncio.run(read())


def warm_rate(batches: list[BatchLine]) -> float:
    """Messages a second after the first batch; of the only one where there are no more."""
    rest = batches[1:] or batches
    return sum(batch.messages for batch in rest) / sum(batch.seconds for batch in rest)


def _drain(tables: int, rows: int, changes: int, *flags: str) -> Iterator[Figures]:
    truths = [Truth(f"customers_{number}", rows) for number in range(tables)]
    with temporary_folder() as folder, _server(folder) as server:
        lake = LakeFolder(folder / "lake")
        lake.fill({truth.table: rows for truth in truths})
        messages = StreamMaker(server, truths).write(changes)
        ceiling = read_only(server, messages)
        meter = CpuMeter(nats=_pid(server))
        process = LakeProcess(lake, server, "drain", *flags)
        batches = process.finish()
        for truth in truths:
            lake.demand(truth)
        rate = warm_rate(batches)
        seconds = sum(batch.seconds for batch in batches)
        yield {
            "changes": sum(truth.changes for truth in truths),
            "changes_per_s": rate,
            "overall_per_s": messages / seconds,
            "reader_per_s": ceiling,
            "ratio": rate / ceiling,
            "batches": len(batches),
            "read_share": sum(batch.read_seconds for batch in batches) / seconds,
            "write_share": sum(batch.write_seconds for batch in batches) / seconds,
            **meter.microseconds_each(messages),
            **{f"{kind}_cpu_us": cpu / messages * 1e6 for kind, cpu in process.cpu_seconds.items()},
            "memory_mb": process.peak_mb,
        }


def measure_drain(setting: Setting) -> Iterator[Figures]:
    for _ in range(setting.rounds):
        yield from _drain(1, setting.scaled(DRAIN_ROWS), setting.scaled(DRAIN_CHANGES))


def measure_tables(setting: Setting) -> Iterator[Figures]:
    for _ in range(setting.rounds):
        rows, changes = setting.scaled(TABLE_ROWS), setting.scaled(TABLE_CHANGES)
        yield from _drain(TABLES, rows, changes)


def measure_size(setting: Setting) -> Iterator[Figures]:
    """Measure the same batches on a mirror and on one ten times as large."""
    batch = setting.scaled(SIZE_BATCH)
    for _ in range(setting.rounds):
        seconds: list[float] = []
        for rows in SIZES:
            truth = Truth("customers_0", setting.scaled(rows))
            with temporary_folder() as folder, _server(folder) as server:
                lake = LakeFolder(folder / "lake")
                lake.fill({truth.table: truth.rows})
                StreamMaker(server, [truth]).write(5 * batch)
                process = LakeProcess(lake, server, "drain", "--max-messages", str(batch))
                later = [line.seconds for line in process.finish()[2:]]
                lake.demand(truth)
                seconds.append(statistics.median(later))
        small, large = seconds
        yield {"small_batch_s": small, "large_batch_s": large, "size_ratio": large / small}


def measure_freshness(setting: Setting) -> Iterator[Figures]:
    """Write at a steady rate, and look when the newest change is to be seen in the mirror."""
    rows = setting.scaled(DRAIN_ROWS)
    for _ in range(setting.rounds):
        truth = Truth("customers_0", rows)
        with temporary_folder() as folder, _server(folder) as server:
            lake = LakeFolder(folder / "lake")
            lake.fill({truth.table: rows})
            maker = StreamMaker(server, [truth])
            maker.write(FRESH_RATE)
            with following(lake, server, "--interval", "1") as process:
                lags = _lags(maker, process, setting)
        yield {
            "freshness_p50_s": statistics.median(lags),
            "freshness_p95_s": sorted(lags)[int(len(lags) * 0.95)],
        }


def _lags(maker: StreamMaker, process: LakeProcess, setting: Setting) -> list[float]:
    """Seconds from a change's storing to the end of the batch that shows it, second by second."""
    warm, wanted = (max(int(s * setting.scale), 10) for s in (FRESH_WARM_UP, FRESH_SECONDS))
    written: list[tuple[int, float]] = []
    total = FRESH_RATE
    while not process.batches and process.process.poll() is None:
        time.sleep(0.1)
    for _ in range(warm + wanted):
        began = time.monotonic()
        total += maker.write(FRESH_RATE)
        written.append((total, time.monotonic()))
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
    deadline = time.monotonic() + 300
    while sum(batch.messages for batch in process.batches) < total:
        if time.monotonic() > deadline or process.process.poll() is not None:
            raise Wrong(f"the lake did not follow:\n{''.join(process.said)[-2_000:]}")
        time.sleep(0.1)
    return [_shown_at(process.batches, upto) - at for upto, at in written[warm:]]


def _shown_at(batches: list[BatchLine], upto: int) -> float:
    shown = 0
    for batch in batches:
        shown += batch.messages
        if shown >= upto:
            return batch.at
    raise Wrong("a change was never shown")


COLUMNS = {
    "changes": "changes",
    "changes_per_s": "changes/s warm",
    "overall_per_s": "overall",
    "reader_per_s": "plain reader",
    "ratio": "ratio",
    "read_share": "reading",
    "write_share": "writing",
    "jvm_cpu_us": "JVM us",
    "workers_cpu_us": "workers us",
    "nats_cpu_us": "NATS us",
    "memory_mb": "memory MB",
    "small_batch_s": "batch at 1 M rows s",
    "large_batch_s": "batch at 10 M rows s",
    "size_ratio": "ratio of sizes",
    "freshness_p50_s": "visible p50 s",
    "freshness_p95_s": "visible p95 s",
    "ours_batch_s": "batch our way s",
    "merge_batch_s": "batch by MERGE s",
    "open_rows_s": "rows for MERGE s",
    "merge_vs_ours": "MERGE / ours",
    "opened_merge_vs_ours": "rows and MERGE / ours",
}

FAMILY = Family(
    title="The lake",
    columns=COLUMNS,
    scenarios=(
        Scenario(
            name="lake-drain",
            about="60/30/10 onto one mirror of 1,000,000 rows, with its change log",
            measure=measure_drain,
            targets=(
                Target("changes_per_s", "at least", 50_000),
                Target("memory_mb", "at most", 4_096),
            ),
            guarded=("ratio",),
        ),
        Scenario(
            name="lake-tables",
            about="the same onto 20 mirrors of 100,000 rows at once",
            measure=measure_tables,
            targets=(Target("changes_per_s", "at least", 20_000),),
            guarded=("ratio",),
        ),
        Scenario(
            name="lake-size",
            about="batches of 100,000 changes on mirrors of 1,000,000 and of 10,000,000 rows",
            measure=measure_size,
            targets=(Target("size_ratio", "at most", 2),),
        ),
        Scenario(
            name="lake-freshness",
            about="1,000 changes/s into `run`: from stored to visible in the mirror",
            measure=measure_freshness,
            targets=(Target("freshness_p95_s", "at most", 10),),
        ),
        Scenario(
            name="lake-ways",
            about="100,000 outcomes, 60/30/10, onto 1,000,000 rows: our way and one SQL `MERGE`",
            measure=measure_ways,
        ),
    ),
)

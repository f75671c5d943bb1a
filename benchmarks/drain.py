"""Drains: a backlog waits in the slot, and the bridge stores it as fast as it can.

Both readers are timed from when they connect for replication: `pg_recvlogical` until it ends, the
bridge until the stream has stored the last message. CPU is counted from when the bridge streams,
so that starting Python is left out and everything per change is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from benchmarks import loads
from benchmarks.ceilings import raw_writer, recvlogical
from benchmarks.loads import Counts, Load
from benchmarks.measure import CpuMeter, cpu_seconds, peak_memory_mb
from benchmarks.scenario import Family, Figures, Scenario, Setting, Target
from benchmarks.stack import Stack, running_stack

PURE_PYTHON = {"BRIDGE_PURE_PYTHON": "1"}
NOTHING: Mapping[str, str] = {}


def drain(
    load: Load, changes: int, environ: Mapping[str, str] = NOTHING
) -> Callable[[Setting], Iterator[Figures]]:
    """Measure the drain of a load beside `pg_recvlogical` on the same WAL."""

    def measure(setting: Setting) -> Iterator[Figures]:
        with running_stack() as stack:
            load.prepare(stack.connection)
            stack.publish()
            expected = load.write(stack.connection, setting.scaled(changes))
            end_lsn = stack.end_load()
            for _ in range(setting.rounds):
                yield measure_round(stack, expected, end_lsn, environ)

    return measure


def measure_round(
    stack: Stack, expected: Counts, end_lsn: str, environ: Mapping[str, str]
) -> Figures:
    """Measure both ceilings and, between them, the bridge."""
    changes = sum(expected.values())
    reading = recvlogical(stack, changes, end_lsn)
    figures, body = drain_once(stack, expected, environ)
    writing = raw_writer(body, changes)
    rate, reads, writes = (
        figures["changes_per_s"],
        reading["recvlogical_per_s"],
        writing["writer_per_s"],
    )
    return {
        **figures,
        **reading,
        **writing,
        "ratio": rate / reads,
        "writer_ratio": rate / writes,
    }


def drain_once(
    stack: Stack, expected: Counts, environ: Mapping[str, str] = NOTHING
) -> tuple[Figures, bytes]:
    """Let a bridge drain the load once, and hold the stream against what was committed.

    Gives one of the bodies too, for a writer that sends the like.
    """
    changes = sum(expected.values())
    with stack.bridge(environ=environ) as bridge:
        meter = CpuMeter(bridge=bridge.pid, nats=bridge.nats_pid)
        walsender, connected_at = stack.walsender(bridge.slot)
        seconds = (bridge.wait_stored() - connected_at).total_seconds()
        figures = {
            "changes": changes,
            "changes_per_s": changes / seconds,
            **meter.microseconds_each(changes),
            "walsender_cpu_us": cpu_seconds(walsender) / changes * 1e6,
            "bridge_memory_mb": peak_memory_mb(bridge.pid),
        }
        bridge.demand(expected)
        return figures, bridge.stream.last_body(next(iter(expected)))


COLUMNS = {
    "changes": "changes",
    "changes_per_s": "changes/s",
    "recvlogical_per_s": "`pg_recvlogical`",
    "ratio": "ratio",
    "writer_per_s": "raw writer",
    "writer_ratio": "ratio",
    "bridge_cpu_us": "bridge us",
    "nats_cpu_us": "NATS us",
    "walsender_cpu_us": "walsender us",
    "bridge_memory_mb": "memory MB",
}
_GUARDED = ("ratio",)

FAMILY = Family(
    title="Drain of a backlog",
    columns=COLUMNS,
    plot="drain",
    scenarios=(
        Scenario(
            name="drain-inserts",
            about="inserts of 150 bytes, 100 per transaction",
            measure=drain(loads.inserts(loads.PER_TRANSACTION), 500_000),
            targets=(
                Target("ratio", "at least", 0.9),
                Target("bridge_cpu_us", "at most", 7),
                Target("bridge_memory_mb", "at most", 80),
            ),
            guarded=_GUARDED,
        ),
        Scenario(
            name="drain-mix",
            about="60 % inserts, 30 % updates, 10 % deletes",
            measure=drain(loads.MIX, 500_000),
            targets=(Target("ratio", "at least", 0.8),),
            guarded=_GUARDED,
        ),
        Scenario(
            name="drain-wide",
            about="inserts of 60 columns",
            measure=drain(loads.WIDE, 100_000),
            targets=(Target("ratio", "at least", 0.8),),
            guarded=_GUARDED,
        ),
        Scenario(
            name="drain-tiny",
            about="transactions of one insert",
            measure=drain(loads.inserts(1), 200_000),
            guarded=_GUARDED,
        ),
        Scenario(
            name="drain-huge",
            about="one transaction of inserts",
            measure=drain(loads.inserts(None), 500_000),
            guarded=_GUARDED,
        ),
        Scenario(
            name="drain-python",
            about="`drain-inserts` where nothing is compiled",
            measure=drain(loads.inserts(loads.PER_TRANSACTION), 500_000, PURE_PYTHON),
            guarded=_GUARDED,
        ),
    ),
)

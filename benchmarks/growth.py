"""Growth: what a change costs, and how much memory it takes, must not depend on how many there are.

The same rows are drained from backlogs ten times as long each, and spread over ten times as many
tables each. CPU per change is the bridge's own and holds up on a busy machine. `flatness` is that
of the smallest point through that of the largest: 1 is flat, and less says that cost grows. The
largest backlogs are only measured when asked: `BENCH_GROWTH_MOST=10000000 make bench`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from benchmarks import loads
from benchmarks.drain import drain_once
from benchmarks.loads import Counts, Load
from benchmarks.scenario import Family, Figures, Scenario, Setting, Target
from benchmarks.stack import Stack, running_stack

CHANGES = (10_000, 100_000, 1_000_000, 10_000_000)
TABLES = (1, 10, 100, 1_000)
CHANGES_OVER_TABLES = 1_000_000
MOST_CHANGES = int(os.environ.get("BENCH_GROWTH_MOST", "1000000"))

Point = tuple[int, Load, int]
"""What grows, the load, and how many changes of it."""


def asked_changes(most: int = MOST_CHANGES) -> tuple[int, ...]:
    return tuple(size for size in CHANGES if size <= most)


def growth(points: Sequence[Point]) -> Callable[[Setting], Iterator[Figures]]:
    """Measure every point in each round, so that all of them see the same machine."""

    def measure(setting: Setting) -> Iterator[Figures]:
        with ExitStack() as stacks:
            ready = {
                size: _load(stacks.enter_context(running_stack()), load, setting.scaled(changes))
                for size, load, changes in points
            }
            for _ in range(setting.rounds):
                yield sum_up({size: drain_once(*there)[0] for size, there in ready.items()})

    return measure


def _load(stack: Stack, load: Load, changes: int) -> tuple[Stack, Counts]:
    load.prepare(stack.connection)
    stack.publish()
    expected = load.write(stack.connection, changes)
    stack.end_load()
    return stack, expected


def sum_up(points: Mapping[int, Figures]) -> Figures:
    """Put the points side by side and compare the ends."""
    figures: dict[str, float] = {}
    for size, found in points.items():
        figures[f"cpu_us_{size}"] = found["bridge_cpu_us"]
        figures[f"memory_mb_{size}"] = found["bridge_memory_mb"]
    ends = points[min(points)], points[max(points)]
    cpu, memory = ([end[name] for end in ends] for name in ("bridge_cpu_us", "bridge_memory_mb"))
    return {
        **figures,
        "flatness": cpu[0] / cpu[1],
        "memory_growth": memory[1] / memory[0],
    }


def columns(sizes: Sequence[int]) -> dict[str, str]:
    return {
        **{f"cpu_us_{size}": f"us at {size:,}" for size in sizes},
        "flatness": "flatness",
        **{f"memory_mb_{size}": f"MB at {size:,}" for size in sizes},
        "memory_growth": "memory grows to",
    }


_GUARDED = ("flatness",)
_TARGETS = (Target("flatness", "at least", 0.8), Target("memory_growth", "at most", 1.5))

OVER_CHANGES = Family(
    title="Growth with the number of changes",
    columns=columns(CHANGES),
    plot="growth-changes",
    scenarios=(
        Scenario(
            name="growth-changes",
            about="CPU per change and memory over the length of the backlog",
            measure=growth([(n, loads.inserts(loads.PER_TRANSACTION), n) for n in asked_changes()]),
            targets=_TARGETS,
            guarded=_GUARDED,
        ),
    ),
)
OVER_TABLES = Family(
    title="Growth with the number of tables",
    columns=columns(TABLES),
    plot="growth-tables",
    scenarios=(
        Scenario(
            name="growth-tables",
            about=f"{CHANGES_OVER_TABLES:,} changes over so many tables",
            measure=growth([(n, loads.over_tables(n), CHANGES_OVER_TABLES) for n in TABLES]),
            targets=_TARGETS,
            guarded=_GUARDED,
        ),
    ),
)

"""Which plot a family has: one line per plot, and what stands in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import growth, results
from benchmarks.charts import Series, bars, lines
from benchmarks.families import FAMILIES
from benchmarks.results import FOLDER, Result
from benchmarks.scenario import Family

Drawing = Callable[[Sequence[Result]], str]


def compare(title: str, **figures: str) -> Drawing:
    """Draw figures of all scenarios side by side; name of the figure to what it is called."""

    def draw(found: Sequence[Result]) -> str:
        shown = [result for result in found if all(f in result.median for f in figures)]
        series = [Series(name, [r.median[f] for r in shown]) for f, name in figures.items()]
        return bars(title, [r.scenario for r in shown], series) if shown else ""

    return draw


def grow(title: str, sizes: Sequence[int]) -> Drawing:
    """Draw CPU and memory over what grows, as far as it was measured."""

    def draw(found: Sequence[Result]) -> str:
        median = found[0].median
        measured = [size for size in sizes if f"cpu_us_{size}" in median]
        series = [
            Series(name, [median[f"{figure}_{size}"] for size in measured])
            for figure, name in (("cpu_us", "us of CPU per change"), ("memory_mb", "memory, MB"))
        ]
        return lines(title, measured, series) if len(measured) > 1 else ""

    return draw


PLOTS: Mapping[str, Drawing] = {
    "drain": compare(
        "Drain of a backlog, changes/s",
        changes_per_s="bridge",
        recvlogical_per_s="pg_recvlogical",
        writer_per_s="raw JetStream writer",
    ),
    "steady": compare(
        "Steady load, milliseconds from commit to received", p50_ms="p50", p99_ms="p99"
    ),
    "growth-changes": grow("Cost over the number of changes", growth.CHANGES),
    "growth-tables": grow("Cost over the number of tables", growth.TABLES),
    "snapshot": compare(
        "Snapshot of a table, rows/s", rows_per_s="bridge", copy_per_s="COPY through psql"
    ),
    "compression": compare(
        "Compression, times smaller",
        alone_times="without dictionary",
        dictionary_times="with dictionary",
    ),
}


def draw(folder: Path = FOLDER) -> None:
    """Draw every family that has been measured."""
    for family in FAMILIES:
        drawing = PLOTS.get(family.plot)
        found = _results(family, folder)
        if drawing and found and (chart := drawing(found)):
            (folder / f"{family.plot}.svg").write_text(chart)


def _results(family: Family, folder: Path) -> list[Result]:
    found = (results.load(scenario.name, folder) for scenario in family.scenarios)
    return [result for result in found if result is not None]

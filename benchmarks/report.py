"""Writes the tables of `benchmarks/README.md` from the results, between two marks per family."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks import results
from benchmarks.families import FAMILIES
from benchmarks.results import FOLDER, Result
from benchmarks.scenario import Family, Scenario
from docs.generate import table

README = Path(__file__).parent / "README.md"
MARKS = ("<!-- figures -->", "<!-- /figures -->")


def write() -> None:
    """Put what the results say into the README."""
    start, end = MARKS
    pattern = re.compile(f"{start}.*?{end}", re.DOTALL)
    section = f"{start}\n{render()}\n{end}"
    README.write_text(pattern.sub(lambda _: section, README.read_text()))


def render(folder: Path = FOLDER) -> str:
    """Write one table per family that has been measured."""
    return "\n\n".join(text for family in FAMILIES if (text := _family(family, folder)))


def _family(family: Family, folder: Path) -> str:
    found = [
        (scenario, result)
        for scenario in family.scenarios
        if (result := results.load(scenario.name, folder)) is not None
    ]
    if not found:
        return ""
    columns = {
        figure: heading
        for figure, heading in family.columns.items()
        if any(figure in result.median for _, result in found)
    }
    rows = [_row(scenario, family, columns, result) for scenario, result in found]
    head = ("Scenario", *columns.values(), "Target")
    plot = f"\n\n![{family.title}](results/{family.plot}.svg)" if family.plot else ""
    return f"### {family.title}\n\n{table(head, rows)}{plot}"


def _row(scenario: Scenario, family: Family, columns: Iterable[str], result: Result) -> list[str]:
    cells = [show(result.median[f]) if f in result.median else "" for f in columns]
    return [f"`{scenario.name}`: {scenario.about}", *cells, verdict(scenario, family, result)]


def verdict(scenario: Scenario, family: Family, result: Result) -> str:
    """Say of each target whether it is met."""
    return ", ".join(
        f"{family.columns.get(t.figure, t.figure)} {t.bound} {t.value:g}:"
        f" {'met' if t.is_met(result.median[t.figure]) else '**missed**'}"
        for t in scenario.targets
        if t.figure in result.median
    )


def show(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

"""`make bench`: measure, write the results, draw them and sum them up."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plots, report, results
from benchmarks.families import FAMILIES, SCENARIOS
from benchmarks.runner import measure
from benchmarks.scenario import Setting

QUICK = Setting(rounds=1, scale=0.05)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(
        f"  {scenario.name:<20} {scenario.about}"
        for family in FAMILIES
        for scenario in family.scenarios
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure how fast it is beside ceilings of the same run, and verify it.",
        epilog=f"scenarios:\n{listed}\n\nThe beginning of names is enough: drain is all drains.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all of them")
    parser.add_argument("--rounds", type=int, default=3, help="median of so many (default 3)")
    parser.add_argument(
        "--quick", action="store_true", help="one small round of each; writes nothing by itself"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="write there, and leave the README alone"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    chosen = [s for s in SCENARIOS.values() if _is_wanted(s.name, given.scenarios)]
    if not chosen:
        parser.error(f"there is no scenario {' or '.join(given.scenarios)}")
    setting = QUICK if given.quick else Setting(rounds=given.rounds)
    folder = given.results or (None if given.quick else results.FOLDER)
    for scenario in chosen:
        result = measure(scenario, setting)
        if folder is not None:
            print(f"wrote {results.save(result, folder)}", flush=True)
    if folder == results.FOLDER:
        plots.draw()
        report.write()
    return 0


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(name == w or name.startswith(f"{w}-") for w in wanted)


if __name__ == "__main__":
    sys.exit(main())

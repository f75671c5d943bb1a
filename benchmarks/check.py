"""`make bench-check`: measure again what is guarded, and fail where it became worse.

Ratios to a ceiling of the same run are compared, never absolute rates, so the committed figures
hold on other machines as well as figures can. What became better is said: commit it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import results
from benchmarks.families import SCENARIOS
from benchmarks.results import Result
from benchmarks.runner import measure
from benchmarks.scenario import Scenario, Setting

TOLERANCE = 0.2


def compare(
    scenario: Scenario, committed: Result, fresh: Result, tolerance: float
) -> tuple[list[str], bool]:
    """Say of each guarded ratio how it changed, and whether one fell by more than the tolerance."""
    lines, is_worse = [], False
    for figure in scenario.guarded:
        before, now = committed.median[figure], fresh.median[figure]
        change = now / before - 1
        worse = change < -tolerance
        is_worse |= worse
        word = "WORSE" if worse else "better" if change > tolerance else "same"
        lines.append(
            f"{word:6} {scenario.name} {figure}: {before:.3g} -> {now:.3g} ({change:+.0%})"
        )
    return lines, is_worse


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help="default: every guarded one"
    )
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="(default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)s)")
    given = parser.parse_args(arguments)
    regressed = False
    for name in given.scenarios or [s.name for s in SCENARIOS.values() if s.guarded]:
        committed = results.load(name)
        if committed is None:
            print(f"new    {name}: nothing is committed to compare with")
            continue
        setting = Setting(rounds=given.rounds, scale=committed.scale)
        fresh = measure(SCENARIOS[name], setting)
        lines, is_worse = compare(SCENARIOS[name], committed, fresh, given.tolerance)
        print("\n".join(lines), flush=True)
        regressed |= is_worse
    return int(regressed)


if __name__ == "__main__":
    sys.exit(main())

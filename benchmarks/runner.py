"""Runs a scenario round by round and sums it up."""

from __future__ import annotations

import sys

from benchmarks import results
from benchmarks.results import Result
from benchmarks.scenario import Figures, Scenario, Setting


def measure(scenario: Scenario, setting: Setting) -> Result:
    """Measure every round, telling each as it comes: long work shows that it moves."""
    before = results.machine()
    setting = scenario.limited(setting)
    rounds: list[Figures] = []
    for figures in scenario.measure(setting):
        rounds.append(figures)
        shown = " ".join(f"{name}={value:.4g}" for name, value in figures.items())
        print(
            f"{scenario.name} {len(rounds)}/{setting.rounds}: {shown}", file=sys.stderr, flush=True
        )
    return results.sum_up(scenario, setting, before, rounds)

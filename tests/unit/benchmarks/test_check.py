"""What counts as a regression, and what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report, results
from benchmarks.check import compare
from benchmarks.families import SCENARIOS
from benchmarks.results import Result, sum_up
from benchmarks.scenario import Setting

INSERTS = SCENARIOS["drain-inserts"]


def result(*ratios: float) -> Result:
    rounds = [{"ratio": ratio, "bridge_cpu_us": 5.0, "bridge_memory_mb": 90.0} for ratio in ratios]
    return sum_up(INSERTS, Setting(), {}, rounds)


@pytest.mark.parametrize(("fresh", "is_worse"), [(0.79, True), (0.81, False), (1.3, False)])
def test_a_ratio_that_falls_by_more_than_the_tolerance_is_a_regression(
    fresh: float, is_worse: bool
) -> None:
    lines, worse = compare(INSERTS, result(1.0), result(fresh), tolerance=0.2)

    assert worse == is_worse
    assert lines[0].startswith("WORSE") == is_worse
    assert "drain-inserts ratio" in lines[0]


def test_one_disturbed_round_does_not_decide() -> None:
    assert result(0.9, 0.1, 0.8).median["ratio"] == 0.8


def test_results_come_back_as_they_were_saved(tmp_path: Path) -> None:
    saved = result(0.5, 0.75)

    results.save(saved, tmp_path)

    assert results.load("drain-inserts", tmp_path) == saved


def test_the_table_says_which_target_is_missed(tmp_path: Path) -> None:
    results.save(result(0.95), tmp_path)

    text = report.render(tmp_path)

    assert "ratio at least 0.9: met" in text
    assert "memory MB at most 80: **missed**" in text


def test_the_readme_shows_the_committed_results() -> None:
    assert report.render() in report.README.read_text()

"""What the families compute by themselves: ages of changes, ends of a growth, times smaller."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgpack
import pytest

from benchmarks import growth, lakeload, plots, report, results
from benchmarks.charts import Series, bars, lines
from benchmarks.compression import rows_of, squeeze
from benchmarks.families import FAMILIES, SCENARIOS
from benchmarks.listener import Arrivals, percentile
from benchmarks.results import Result, sum_up
from benchmarks.runner import measure
from benchmarks.scenario import Figures, Scenario, Setting, Wrong
from bridge.compression import Samples
from schemas.positions import Lsn
from schemas.snapshots import moment
from tests.support.stream import StoredMessage

COMMITTED = datetime(2025, 12, 8, 13, 45, 21, 719719, tzinfo=UTC)


def message(committed: datetime) -> bytes:
    body: bytes = msgpack.packb({"commit_lsn": 7, "commit_ts": moment(committed), "data": {}})
    return b"MSG bench 1 %d\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_ages_are_found_whatever_pieces_the_bytes_come_in(size: int) -> None:
    """A change that is cut in two counts once, when its time is whole."""
    wire = b"PONG\r\n" + message(COMMITTED) * 3 + message(COMMITTED.replace(second=20))
    arrivals = Arrivals()

    for start in range(0, len(wire), size):
        arrivals.feed(wire[start : start + size], COMMITTED.timestamp() + 0.004)

    assert arrivals.seconds == pytest.approx([0.004] * 3 + [1.004], abs=1e-5)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(n) for n in range(1, 101)]

    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [51, 100, 100]
    with pytest.raises(ValueError, match="nothing arrived"):
        percentile([], 0.5)


def test_a_commit_is_as_old_as_the_first_batch_that_reaches_it() -> None:
    """Two commits of one batch have two ages, and a batch that shows nothing new counts not."""
    commits = [(1.0, Lsn(10)), (2.0, Lsn(20)), (3.0, Lsn(30))]

    found = lakeload.ages(commits, [(1.5, Lsn(9)), (4.0, Lsn(25)), (4.5, Lsn(25)), (6.0, Lsn(99))])

    assert found == [3.0, 2.0, 3.0]
    with pytest.raises(Wrong, match="no batch reached the commit at 0/1E"):
        lakeload.ages(commits, [(4.0, Lsn(25))])


def test_growth_compares_its_ends() -> None:
    """Twice the cost at the largest is a flatness of a half, whatever lies between."""
    points = {
        10: {"bridge_cpu_us": 5.0, "bridge_memory_mb": 50.0},
        1_000: {"bridge_cpu_us": 10.0, "bridge_memory_mb": 75.0},
        100: {"bridge_cpu_us": 80.0, "bridge_memory_mb": 90.0},
    }

    figures = growth.sum_up(points)

    assert (figures["flatness"], figures["memory_growth"]) == (0.5, 1.5)
    assert (figures["cpu_us_100"], figures["memory_mb_1000"]) == (80.0, 75.0)


def test_the_longest_backlogs_are_measured_only_when_asked() -> None:
    assert growth.asked_changes(1_000_000) == (10_000, 100_000, 1_000_000)
    assert growth.asked_changes(10_000_000)[-1] == 10_000_000


def test_a_dictionary_makes_small_bodies_smaller() -> None:
    words = (
        b"Anna Bauer of Oslo wants her orders before noon and left with the neighbours, number %d, "
    )
    bodies = [
        words % n + b"paid by invoice within a month, delivered at %d" % n for n in range(999)
    ]
    dictionary = Samples(bodies).train()
    assert dictionary is not None

    figures = squeeze(bodies, dictionary)

    assert figures["dictionary_times"] > figures["alone_times"] >= 1
    assert set(figures) == {"alone_times", "alone_us", "dictionary_times", "dictionary_us"}


def test_rows_of_changes_and_of_chunks_are_compared_alike() -> None:
    changes = [StoredMessage(n, "", {}, {"data": {"id": n}}) for n in (1, 2)]
    chunk = StoredMessage(1, "", {}, {"data": [{"id": 1}, {"id": 2}]})

    assert rows_of(changes) == rows_of([chunk]) == [{"id": 1}, {"id": 2}]


def test_what_takes_minutes_is_measured_in_fewer_rounds() -> None:
    scenario = Scenario(name="long", about="", measure=_rounds, most_rounds=1)

    assert len(measure(scenario, Setting(rounds=3)).rounds) == 1
    assert SCENARIOS["snapshot-10m"].limited(Setting(rounds=3)).rounds == 1


def _rounds(setting: Setting) -> Iterator[Figures]:
    yield from [{"figure": 1.0}] * setting.rounds


def test_every_family_with_a_plot_has_one_and_every_guarded_figure_is_shown() -> None:
    """A name that is mistyped in one of the tables would show and guard nothing."""
    assert {family.plot for family in FAMILIES if family.plot} == set(plots.PLOTS)
    for family in FAMILIES:
        for scenario in family.scenarios:
            assert {*scenario.guarded, *(t.figure for t in scenario.targets)} <= {*family.columns}


def of(name: str, **figures: float) -> Result:
    return sum_up(SCENARIOS[name], Setting(), {}, [figures])


def test_families_are_drawn_and_listed_as_far_as_they_were_measured(tmp_path: Path) -> None:
    results.save(of("steady-1000", asked_per_s=1_000, p50_ms=2, p99_ms=40), tmp_path)
    results.save(of("idle", asked_per_s=0, bridge_cpu_percent=0.4), tmp_path)
    sizes = {f"cpu_us_{n}": 6.0 for n in (10_000, 100_000)}
    memory = {f"memory_mb_{n}": 60.0 for n in (10_000, 100_000)}
    results.save(of("growth-changes", flatness=1, **sizes, **memory), tmp_path)

    plots.draw(tmp_path)
    text = report.render(tmp_path)

    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        "growth-changes.svg",
        "steady.svg",
    ]
    assert "idle" not in (tmp_path / "steady.svg").read_text(), "it has no latency to draw"
    assert "p50 ms at most 5: met, p99 ms at most 25: **missed**" in text
    assert "us at 100,000" in text
    assert "us at 10,000,000" not in text, "nobody asked for it"
    assert "![Growth with the number of changes](results/growth-changes.svg)" in text


def test_charts_show_every_value() -> None:
    chart = bars("A < B", ["one", "two"], [Series("bridge", [1, 2]), Series("other", [3, 4])])
    grown = lines("Growth", [10, 100, 1_000], [Series("us", [5, 5, 6])])

    assert chart.count("<title>") == 4
    assert "A &lt; B" in chart
    assert grown.count("<circle") == 3
    assert "1,000" in grown

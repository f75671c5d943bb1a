"""Benchmarks keep working: one of each kind, small, on real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import compression, drain, growth, loads, snapshot, steady
from benchmarks.__main__ import main
from benchmarks.scenario import Setting, Wrong
from benchmarks.stack import running_stack


def test_a_drain_is_measured_beside_its_ceilings(tmp_path: Path) -> None:
    assert main(["drain-mix", "--quick", "--results", str(tmp_path)]) == 0

    result = json.loads((tmp_path / "drain-mix.json").read_text())
    assert result["median"]["changes"] == 25_000
    assert set(drain.COLUMNS) <= set(result["median"])
    assert len(result["rounds"]) == 1


SMALL = Setting(rounds=1, scale=0.01)


def test_latency_is_measured_of_every_change() -> None:
    (figures,) = steady.steady(200, 10, seconds=2)(SMALL)

    assert {*steady.COLUMNS} <= {*figures}
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["most_ms"]
    assert figures["written_per_s"] <= 200


def test_an_idle_bridge_is_measured() -> None:
    (figures,) = steady.idle(seconds=2)(SMALL)

    assert figures["bridge_cpu_percent"] >= 0
    assert figures["bridge_memory_mb"] > 10


def test_growth_is_measured_at_every_point() -> None:
    (figures,) = growth.growth([(n, loads.over_tables(n), 1_000) for n in (1, 3)])(SMALL)

    assert {"cpu_us_1", "cpu_us_3", "memory_mb_1", "memory_mb_3", "flatness"} <= {*figures}
    assert figures["memory_growth"] > 0


def test_a_snapshot_is_measured_beside_copy() -> None:
    (figures,) = snapshot.snapshot(200_000, readers=2)(Setting(rounds=1, scale=0.1))

    assert {*snapshot.COLUMNS} <= {*figures}
    assert figures["rows"] == 20_000
    ratio = figures["rows_per_s"] / figures["copy_per_s"]
    assert figures["ratio"] == pytest.approx(ratio)


def test_a_snapshot_that_lacks_rows_gives_no_figure() -> None:
    with running_stack() as stack:
        snapshot.fill(stack, 100)

        with pytest.raises(Wrong, match="100 rows in 1 chunks of 101"):
            snapshot.measure_round(stack, 101, readers=1)


@pytest.mark.parametrize("part", ["changes", "chunks"])
def test_compression_is_measured_with_and_without_a_dictionary(part: compression.Part) -> None:
    (figures,) = compression.compression(part)(Setting(rounds=1, scale=0.05))

    assert {*compression.COLUMNS} <= {*figures}
    assert figures["dictionary_times"] > 1
    assert figures["alone_times"] >= 1


def test_a_stream_that_does_not_hold_what_was_committed_gives_no_figure() -> None:
    """A fast wrong answer is none."""
    load = loads.inserts(10)
    with running_stack() as stack:
        load.prepare(stack.connection)
        stack.publish()
        load.write(stack.connection, 100)
        stack.end_load()

        with pytest.raises(Wrong, match="was committed"):
            drain.drain_once(stack, {"cdc.customers.insert": 101})

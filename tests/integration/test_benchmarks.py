"""Benchmarks keep working: one of them, small, on real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import drain, loads
from benchmarks.__main__ import main
from benchmarks.scenario import Wrong
from benchmarks.stack import running_stack


def test_a_drain_is_measured_beside_its_ceilings(tmp_path: Path) -> None:
    assert main(["drain-mix", "--quick", "--results", str(tmp_path)]) == 0

    result = json.loads((tmp_path / "drain-mix.json").read_text())
    assert result["median"]["changes"] == 25_000
    assert set(drain.COLUMNS) <= set(result["median"])
    assert len(result["rounds"]) == 1


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

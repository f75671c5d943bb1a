"""The loop the bridge runs in."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bridge.loops import loop_factory


async def _answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_the_bridge_runs_in_uvloop_where_there_is_one() -> None:
    pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(_answer()) == 42
        assert type(runner.get_loop()).__module__.startswith("uvloop")


def test_the_bridge_runs_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot import it must not lose the bridge with it."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(_answer()) == 42

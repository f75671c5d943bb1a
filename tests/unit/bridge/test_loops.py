"""The loop the bridge runs in."""

from __future__ import annotations

import asyncio
import ctypes
import platform
import sys

import pytest

from bridge.loops import keep_freed_memory, loop_factory


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


def test_glibc_is_told_to_keep_what_was_freed() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


@pytest.mark.parametrize("missing", [AttributeError, OSError, TypeError])
def test_the_bridge_runs_on_any_c_library(
    monkeypatch: pytest.MonkeyPatch, missing: type[Exception]
) -> None:
    def refuse(_: object) -> None:
        raise missing

    monkeypatch.setattr(ctypes, "CDLL", refuse)

    assert not keep_freed_memory()

"""The compiled loops are used where they are, and missed by nobody but the CPU where not."""

from __future__ import annotations

import logging
import sys

import pytest

from bridge.native import find_native
from tests.support.native import needs_native


@needs_native
def test_what_was_compiled_is_used() -> None:
    native = find_native({})

    assert native.is_there
    assert native("RowCode").__module__ == "bridge.compiled"


def test_a_machine_without_a_compiler_is_told_what_that_costs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The package installs without a compiler, so nothing else would say it."""
    monkeypatch.setitem(sys.modules, "bridge.compiled", None)

    native = find_native({})
    with caplog.at_level(logging.WARNING):
        native.say()

    assert not native.is_there
    assert "C compiler" in caplog.text


def test_they_can_be_left_alone_on_purpose() -> None:
    native = find_native({"BRIDGE_PURE_PYTHON": "1"})

    assert not native.is_there
    assert native.missing == "BRIDGE_PURE_PYTHON is set"

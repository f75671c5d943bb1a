"""Tests of what exists twice, in Python and compiled: each runs both ways, where both are there."""

from __future__ import annotations

import pytest

from bridge.native import native

needs_native = pytest.mark.skipif(
    not native.is_there, reason=f"the compiled loops are missing: {native.missing}"
)
both_ways = pytest.mark.parametrize("way", ["python", pytest.param("compiled", marks=needs_native)])

"""The README says what the code does, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate import README, render


def test_generated_tables_are_up_to_date() -> None:
    """Run `make docs` after a change of an option, an endpoint, a metric or an error."""
    text = README.read_text()
    assert render(text) == text


def test_every_test_the_guarantees_name_exists() -> None:
    """A promise without a test is not kept."""
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", README.read_text()))
    assert named
    assert [path for path in sorted(named) if not (README.parent / Path(path)).exists()] == []

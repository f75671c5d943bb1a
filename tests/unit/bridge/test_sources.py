"""Who may publish a table: positions are compared, and only those of one slot compare."""

from __future__ import annotations

import pytest

from bridge.sources import SourceId, may_take, parse_source

OURS = SourceId("7451", 16384, "shop")


@pytest.mark.parametrize(
    ("owner", "allowed"),
    [
        (None, True),
        ("7451/16384/shop", True),
        ("7451/16384/gone", True),
        ("7451/16384/other", False),
        ("7451/5/shop", False),
        ("9/16384/shop", False),
        ("", False),
        ("None", False),
    ],
    ids=[
        "nobody's",
        "ours",
        "of a slot that was dropped",
        "of a slot that lives",
        "of another database",
        "of another cluster",
        "unreadable",
        "of an entry without source",
    ],
)
def test_a_table_belongs_to_one_slot(owner: str | None, allowed: bool) -> None:
    """Skipping what another slot stored, or what another WAL calls earlier, would lose changes."""
    assert may_take(owner, OURS, {"shop", "other"}) == allowed


def test_a_source_reads_back() -> None:
    assert parse_source(str(OURS)) == OURS

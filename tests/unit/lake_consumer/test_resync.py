from __future__ import annotations

from pathlib import Path

import pytest

from lake_consumer.config import read_config
from lake_consumer.errors import NoLake
from lake_consumer.resync import ask_resync


def test_a_resync_where_there_is_no_lake_makes_none(tmp_path: Path) -> None:
    """A typing error in the warehouse must not leave an empty lake behind."""
    config = read_config({"warehouse": str(tmp_path / "typo")}, {}, {})

    with pytest.raises(NoLake, match="no lake yet"):
        ask_resync(config, ["users"])

    assert not list(tmp_path.iterdir())

"""Which partitions executors can write by themselves."""

from __future__ import annotations

from typing import Any

from lake_consumer.iceberg.adding import day_partition

SCHEMA = {"fields": [{"id": 1, "name": "id"}, {"id": 4, "name": "commit_ts"}]}


def partition(transform: str, source: int = 4) -> dict[str, Any]:
    return {"name": "commit_ts_day", "transform": transform, "source-id": source}


def test_a_table_without_partitions_or_by_day_is_written_by_executors() -> None:
    """Both kinds that the lake makes."""
    assert day_partition({"fields": []}, SCHEMA) == (None, "")
    assert day_partition({"fields": [partition("day")]}, SCHEMA) == ("commit_ts", "commit_ts_day")


def test_any_other_partition_is_left_to_spark() -> None:
    """Somebody gave the table partitions of their own."""
    assert day_partition({"fields": [partition("bucket[16]")]}, SCHEMA) is None
    assert day_partition({"fields": [partition("day"), partition("day")]}, SCHEMA) is None
    assert day_partition({"fields": [partition("day", source=9)]}, SCHEMA) is None

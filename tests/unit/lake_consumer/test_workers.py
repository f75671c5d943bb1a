"""Python workers import from installed packages, and look into no archive of Spark's."""

from __future__ import annotations

import sys

import pytest

from lake_consumer.workers import is_archive, leave_zips


def test_archives_are_told_from_folders() -> None:
    assert is_archive("/spark/python/lib/pyspark.zip")
    assert is_archive("/spark/jars/spark-core_2.13-4.1.4.jar")
    assert not is_archive("/usr/lib/python3/site-packages")


def test_archives_leave_the_path_where_spark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their directories would be read again before every task."""
    archives = ["/spark/python/lib/pyspark.zip", "/spark/jars/iceberg.jar"]
    kept = list(sys.path)
    monkeypatch.setattr(sys, "path", [*archives, *kept])

    leave_zips()

    assert sys.path == [place for place in kept if not is_archive(place)]

"""Commits that are not a batch: care and healing leave the table where it stands in the stream.

A batch stamps its place into the session, and with it into every commit of that session. Whoever
commits something else takes the stamp off first; the next batch puts its own on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from lake_consumer.iceberg.names import LakeName, quote
from lake_consumer.order import POSITIONS
from lake_consumer.watermark import EMPTY

STAMP = "spark.sql.iceberg.snapshot-property."


_NAMES = (*EMPTY.to_summary(), POSITIONS)


def take_stamp_off(spark: SparkSession) -> None:
    for name in _NAMES:
        spark.conf.unset(STAMP + name)


@contextmanager
def stamp_off(spark: SparkSession) -> Iterator[None]:
    """Commit without the batch's stamp for as long as the block lasts."""
    names = [STAMP + name for name in _NAMES]
    held = {name: spark.conf.get(name, None) for name in names}
    take_stamp_off(spark)
    try:
        yield
    finally:
        for name, value in held.items():
            if value is not None:
                spark.conf.set(name, value)


def argument(name: LakeName) -> str:
    """A table as the argument of a procedure: a quoted name in a quoted text."""
    return text(f"{quote(name.namespace)}.{quote(name.name)}")


def text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

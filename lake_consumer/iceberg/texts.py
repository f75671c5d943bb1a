"""Which columns of a mirror have values that only their text states."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lake_consumer.columns import TEXT_COLUMN
from lake_consumer.iceberg.names import LakeName, quote


def find_texts(spark: SparkSession, mirror: LakeName) -> frozenset[str]:
    """The names under which rows hold texts: one column is read, and hardly a row has any."""
    texts = quote(TEXT_COLUMN)
    found = spark.sql(
        f"SELECT DISTINCT explode(map_keys({texts})) AS name FROM {mirror.sql}"  # noqa: S608
        f" WHERE {texts} IS NOT NULL"
    )
    return frozenset(row["name"] for row in found.collect())

"""Names of columns in changes from before a rename, as the change log calls the columns now.

A change names the columns it did not send as its own revision called them. The log and the mirror
have followed every rename since, so what is held against their columns needs the new names.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.columns import Columns
from lake_consumer.evolution import names_in
from schemas.shapes import TableShape


def with_current_names(
    changes: DataFrame, shapes: Mapping[int, TableShape], columns: Columns
) -> DataFrame:
    """Changes whose `unchanged` names columns as the log does."""
    renamed = {
        f"{revision}/{sent}": column.name
        for revision, shape in shapes.items()
        for column, sent in zip(columns, names_in(shape, columns), strict=True)
        if sent is not None and sent != column.name
    }
    if not renamed:
        return changes
    now = F.create_map(*[F.lit(part) for pair in renamed.items() for part in pair])

    def called(name: Column) -> Column:
        key = F.concat(F.col("schema_revision").cast("string"), F.lit("/"), name)
        return F.coalesce(now[key], name)

    return changes.withColumn("unchanged", F.transform("unchanged", called))

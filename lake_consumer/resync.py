"""`lake-consumer resync`: have a table's mirror built anew, whether a consumer runs or not.

The wish is left in the lake, as a property of the table `_bridge.resyncs`. A running consumer takes
it up before its next batch, any other one when it starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from lake_consumer.config import LakeConfig
from lake_consumer.errors import NoLake, UnknownTable
from lake_consumer.iceberg.names import CUTS, log_of
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.requests import RESYNC_PREFIX
from schemas.names import TableName


def ask_resync(config: LakeConfig, names: Sequence[str]) -> str:
    """Leave the wish in the lake; gives a sentence about what happens next."""
    tables = [TableName.parse(name) for name in names]
    with LakeReader(config.catalog, config.warehouse) as lake:
        held = lake.names()
        for table in tables:
            if log_of(table) not in held:
                raise UnknownTable(f"the lake has no table {table}")
        if CUTS not in held:
            raise NoLake(
                "the lake has applied nothing yet",
                advice="Run `lake-consumer drain` or `run` first.",
            )
        lake.request(RESYNC_PREFIX, tables)
    return (
        f"The mirror of {', '.join(map(str, tables))} is built anew from a snapshot: at once where"
        " `lake-consumer run` is running, else when `run` or `drain` is started."
    )

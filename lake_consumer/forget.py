"""`lake-consumer forget`: stop listing a table that is gone, or remove it with its history.

As `resync` does, the command leaves a request in the lake, as a property of `_bridge.resyncs`. A
running consumer carries it out before its next batch, any other one when it starts, so nobody
changes a table while a batch is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from lake_consumer.config import LakeConfig
from lake_consumer.errors import NotGone, UnknownTable
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.requests import FORGET_PREFIX
from schemas.names import TableName


def ask_forget(config: LakeConfig, names: Sequence[str], *, purge: bool, force: bool) -> str:
    """Leave the request in the lake; gives a sentence about what happens next."""
    tables = [TableName.parse(name) for name in names]
    with LakeReader(config.catalog, config.warehouse) as lake:
        states = lake.states()
        for table in tables:
            if table not in states:
                raise UnknownTable(f"the lake has no table {table}")
            if not states[table].is_gone and not force:
                raise NotGone(f"{table} is {states[table].kind}, and PostgreSQL still publishes it")
        lake.request(FORGET_PREFIX, tables, purge=purge, force=force)
    what = "is removed with its data and history" if purge else "is no longer listed"
    return (
        f"{', '.join(map(str, tables))} {what}: before the next batch if `lake-consumer run` is"
        " running, else when `run` or `drain` is started."
    )

"""The parent of Spark's Python workers on this machine, with everything they need imported already.

Spark forks a worker per task and pipeline step. Each would import Arrow, pandas and this package by
itself, which costs more than a second of CPU; forked from here it has them, and shares the memory.
Frozen objects are left out when Spark collects garbage after every task.
"""

from __future__ import annotations

import gc

import pandas  # type: ignore[import-untyped]  # noqa: F401 - Spark's own worker imports it
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import lake_consumer.iceberg.outcomes
import lake_consumer.jetstream.source  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]

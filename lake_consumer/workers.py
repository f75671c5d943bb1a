"""The parent of Spark's Python workers on this machine, with everything they need imported already.

Spark forks a worker per task and pipeline step. Each would import Arrow, pandas and this package by
itself, which costs more than a second of CPU; forked from here it has them, and shares the memory.
Frozen objects are left out when Spark collects garbage after every task.

Spark also puts its own Python code on the path as a zip, and its core jar beside it. Every module
is compiled anew out of the zip, and the directories of both are read again before every task: that
was 60 % of the workers' time. Where the same package is installed, that is used instead.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.machinery import PathFinder

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.worker",
    "lake_consumer.iceberg.outcomes",
    "lake_consumer.jetstream.source",
)


def is_archive(place: str) -> bool:
    """Whether a place on the path is Spark's zip or jar; its core jar lists thousands of files."""
    return place.endswith((".zip", ".jar")) or ".zip/" in place or ".jar/" in place


def leave_zips() -> None:
    """Import from installed packages and not from Spark's zips, where there is a choice."""
    outside = [place for place in sys.path if not is_archive(place)]
    if PathFinder.find_spec("pyspark", outside) and PathFinder.find_spec("py4j", outside):
        sys.path[:] = outside
        for place in [place for place in sys.path_importer_cache if is_archive(place)]:
            del sys.path_importer_cache[place]


def main() -> None:
    leave_zips()
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()

"""Arrow batches of an Iceberg scan, one data file after the other.

pyiceberg's own batch reader starts every file at once and keeps what is not asked for yet, so its
memory grows with the table. Here a file is opened when the one before is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import DataScan


def scan_batches(scan: DataScan) -> Iterator[pa.RecordBatch]:
    projected = scan.projection()
    target = schema_to_pyarrow(projected, include_field_ids=False)
    reader = ArrowScan(
        scan.table_metadata, scan.io, projected, scan.row_filter, scan.case_sensitive, scan.limit
    )
    for task in scan.plan_files():
        for batch in reader.to_record_batches([task]):
            yield batch.cast(target)

"""Values of columns that were added, in changes that precede the column in the stream.

A change log holds what PostgreSQL sent, so such a change has no value there. The row in the mirror
must have the one that PostgreSQL shows: the column's `fill`. An explicit NULL in a data file would
hide the column's `initial-default`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lake_consumer.fills import Fill


def fill_added(changes: pa.RecordBatch, fills: Sequence[Fill]) -> pa.RecordBatch:
    """Give the new rows of changes the values of columns that their revisions lack."""
    revisions = changes["schema_revision"]
    masks = [
        pc.is_in(revisions, value_set=pa.array(sorted(fill.revisions), type=revisions.type))
        for fill in fills
    ]
    due = [(fill, mask) for fill, mask in zip(fills, masks, strict=True) if pc.any(mask).as_py()]
    if not due:
        return changes
    rows = changes["new"]
    fields = list(rows.type)
    # Flattened, a column has the nulls of rows that are missing; those stay missing by the mask.
    columns = rows.flatten()
    for fill, mask in due:
        at = rows.type.get_field_index(fill.column)
        value = pa.scalar(fill.value, type=fields[at].type)
        columns[at] = pc.if_else(mask, value, columns[at])
    filled = pa.StructArray.from_arrays(columns, fields=fields, mask=pc.is_null(rows))
    return changes.set_column(changes.schema.get_field_index("new"), "new", filled)

"""Facts: what the driver has to know of changes that it never sees.

Executors sum up every block they make; the driver puts the sums of a table together and decides by
them how the table is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake_consumer.iceberg.datafiles import Written, read_files
from lake_consumer.iceberg.keys import KeyedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the blocks of one table hold, as far as it decides how they are written."""

    first: int
    last: int
    rows: int
    bytes: int
    inserts: int
    truncated: int | None
    unchanged: bool
    moved: bool
    lowest: int | None
    highest: int | None
    revision: int
    files: tuple[Written, ...] = ()
    """The change log's, where the executors have written them already."""

    @classmethod
    def of(cls, blocks: Sequence[Any]) -> Facts:
        """Sum up the facts of several blocks, given as rows of `BLOCKS`."""
        return cls(
            first=min(block["first"] for block in blocks),
            last=max(block["last"] for block in blocks),
            rows=sum(block["rows"] for block in blocks),
            bytes=sum(block["bytes"] for block in blocks),
            inserts=sum(block["inserts"] for block in blocks),
            truncated=max(_known(blocks, "truncated"), default=None),
            unchanged=any(block["unchanged"] for block in blocks),
            moved=any(block["moved"] for block in blocks),
            lowest=min(_known(blocks, "lowest"), default=None),
            highest=max(_known(blocks, "highest"), default=None),
            revision=max(block["revision"] for block in blocks),
            files=tuple(f for block in blocks for f in read_files(block["files"] or ())),
        )

    @property
    def edges(self) -> tuple[int, int] | None:
        """The range of the first key column, where it is an integer."""
        if self.lowest is None or self.highest is None:
            return None
        return self.lowest, self.highest


def _known(blocks: Iterable[Any], name: str) -> list[int]:
    return [block[name] for block in blocks if block[name] is not None]


def sum_up(batch: pa.RecordBatch, key: KeyedRows | None) -> dict[str, Any]:
    """Give the facts of one block; `Facts` puts those of several together."""
    sequences = batch["stream_seq"]
    operations = {
        row["values"]: row["counts"] for row in pc.value_counts(batch["operation"]).to_pylist()
    }
    truncates = pc.filter(sequences, pc.equal(batch["operation"], "TRUNCATE"))
    lowest = highest = None
    if key is not None and key.has_edges:
        name = key.key[0].name
        ranges = [pc.min_max(pc.struct_field(batch[row], name)).as_py() for row in ("new", "old")]
        lowest = min((r["min"] for r in ranges if r["min"] is not None), default=None)
        highest = max((r["max"] for r in ranges if r["max"] is not None), default=None)
    return {
        "first": sequences[0].as_py(),
        "last": sequences[-1].as_py(),
        "rows": batch.num_rows,
        "inserts": operations.get("INSERT", 0),
        "truncated": pc.max(truncates).as_py(),
        "unchanged": bool(pc.any(pc.greater(pc.list_value_length(batch["unchanged"]), 0)).as_py()),
        "moved": key is not None and bool(moved_rows(batch, key).any()),
        "lowest": lowest,
        "highest": highest,
        "revision": pc.max(batch["schema_revision"]).as_py(),
    }


def event_keys(batch: pa.RecordBatch | pa.Table, key: KeyedRows) -> list[pa.Array]:
    """The key each change is about: of a delete the old row's, else the new row's."""
    is_delete = pc.equal(batch["operation"], "DELETE")
    pairs = zip(key.arrays(batch["old"]), key.arrays(batch["new"]), strict=True)
    return [_choose(is_delete, old, new) for old, new in pairs]


def _choose(mask: Any, yes: Any, no: Any) -> pa.Array:
    found = pc.if_else(mask, yes, no)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def moved_rows(batch: pa.RecordBatch | pa.Table, key: KeyedRows) -> np.ndarray[Any, Any]:
    """Which updates changed the key; under REPLICA IDENTITY FULL every update has an old row."""
    has_old = pc.and_(pc.equal(batch["operation"], "UPDATE"), pc.is_valid(batch["old"]))
    found = np.asarray(has_old.to_numpy(zero_copy_only=False), dtype=bool).copy()
    at = np.flatnonzero(found)
    if len(at):
        some = batch.take(pa.array(at))
        before, after = (key.tuples(key.arrays(_flat(some[name]))) for name in ("old", "new"))
        found[at] = [b != a for b, a in zip(before, after, strict=True)]
    return found


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

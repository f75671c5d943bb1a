"""Arrow rows as bytes that Spark carries about, and opened again by whoever writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def write_ipc(batch: pa.RecordBatch | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_ipc(data: Any) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


@dataclass(frozen=True, slots=True)
class OpenBlocks:
    """Opens blocks again, for `mapInArrow`; changes up to `mark` are left out."""

    mark: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column(0):
                table = read_ipc(block.as_buffer())
                if self.mark:
                    table = table.filter(pc.greater(table["stream_seq"], self.mark))
                yield from table.to_batches()


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Opens Arrow bytes that need nothing left out; a null holds nothing."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0):
                if part.is_valid:
                    yield from read_ipc(part.as_buffer()).to_batches()

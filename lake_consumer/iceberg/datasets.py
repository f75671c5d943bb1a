"""An Iceberg table as an Arrow dataset: whoever scans it gets only the columns and files it needs.

DuckDB asks a dataset for a scanner with the columns and the filter of a query. The columns are all
that pyiceberg then reads, batch by batch, so a table never has to fit into memory. Of the filter,
comparisons of integer columns with numbers also leave out whole files, by their bounds; the filter
itself is applied to every batch afterwards, so what is left out can only be too little.

Batches are made by whoever asks for the next one. Arrow's own scanner must not be put around them:
it reads ahead in a thread of its own, which calls Python and which nobody can end; a query with a
LIMIT then aborted or hung when the interpreter finished.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import DataScan, Table
from pyiceberg.types import IntegerType, LongType

from lake_consumer.iceberg.scanning import scan_batches

_COMPARISONS: Mapping[str, Callable[..., BooleanExpression]] = {
    "==": EqualTo,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "<": LessThan,
    "<=": LessThanOrEqual,
}
_TERM = re.compile(r"(?P<column>\w+) (?P<operator>==|>=|<=|>|<) (?P<number>-?\d+)")
_NOT_PLAIN = re.compile(r'"|\w\(| or ')
"""Texts, functions and alternatives: a filter with one of these is not taken apart."""


def prune(filter_text: str, integers: Collection[str]) -> BooleanExpression:
    """Give what a filter, as Arrow writes it, surely demands of integer columns."""
    if _NOT_PLAIN.search(filter_text):
        return AlwaysTrue()
    terms = (_TERM.fullmatch(term.strip("() ")) for term in filter_text.split(" and "))
    demands = [
        compare(term["column"], term["operator"], int(term["number"]))
        for term in terms
        if term is not None and term["column"] in integers
    ]
    everything: BooleanExpression = AlwaysTrue()
    return reduce(And, demands, everything)


def compare(column: str, operator: str, number: int) -> BooleanExpression:
    return _COMPARISONS[operator](column, number)


@dataclass(frozen=True, slots=True)
class LakeScanner:
    """What DuckDB asks of a dataset's scanner: a stream of batches."""

    projected_schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches)


class LakeDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """One table at one snapshot, or as it is now."""

    def __init__(
        self,
        table: Table,
        snapshot_id: int | None = None,
        only: BooleanExpression | None = None,
    ) -> None:
        # Arrow's own datasets are made in C++; this one answers the same questions from pyiceberg.
        self._table = table
        self._snapshot_id = snapshot_id
        self._only = only or AlwaysTrue()
        projected = table.scan(snapshot_id=snapshot_id).projection()
        self._schema = schema_to_pyarrow(projected, include_field_ids=False)
        self._integers = {
            field.name
            for field in projected.fields
            if isinstance(field.field_type, (IntegerType, LongType))
        }

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: list[str] | None = None, filter: Any = None, **_: Any
    ) -> LakeScanner:
        """Read some columns of the rows that meet a filter."""
        shown = self._schema.names if columns is None else columns
        demanded = "" if filter is None else str(filter)
        # The filter's columns cannot be asked of Arrow; a name that is in its text may be one.
        read = [name for name in self._schema.names if name in shown or name in demanded]
        scan = self._table.scan(
            row_filter=And(self._only, prune(demanded, self._integers)),
            selected_fields=tuple(read),
            snapshot_id=self._snapshot_id,
        )
        return LakeScanner(self._part(shown), self._batches(scan, read, shown, filter))

    def _batches(
        self, scan: DataScan, read: list[str], shown: list[str], filter: Any
    ) -> Iterator[pa.RecordBatch]:
        schema = self._part(read)
        for batch in scan_batches(scan):
            found = batch.select(read).cast(schema)
            yield (found if filter is None else found.filter(filter)).select(shown)

    def _part(self, names: list[str]) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in names])

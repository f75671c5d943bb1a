"""What makes two rows the same row: the parts of a key, in Arrow and in Spark.

Each key column is a part, and so is its text where a value may have no native form: two such keys
are both null in their column, and only their text tells them apart.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.columns import TEXT_COLUMN, Columns
from lake_consumer.iceberg.decode import arrow_type
from lake_consumer.iceberg.names import quote
from lake_consumer.values import may_be_text

_INTEGERS = frozenset({"int16", "int32", "int64", "uint32"})
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def field(row: str, name: str) -> Column:
    return F.col(f"{quote(row)}.{quote(name)}" if row else quote(name))


@dataclass(frozen=True)
class KeyedRows:
    """How rows of one table are keyed: `columns` of the log's rows, `key` of the table."""

    columns: Columns
    key: Columns

    @property
    def aliases(self) -> list[str]:
        return [f"_k{at}" for at in range(sum(1 + may_be_text(c.type) for c in self.key))]

    @property
    def schema(self) -> pa.Schema:
        """The parts as columns of their own."""
        types = []
        for column in self.key:
            types += [arrow_type(column.type), *[pa.string()] * may_be_text(column.type)]
        return pa.schema(list(zip(self.aliases, types, strict=True)))

    @property
    def has_edges(self) -> bool:
        """Whether files can be left out by the range of the first key column."""
        return bool(self.key) and self.key[0].type.kind in _INTEGERS

    @property
    def is_plain(self) -> bool:
        """Whether Arrow sees two parts as equal exactly where PostgreSQL does."""
        return not any(
            pa.types.is_nested(kind) or pa.types.is_floating(kind) for kind in self.schema.types
        )

    def parts(self, row: str) -> list[Column]:
        """The parts of a struct column, for Spark."""
        found: list[Column] = []
        for column in self.key:
            found.append(field(row, column.name))
            if may_be_text(column.type):
                found.append(field(row, TEXT_COLUMN)[column.name])
        return found

    def keyed(self, rows: DataFrame, row: str, prefix: str = "") -> DataFrame:
        """Add the key's parts as columns of their own."""
        pairs = zip(self.aliases, self.parts(row), strict=True)
        return rows.withColumns({prefix + alias: part for alias, part in pairs})

    def arrays(self, rows: pa.StructArray) -> list[pa.Array]:
        """The parts of rows, null where there is no row."""
        found: list[pa.Array] = []
        for column in self.key:
            found.append(pc.struct_field(rows, column.name))
            if may_be_text(column.type):
                texts = pc.struct_field(rows, TEXT_COLUMN)
                found.append(pc.map_lookup(texts, column.name, "first"))
        return found

    def tuples(self, parts: list[pa.Array]) -> list[tuple[Hashable, ...]]:
        """Keys as Python compares them."""
        return [
            tuple(hashable(part) for part in key)
            for key in zip(*(part.to_pylist() for part in parts), strict=True)
        ]

    def buckets(self, parts: list[pa.Array], count: int) -> np.ndarray[Any, Any]:
        """Spread keys over buckets; the same key is in the same bucket on every machine."""
        mixed = np.zeros(len(parts[0]), dtype=np.uint64)
        with np.errstate(over="ignore"):
            for part in parts:
                mixed = (mixed + _numbers(part)) * _SPREAD
        return ((mixed >> np.uint64(32)) % np.uint64(count)).astype(np.int32)


def _numbers(part: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_integer(part.type):
        filled: np.ndarray[Any, Any] = pc.fill_null(part, 0).to_numpy(zero_copy_only=False)
        return filled.astype(np.int64).astype(np.uint64)
    texts = (str(hashable(value)).encode() for value in part.to_pylist())
    return np.fromiter(map(crc32, texts), dtype=np.uint64, count=len(part))


def hashable(value: Any) -> Any:
    """A value that is equal to another where PostgreSQL says so."""
    if isinstance(value, (list, tuple)):
        return tuple(hashable(item) for item in value)
    if isinstance(value, float):
        # There are two zeros, and a NaN is not even equal to itself.
        return "NaN" if value != value else value + 0.0  # noqa: PLR0124
    return value

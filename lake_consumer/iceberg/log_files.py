"""Rows of a change log read with Arrow alone, for changes that are too few for a Spark job.

Planning and running a Spark job over a log takes a second, whatever it reads. The files of a log
are ordinary Parquet files whose columns carry Iceberg's field ids; a file that has every column of
the log as it is now can be read directly. One that lacks a column (the log has evolved since) is
left to Spark, which knows what Iceberg puts there instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake_consumer.iceberg.datafiles import FIELD_ID, filesystem
from lake_consumer.stores import ObjectStore


class Evolved(Exception):
    """A file lacks a column that its table has."""


def read_log_files(
    paths: Iterable[str], stored: pa.Schema, wanted: pa.Schema, store: ObjectStore | None
) -> pa.Table:
    """Read whole files; `stored` is the log's schema with field ids, `wanted` as we decode it."""
    tables = [_read(path, stored, wanted, store) for path in paths]
    return pa.concat_tables(tables) if tables else wanted.empty_table()


def _read(path: str, stored: pa.Schema, wanted: pa.Schema, store: ObjectStore | None) -> pa.Table:
    system, name = filesystem(path, store)
    with system.open_input_file(name) as source:
        table = pq.ParquetFile(source).read().combine_chunks()
    struct = _flat(table.to_struct_array())
    rows = _convert(struct, pa.struct(list(stored)), pa.struct(list(wanted)))
    return pa.Table.from_struct_array(rows).cast(wanted)


def _convert(array: pa.Array, stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Find the columns of structs by field id, and give values the types that decoding gives."""
    if pa.types.is_struct(wanted):
        held = dict(zip(map(_id, array.type), array.flatten(), strict=True))
        ids = {field.name: _id(field) for field in stored}
        cells = []
        for field in wanted:
            number = ids[field.name]
            if number not in held:
                raise Evolved(field.name)
            child = stored.field(stored.get_field_index(field.name)).type
            cells.append(_convert(held[number], child, field.type))
        return pa.StructArray.from_arrays(cells, fields=list(wanted), mask=array.is_null())
    if stored == pa.uuid():
        return pa.array([_uuid(value) for value in _storage(array).to_pylist()], wanted)
    if pa.types.is_list(stored) and stored.value_type == pa.uuid():
        lists = [v if v is None else [_uuid(item) for item in v] for v in array.to_pylist()]
        return pa.array(lists, wanted)
    return array.cast(wanted)


def _id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _uuid(value: Any) -> str | None:
    if value is None:
        return None
    return str(value if isinstance(value, uuid.UUID) else uuid.UUID(bytes=value))


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

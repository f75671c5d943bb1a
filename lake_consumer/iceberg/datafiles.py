"""Data files that executors write by themselves, in the form Iceberg expects; the driver adds them.

Arrow writes a row of a change log to Parquet for 1 us. Handing it to Spark, which makes rows of
columns and columns of rows again, cost 15 us and was most of what a batch cost. So the rows
stay where they were decoded, and only the names of files travel. A file that no commit names, of a
task that was repeated or a driver that died, is an orphan as any other, and `maintain` removes it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from lake_consumer.stores import ObjectStore, is_s3

FIELD_ID = b"PARQUET:field_id"

_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.uuid(),
}
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "uncompressed": "none"}
CODEC_PROPERTY = "write.parquet.compression-codec"


class Written(NamedTuple):
    """One file: `day` is the partition it belongs to, where the table has any."""

    path: str
    size: int
    rows: int
    day: str | None


def arrow_schema(schema: Mapping[str, Any]) -> pa.Schema:
    """Read Iceberg's own JSON of a schema; every field has its id, by which Iceberg finds it."""
    return pa.schema(_fields(schema))


def _fields(struct: Mapping[str, Any]) -> list[pa.Field]:
    return [_field(field["name"], field["type"], field["id"]) for field in struct["fields"]]


def _field(name: str, type: Any, id: int) -> pa.Field:
    return pa.field(name, _type(type), metadata={FIELD_ID: str(id)})


def _type(type: Any) -> pa.DataType:
    if isinstance(type, str):
        if type.startswith("decimal("):
            precision, scale = type[8:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
        return _TYPES[type]
    if type["type"] == "struct":
        return pa.struct(_fields(type))
    if type["type"] == "list":
        return pa.list_(_field("element", type["element"], type["element-id"]))
    key = _field("key", type["key"], type["key-id"]).with_nullable(False)
    return pa.map_(key, _field("value", type["value"], type["value-id"]))


def fit(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Give values the type that a file needs; columns of a row are found by name."""
    if pa.types.is_struct(target):
        # Flat: a column is null where its row is, whatever lies there.
        held = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        cells = [
            fit(held[field.name], field.type)
            if field.name in held
            else pa.nulls(len(array), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(cells, fields=list(target), mask=array.is_null())
    if pa.types.is_list(target) and target.value_type == pa.uuid():
        return _uuid_lists(array.to_pylist(), target)
    if target == pa.uuid():
        return _uuids(array.to_pylist())
    return array.cast(target)


def _uuids(texts: Iterable[str | None]) -> pa.Array:
    return pa.array([t if t is None else uuid.UUID(t).bytes for t in texts], type=pa.uuid())


def _uuid_lists(lists: Sequence[Sequence[str | None] | None], target: pa.DataType) -> pa.Array:
    """Arrow cannot make lists of this type by itself."""
    edges = list(accumulate((len(texts or ()) for texts in lists), initial=0))
    return pa.ListArray.from_arrays(
        pa.array(edges, pa.int32()),
        _uuids(text for texts in lists for text in texts or ()),
        type=target,
        mask=pa.array([texts is None for texts in lists]),
    )


@dataclass(frozen=True)
class FileTarget:
    """Where executors write one table's files, and as what; pickled to them."""

    schema: pa.Schema
    folder: str
    store: ObjectStore | None = None
    day_of: str | None = None
    """The column by whose day the table is partitioned."""
    partition: str = ""
    """What the partition is called in paths."""
    codec: str = "zstd"

    def write(self, rows: pa.RecordBatch) -> list[Written]:
        """Write rows, one file for each day in them; gives the files."""
        return [self._write(part, day) for day, part in self._days(rows) if part.num_rows]

    def _days(self, rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if self.day_of is None:
            yield None, rows
            return
        days = rows[self.day_of].cast(pa.date32())
        for day in pc.unique(days):
            is_all = pc.all(pc.equal(days, day)).as_py()
            yield str(day), rows if is_all else rows.filter(pc.equal(days, day))

    def _write(self, rows: pa.RecordBatch, day: str | None) -> Written:
        table = pa.Table.from_struct_array(
            fit(rows.to_struct_array(), pa.struct(list(self.schema)))
        )
        place = "" if day is None else f"{self.partition}={day}/"
        uri = f"{self.folder}{place}{uuid.uuid4()}.parquet"
        with self.create(uri) as sink:
            # Most columns have as many values as rows, and where not, zstd sees it as well.
            pq.write_table(
                table.cast(self.schema), sink, compression=self.codec, use_dictionary=False
            )
            size = sink.tell()
        return Written(uri, size, rows.num_rows, day)

    def create(self, uri: str) -> pa.NativeFile:
        """Begin a file of the table."""
        system, path = filesystem(uri, self.store)
        if isinstance(system, fs.LocalFileSystem):
            system.create_dir(path.rpartition("/")[0])
        return system.open_output_stream(path)


def filesystem(uri: str, store: ObjectStore | None) -> tuple[fs.FileSystem, str]:
    """What writes to an address, and what the address is called there."""
    if store is None or not is_s3(uri):
        # Names stand in Iceberg's addresses as they are: nothing in them is escaped.
        return fs.LocalFileSystem(), re.sub(r"^file:(//)?", "", uri)
    scheme, _, endpoint = (store.endpoint or "").rpartition("://")
    system = fs.S3FileSystem(
        access_key=store.key,
        secret_key=store.secret,
        session_token=store.session,
        region=store.region,
        endpoint_override=endpoint or None,
        scheme=scheme or "https",
    )
    return system, uri.partition("://")[2]


def location_in_iceberg(uri: str) -> str:
    """The name that Iceberg gives a file with this address: Hadoop rewrites those of local ones.

    A deletion vector names its data file, so the two names must be the same text.
    """
    return re.sub(r"^(file:)?/+", "file:/", uri)


def can_write(folder: str, store: ObjectStore | None) -> bool:
    """Whether Python can write there as Spark can: a folder, or a store that we were told of."""
    if is_s3(folder):
        return store is not None
    return folder.startswith(("/", "file:"))


def codec_of(properties: Mapping[str, str]) -> str | None:
    """The compression that a table asks for, as Arrow calls it; None if Arrow has it not."""
    return _CODECS.get(properties.get(CODEC_PROPERTY, "zstd"))


def read_files(listed: Iterable[Sequence[Any]]) -> list[Written]:
    """Read files back as they come out of Spark."""
    return [Written(*one) for one in listed]

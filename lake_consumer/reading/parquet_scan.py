"""The SQL by which DuckDB itself reads the data files of one Iceberg snapshot. Pure.

DuckDB's Parquet reader needs no Python while it scans, so nothing of a query can outlive the
interpreter, and it reads with every core. Iceberg's rules are carried into the SQL:

- Columns are found by field id, whatever the file calls them. A column that a file lacks is null,
  or the column's initial default; a narrower type is widened.
- Rows in a deletion vector are left out, by a bitmap per file and the row's number in its file.

Inside a struct DuckDB finds fields by name only. A struct in which a name has had two meanings, or
is one that Iceberg's writers spell differently in files, and everything else that is not certain
here, is left to pyiceberg: `plan_parquet_scan` returns None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.conversions import to_json
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

_TYPES: Mapping[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    StringType: "VARCHAR",
    UUIDType: "UUID",
    BinaryType: "BLOB",
}
_LOCAL = re.compile(r"(?:file:(?://)?)?(?P<path>/[^*?\[\]{}\\#%]+)")
"""A local path without characters that have a meaning in patterns or addresses."""

_SAME_IN_FILES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that need no escape in Avro, and so none in Parquet files that Iceberg writes."""


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A data file of the snapshot."""

    path: str
    is_parquet: bool = True


@dataclass(frozen=True, slots=True)
class ScannedColumn:
    """A column as DuckDB is told to find it."""

    field_id: int
    name: str
    type: str
    default: str | None
    """Text of the value in files that lack the column."""


@dataclass(frozen=True, slots=True)
class ParquetScan:
    """Columns and files that DuckDB reads without help."""

    columns: tuple[ScannedColumn, ...]
    paths: tuple[str, ...]

    def sql(self, deleted: str | None = None, condition: str | None = None) -> str:
        """Select the table's rows.

        `deleted` names a table of one row, whose list `files` has a bitmap, or NULL, per path.
        """
        if not self.paths:
            # The reader wants at least one file.
            nothing = (f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in self.columns)
            return f"SELECT {', '.join(nothing)} WHERE false"
        # Files and virtual columns have names of their own; a column's name cannot clash with them.
        shown = (f"column_{at} AS {quote(c.name)}" for at, c in enumerate(self.columns))
        rows = f"SELECT {', '.join(shown)} FROM {self._reader()}"
        if deleted is not None:
            bitmap = f"(SELECT files FROM {deleted})[CAST(file_index AS BIGINT) + 1]"
            found = f"get_bit({bitmap}, CAST(file_row_number AS INTEGER))"
            rows += f" WHERE coalesce({found}, 0) = 0"
        return rows if condition is None else f"SELECT * FROM ({rows}) WHERE {condition}"

    def _reader(self) -> str:
        files = ", ".join(literal(path) for path in self.paths)
        fields = ", ".join(
            f"{c.field_id}: {{name: 'column_{at}', type: {literal(c.type)}, "
            f"default_value: {_default(c.default)}}}"
            for at, c in enumerate(self.columns)
        )
        return f"read_parquet([{files}], hive_partitioning = false, schema = MAP {{{fields}}})"


def plan_parquet_scan(
    schema: Schema, history: Iterable[Schema], files: Sequence[ScannedFile]
) -> ParquetScan | None:
    """Decide whether DuckDB can read these files of a table by itself, and how.

    `history` is every schema that the table's files may have been written with.
    """
    columns = [_column(field) for field in schema.fields]
    paths = [local_path(file.path) for file in files]
    if not columns or not all(file.is_parquet for file in files) or not names_are_ids(history):
        return None
    known = tuple(column for column in columns if column is not None)
    local = tuple(path for path in paths if path is not None)
    if len(known) < len(columns) or len(local) < len(paths):
        return None
    return ParquetScan(known, local)


def local_path(address: str) -> str | None:
    """The path of a local file, or None for an object store or a path with special characters."""
    found = _LOCAL.fullmatch(address)
    return found["path"] if found else None


def duckdb_type(type: IcebergType) -> str | None:
    """Spell a type for DuckDB; None if it has none of the same values."""
    match type:
        case DecimalType():
            return f"DECIMAL({type.precision}, {type.scale})"
        case ListType():
            element = duckdb_type(type.element_type)
            return element and f"{element}[]"
        case MapType():
            key, value = duckdb_type(type.key_type), duckdb_type(type.value_type)
            return key and value and f"MAP({key}, {value})"
        case StructType():
            parts = [(field.name, duckdb_type(field.field_type)) for field in type.fields]
            if not parts or any(part is None for _, part in parts):
                return None
            return f"STRUCT({', '.join(f'{quote(name)} {part}' for name, part in parts)})"
    return next((name for kind, name in _TYPES.items() if isinstance(type, kind)), None)


def names_are_ids(history: Iterable[Schema]) -> bool:
    """Whether, inside structs, a name has always meant the same field and the other way round."""
    ids: dict[tuple[int, str], int] = {}
    names: dict[int, str] = {}
    for schema in history:
        for parent, field in _nested(schema):
            if not _SAME_IN_FILES.fullmatch(field.name) or field.initial_default is not None:
                return False
            # DuckDB does not tell `A` from `a`.
            name = field.name.lower()
            if ids.setdefault((parent, name), field.field_id) != field.field_id:
                return False
            if names.setdefault(field.field_id, name) != name:
                return False
    return True


def _nested(schema: Schema) -> Iterator[tuple[int, NestedField]]:
    for field in schema.fields:
        yield from _fields_of(field.field_id, field.field_type)


def _fields_of(parent: int, type: IcebergType) -> Iterator[tuple[int, NestedField]]:
    match type:
        case StructType():
            for field in type.fields:
                yield parent, field
                yield from _fields_of(field.field_id, field.field_type)
        case ListType():
            yield from _fields_of(type.element_id, type.element_type)
        case MapType():
            yield from _fields_of(type.key_id, type.key_type)
            yield from _fields_of(type.value_id, type.value_type)


def _column(field: NestedField) -> ScannedColumn | None:
    spelled = duckdb_type(field.field_type)
    if spelled is None:
        return None
    default = None
    if field.initial_default is not None:
        if not field.field_type.is_primitive:
            return None
        default = _default_text(field)
    return ScannedColumn(field.field_id, field.name, spelled, default)


def _default_text(field: NestedField) -> str:
    """The initial default in the text that DuckDB casts to the column's type."""
    value: object = to_json(field.field_type, field.initial_default)  # type: ignore[arg-type]
    if isinstance(field.field_type, BinaryType):
        return "".join(f"\\x{byte:02X}" for byte in bytes.fromhex(str(value)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _default(text: str | None) -> str:
    return "NULL" if text is None else literal(text)


def quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

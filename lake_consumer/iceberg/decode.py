"""From message bodies to typed Arrow columns, in the executors: the rows of a change log.

Hot code: it runs once per change. Values are gathered by column and handed to Arrow a column at a
time; Arrow reads dates, timestamps and decimals from their text. Only where Arrow refuses a column
(a NaN among decimals) or cannot know the type (lists, json) does Python look at single values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from lake_consumer.columns import TEXT_COLUMN, Columns, LakeColumn
from lake_consumer.evolution import names_in
from lake_consumer.values import from_contract, from_text, to_text
from schemas.codecs import CODECS
from schemas.shapes import TableShape
from schemas.types import ContractType
from schemas.values import NO_NATIVE_FORM

_SPARK_TO_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}
_TEXT_MAP = pa.map_(pa.string(), pa.string())
_READ_BY_ARROW = frozenset({"decimal", "date", "timestamp", "timestamptz"})

PLACE_SCHEMA = pa.schema(
    [
        ("operation", pa.string()),
        ("stream_seq", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_ts", pa.timestamp("us", tz="UTC")),
        ("lsn", pa.int64()),
        ("xid", pa.int64()),
        ("seq", pa.int64()),
        ("last", pa.bool_()),
        ("schema_revision", pa.int64()),
        ("msg_id", pa.string()),
        ("unchanged", pa.list_(pa.string())),
    ]
)


def arrow_type(type: ContractType) -> pa.DataType:
    if type.element is not None:
        return pa.list_(arrow_type(type.element))
    spark = type.spark
    if spark.startswith("decimal("):
        precision, scale = spark[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _SPARK_TO_ARROW[spark]


def row_type(columns: Columns) -> pa.StructType:
    fields = [pa.field(column.name, arrow_type(column.type)) for column in columns]
    return pa.struct([*fields, pa.field(TEXT_COLUMN, _TEXT_MAP)])


def log_arrow_schema(columns: Columns) -> pa.Schema:
    row = row_type(columns)
    return pa.schema([*PLACE_SCHEMA, pa.field("new", row), pa.field("old", row)])


class SentRow(NamedTuple):
    """A row as a message carries it, and which of its columns travelled as text."""

    values: dict[Any, Any]
    text: Sequence[str]
    revision: int


@dataclass(frozen=True)
class Decoder:
    """Decodes changes of one table: any of `shapes` in, the log's `columns` out."""

    columns: Columns
    shapes: Mapping[int, TableShape]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = {revision: self._names(shape) for revision, shape in self.shapes.items()}
        for batch in batches:
            if batch.num_rows:
                yield self.decode(batch, names)

    def _names(self, shape: TableShape) -> tuple[str | None, ...]:
        """What a revision calls each of the log's columns."""
        return names_in(shape, self.columns)

    def struct(self, rows: list[SentRow | None]) -> pa.StructArray:
        """Rows of any of the shapes as one column, typed as a log's `new` is."""
        names = {revision: self._names(shape) for revision, shape in self.shapes.items()}
        return self._rows(rows, names)

    def decode(
        self, batch: pa.RecordBatch, names: Mapping[int, tuple[str | None, ...]]
    ) -> pa.RecordBatch:
        sequences, codecs, bodies = (
            batch.column(name).to_pylist() for name in ("stream_seq", "codec", "body")
        )
        changes = [CODECS[codec].decode(body) for codec, body in zip(codecs, bodies, strict=True)]
        place = _place(changes, sequences)
        new = self._rows([_new(change) for change in changes], names)
        old = self._rows([_old(change) for change in changes], names)
        return pa.RecordBatch.from_arrays([*place, new, old], schema=log_arrow_schema(self.columns))

    def _rows(
        self, rows: list[SentRow | None], names: Mapping[int, tuple[str | None, ...]]
    ) -> pa.StructArray:
        if not any(rows):
            return pa.nulls(len(rows), type=row_type(self.columns))
        texts: list[dict[str, str] | None] = [None] * len(rows)
        gathered = _gather(rows, names)
        marked = self._take_texts(rows, names, gathered, texts)
        arrays = [
            _column(column, values, texts, marked.get(at, {}))
            for at, (column, values) in enumerate(zip(self.columns, gathered, strict=True))
        ]
        pairs = [None if text is None else list(text.items()) for text in texts]
        return pa.StructArray.from_arrays(
            [*arrays, pa.array(pairs, type=_TEXT_MAP)],
            fields=list(row_type(self.columns)),
            mask=pa.array([row is None for row in rows]),
        )

    def _take_texts(
        self,
        rows: list[SentRow | None],
        names: Mapping[int, tuple[str | None, ...]],
        gathered: list[list[Any]],
        texts: list[dict[str, str] | None],
    ) -> dict[int, dict[int, Any]]:
        """Take values that travelled as text out of their columns; give what is native of them."""
        native: dict[int, dict[int, Any]] = {}
        for index, row in enumerate(rows):
            for name in row.text if row is not None else ():
                at = names[row.revision].index(name) if row is not None else 0
                text, column = gathered[at][index], self.columns[at]
                if not isinstance(text, str):
                    # The list names columns of the new row; the old row's value may be native.
                    continue
                gathered[at][index] = None
                value = from_text(column.type, text)
                if value is NO_NATIVE_FORM:
                    _note(texts, index, column, text)
                else:
                    native.setdefault(at, {})[index] = value
        return native


def _gather(
    rows: list[SentRow | None], names: Mapping[int, tuple[str | None, ...]]
) -> list[list[Any]]:
    """Turn rows into columns; a revision that lacks a column leaves nulls in it."""
    revisions = {row.revision for row in rows if row is not None}
    if len(revisions) == 1:
        (only,) = revisions
        sent = [{} if row is None else row.values for row in rows]
        return [[row.get(name) for row in sent] for name in names[only]]
    looked_up = [((), {}) if row is None else (names[row.revision], row.values) for row in rows]
    width = len(next(iter(names.values())))
    return [
        [values.get(known[at]) if known else None for known, values in looked_up]
        for at in range(width)
    ]


def _column(
    column: LakeColumn,
    values: list[Any],
    texts: list[dict[str, str] | None],
    native: Mapping[int, Any],
) -> pa.Array:
    """Make one Arrow column; `native` are values already read, by index."""
    if not native and (quick := _quick(column.type, values)) is not None:
        return quick
    converted = [from_contract(column.type, value) for value in values]
    for index, value in native.items():
        converted[index] = value
    for index, value in enumerate(converted):
        if value is NO_NATIVE_FORM:
            converted[index] = None
            _note(texts, index, column, to_text(column.type, values[index]))
    return pa.array(converted, type=arrow_type(column.type))


def _quick(type: ContractType, values: list[Any]) -> pa.Array | None:
    """Let Arrow make the column at once; None where it takes a look at each value."""
    target = arrow_type(type)
    innermost = type.element or type
    if innermost.kind == "json":
        return None
    try:
        if innermost.kind not in _READ_BY_ARROW or target == pa.string():
            return pa.array(values, type=target)
        return None if type.element else pa.array(values, type=pa.string()).cast(target)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _note(texts: list[dict[str, str] | None], index: int, column: LakeColumn, text: str) -> None:
    texts[index] = {**(texts[index] or {}), column.name: text}


_PLAIN_FIELDS = (
    "commit_lsn", "commit_ts", "lsn", "xid", "seq", "last", "schema_revision", "msg_id",
)  # fmt: skip


def _place(changes: list[dict[str, Any]], sequences: list[int]) -> list[pa.Array]:
    gathered: dict[str, list[Any]] = {
        "operation": [change["operation"] for change in changes],
        "stream_seq": sequences,
        "unchanged": [change.get("unchanged") for change in changes],
    }
    for name in _PLAIN_FIELDS:
        gathered[name] = [change[name] for change in changes]
    return [_PLACE_READERS.get(field.name, pa.array)(gathered[field.name], field.type)
            for field in PLACE_SCHEMA]  # fmt: skip


def _read_timestamps(values: list[str], type: pa.DataType) -> pa.Array:
    return pa.array(values, type=pa.string()).cast(type)


_PLACE_READERS: Mapping[str, Callable[[list[Any], pa.DataType], pa.Array]] = {
    "commit_ts": _read_timestamps,
}


def _new(change: dict[str, Any]) -> SentRow | None:
    if change["operation"] not in ("INSERT", "UPDATE"):
        return None
    return SentRow(change["data"], change.get("text", ()), change["schema_revision"])


def _old(change: dict[str, Any]) -> SentRow | None:
    """What was before: all a delete sends, the whole old row, or the old key."""
    before = change["data"] if change["operation"] == "DELETE" else None
    if before is None:
        before = change.get("old") or change.get("key")
    if not before:
        return None
    return SentRow(before, change.get("text", ()), change["schema_revision"])

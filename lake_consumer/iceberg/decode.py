"""From message bodies to typed Arrow columns, in the executors: the rows of a change log.

Hot code: it runs once per change. Values are gathered by column and handed to Arrow a column at a
time; Arrow reads dates, timestamps and decimals from their text. Only where Arrow refuses a column
(a NaN among decimals) or cannot know the type (lists, json) does Python look at single values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from lake_consumer.columns import TEXT_COLUMN, Columns, LakeColumn
from lake_consumer.evolution import names_in
from lake_consumer.values import from_contract, from_text, to_text
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

    values: Mapping[Any, Any]
    text: Sequence[str]
    revision: int


class Sent(NamedTuple):
    """Rows of one table as they were sent, column-wise where that is quicker.

    `values` has a map per row or None where there is no row; `texts` has, by index, the columns of
    the few rows with values that travelled as text.
    """

    values: Sequence[Mapping[Any, Any] | None]
    revisions: Sequence[int]
    texts: Mapping[int, Sequence[str]]


@dataclass(frozen=True)
class Decoder:
    """Decodes changes of one table: any of `shapes` in, the log's `columns` out."""

    columns: Columns
    shapes: Mapping[int, TableShape]

    @cached_property
    def schema(self) -> pa.Schema:
        return log_arrow_schema(self.columns)

    @cached_property
    def _names(self) -> Mapping[int, tuple[str | None, ...]]:
        """What each revision calls each of the log's columns."""
        return {revision: names_in(shape, self.columns) for revision, shape in self.shapes.items()}

    def decode(self, sequences: Sequence[int], changes: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Make rows of the change log."""
        new: list[dict[str, Any] | None] = []
        old: list[dict[str, Any] | None] = []
        texts: dict[int, Sequence[str]] = {}
        for index, change in enumerate(changes):
            operation = change["operation"]
            if operation == "DELETE":
                new.append(None)
                old.append(change["data"] or None)
            elif operation == "TRUNCATE":
                new.append(None)
                old.append(None)
            else:
                new.append(change["data"])
                old.append(change.get("old") or change.get("key"))
            if "text" in change:
                texts[index] = change["text"]
        revisions = [change["schema_revision"] for change in changes]
        return pa.RecordBatch.from_arrays(
            [
                *_place(changes, sequences, revisions),
                self._struct(Sent(new, revisions, texts)),
                self._struct(Sent(old, revisions, texts)),
            ],
            schema=self.schema,
        )

    def rows(self, rows: Sequence[SentRow | None]) -> pa.StructArray:
        """Make rows that are not of changes, such as a snapshot's."""
        return self._struct(
            Sent(
                [None if row is None else row.values for row in rows],
                [0 if row is None else row.revision for row in rows],
                {at: row.text for at, row in enumerate(rows) if row is not None and row.text},
            )
        )

    def chunk(
        self, rows: Sequence[Mapping[Any, Any]], texts: Mapping[int, Sequence[str]], revision: int
    ) -> pa.StructArray:
        """Decode the rows of a snapshot chunk; `texts` are by row, as in `Sent`."""
        if not rows:
            return pa.array([], type=self.row_type)
        return self._dense(Sent(rows, [revision] * len(rows), texts))

    def _struct(self, sent: Sent) -> pa.StructArray:
        present = [at for at, row in enumerate(sent.values) if row is not None]
        if len(present) == len(sent.values):
            return self._dense(sent)
        if not present:
            return pa.nulls(len(sent.values), type=self.row_type)
        place = {at: dense for dense, at in enumerate(present)}
        dense = self._dense(
            Sent(
                [sent.values[at] for at in present],
                [sent.revisions[at] for at in present],
                {place[at]: text for at, text in sent.texts.items() if at in place},
            )
        )
        # A place that is null takes a null: most deletes' new rows, most changes' old ones.
        return dense.take(
            pa.array([place.get(at) for at in range(len(sent.values))], type=pa.int32())
        )

    @cached_property
    def row_type(self) -> pa.StructType:
        return row_type(self.columns)

    def _dense(self, sent: Sent) -> pa.StructArray:
        """Make rows of which none is missing."""
        gathered = self._gather(sent)
        texts: dict[int, dict[str, str]] = {}
        marked = self._take_texts(sent, gathered, texts)
        arrays = [
            _column(column, values, texts, marked.get(at, {}))
            for at, (column, values) in enumerate(zip(self.columns, gathered, strict=True))
        ]
        return pa.StructArray.from_arrays(
            [*arrays, _text_maps(texts, len(sent.values))], fields=list(self.row_type)
        )

    def _gather(self, sent: Sent) -> list[list[Any]]:
        """Turn rows into columns; a revision that lacks a column leaves nulls in it."""
        only = sent.revisions[0]
        if sent.revisions.count(only) == len(sent.revisions):
            return [[row.get(name) for row in sent.values] for name in self._names[only]]  # type: ignore[union-attr]
        looked_up = [
            (self._names[revision], row or {})
            for revision, row in zip(sent.revisions, sent.values, strict=True)
        ]
        return [
            [None if names[at] is None else row.get(names[at]) for names, row in looked_up]
            for at in range(len(self.columns))
        ]

    def _take_texts(
        self, sent: Sent, gathered: list[list[Any]], texts: dict[int, dict[str, str]]
    ) -> dict[int, dict[int, Any]]:
        """Take values that travelled as text out of their columns; give what is native of them."""
        native: dict[int, dict[int, Any]] = {}
        for index, marked in sent.texts.items():
            names = self._names[sent.revisions[index]]
            for name in marked:
                at = names.index(name)
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


def _text_maps(texts: Mapping[int, dict[str, str]], size: int) -> pa.Array:
    if not texts:
        return pa.nulls(size, type=_TEXT_MAP)
    pairs = [list(texts[at].items()) if at in texts else None for at in range(size)]
    return pa.array(pairs, type=_TEXT_MAP)


def _column(
    column: LakeColumn,
    values: list[Any],
    texts: dict[int, dict[str, str]],
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


def _note(texts: dict[int, dict[str, str]], index: int, column: LakeColumn, text: str) -> None:
    texts.setdefault(index, {})[column.name] = text


_PLAIN_FIELDS = ("operation", "commit_lsn", "commit_ts", "lsn", "xid", "seq", "last", "msg_id")


def _place(
    changes: Sequence[dict[str, Any]], sequences: Sequence[int], revisions: Sequence[int]
) -> list[pa.Array]:
    gathered: dict[str, Sequence[Any]] = {
        name: [change[name] for change in changes] for name in _PLAIN_FIELDS
    }
    gathered["stream_seq"] = sequences
    gathered["schema_revision"] = revisions
    gathered["unchanged"] = [change.get("unchanged") for change in changes]
    return [_PLACE_READERS.get(field.name, pa.array)(gathered[field.name], field.type)
            for field in PLACE_SCHEMA]  # fmt: skip


def _read_timestamps(values: Sequence[str], type: pa.DataType) -> pa.Array:
    return pa.array(values, type=pa.string()).cast(type)


_PLACE_READERS: Mapping[str, Callable[[Sequence[Any], pa.DataType], pa.Array]] = {
    "commit_ts": _read_timestamps,
}

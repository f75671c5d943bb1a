"""Rows of a mirror at a cut, and logged changes up to it, as `verify` compares them: in cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, Or
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import StructType

from lake_consumer.columns import TEXT_COLUMN, LakeColumn, lake_column, read_doc
from lake_consumer.cuts import Cut, CutBook
from lake_consumer.forks import FORK_COLUMN
from lake_consumer.iceberg.datasets import compare
from lake_consumer.iceberg.names import log_of, mirror_of
from lake_consumer.iceberg.reading import LakeReader, watermark_of
from lake_consumer.iceberg.scanning import scan_batches
from lake_consumer.shapes import SHAPE_PROPERTY
from lake_consumer.verify.canonical import Cell, InText, Row, lake_reader, noted_reader
from lake_consumer.verify.replay import LoggedChange
from lake_consumer.verify.visibility import SeenTransactions
from schemas.names import TableName
from schemas.shapes import TableShape

_CHANGE_FIELDS = ("operation", "stream_seq", "xid", "unchanged", "new", "old")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are compared, and where among them the key is."""

    columns: tuple[LakeColumn, ...]
    key: tuple[int, ...]

    def key_of(self, row: Row) -> Row:
        return tuple(row[at] for at in self.key)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def key_columns(self) -> list[LakeColumn]:
        return [self.columns[at] for at in self.key]


class MirrorAtCut:
    """One table's mirror, at one cut."""

    def __init__(self, lake: LakeReader, book: CutBook, cut: Cut, name: TableName) -> None:
        self.name = name
        self._lake = lake
        self._cut = cut
        self._table = lake.load(mirror_of(name))
        at_cut = book.mirror_snapshot(str(name), cut)
        current = self._table.current_snapshot()
        # Maintenance and healing leave newer snapshots of the same state; those are what is read.
        self.is_newest = watermark_of(self._table).stream_sequence <= cut.stream_seq
        newest = current.snapshot_id if current else None
        self.snapshot_id = newest if self.is_newest and newest is not None else at_cut
        self.columns = _columns(self._table.scan(snapshot_id=self.snapshot_id).projection())

    @property
    def shape(self) -> TableShape:
        return TableShape.from_map(json.loads(self._table.properties[SHAPE_PROPERTY]))

    def rows(
        self, layout: Layout, low: int | None = None, high: int | None = None
    ) -> Iterator[Row]:
        """Read every row; of a key that begins with an integer, only from `low` to `high`."""
        first = layout.key_columns[0].name
        scan = self._table.scan(
            row_filter=_span(first, low, high),
            selected_fields=(*layout.names, TEXT_COLUMN),
            snapshot_id=self.snapshot_id,
        )
        for batch in scan_batches(scan):
            yield from _cells(batch, layout.columns)

    def unseen_changes(self, layout: Layout, seen: SeenTransactions) -> Iterator[LoggedChange]:
        """Changes up to the cut that a PostgreSQL snapshot does not see, in order."""
        table = self._lake.load(log_of(self.name))
        positions = _names_by_position(table)
        found: list[tuple[int, dict[str, Any]]] = []
        # A log of an earlier version has no such column, and then no change that never happened.
        fork = [FORK_COLUMN] if FORK_COLUMN in table.schema().column_names else []
        scan = table.scan(
            row_filter=And(_unseen(seen), compare("stream_seq", "<=", self._cut.stream_seq)),
            selected_fields=(*_CHANGE_FIELDS, *fork),
        )
        for batch in scan_batches(scan):
            rows = [row for row in batch.to_pylist() if row.get(FORK_COLUMN) is None]
            found += [(row["stream_seq"], row) for row in rows if not seen.sees(row["xid"])]
        for _, change in sorted(found, key=lambda pair: pair[0]):
            yield _change(change, layout, positions)


def _columns(schema: Schema) -> dict[int, LakeColumn]:
    found = (read_doc(field.name, field.doc) for field in schema.fields)
    return {column.position: column for column in found if column is not None}


def _names_by_position(log: Table) -> dict[int, str]:
    row = log.schema().find_field("new").field_type
    if not isinstance(row, StructType):
        raise TypeError("a change log's `new` is a struct")
    return {at: column.name for at, column in _columns(Schema(*row.fields)).items()}


def _span(column: str, low: int | None, high: int | None) -> BooleanExpression:
    found: BooleanExpression = AlwaysTrue()
    if low is not None:
        found = And(found, compare(column, ">=", low))
    if high is not None:
        found = And(found, compare(column, "<=", high))
    return found


def _unseen(seen: SeenTransactions) -> BooleanExpression:
    low, wrapped = seen.oldest_unseen
    above = compare("xid", ">=", low)
    return above if wrapped is None else Or(above, compare("xid", "<=", wrapped))


def _cells(batch: pa.RecordBatch, columns: Sequence[LakeColumn]) -> Iterable[Row]:
    read = [
        list(map(lake_reader(column.type), batch.column(column.name).to_pylist()))
        for column in columns
    ]
    texts = batch.column(TEXT_COLUMN)
    if texts.null_count < len(texts):
        for index, noted in enumerate(texts.to_pylist()):
            for name, text in noted or ():
                at = next((n for n, column in enumerate(columns) if column.name == name), None)
                if at is not None:
                    read[at][index] = _noted(columns[at], text, read[at][index])
    return zip(*read, strict=True)


def _change(
    change: Mapping[str, Any], layout: Layout, positions: Mapping[int, str]
) -> LoggedChange:
    names = [positions[column.position] for column in layout.columns]
    new = _image(change["new"], layout, names)
    old = _image(change["old"], layout, names)
    sent = set(map(lake_column, change["unchanged"] or ()))
    return LoggedChange(
        old_key=None if old is None else layout.key_of(old),
        key=None if new is None else layout.key_of(new),
        row=new,
        unchanged=frozenset(at for at, column in enumerate(layout.columns) if column.name in sent),
    )


def _image(image: Mapping[str, Any] | None, layout: Layout, names: Sequence[str]) -> Row | None:
    if image is None:
        return None
    noted = dict(image.get(TEXT_COLUMN) or ())
    return tuple(_cell(column, image[name], noted.get(name))
                 for column, name in zip(layout.columns, names, strict=True))  # fmt: skip


def _cell(column: LakeColumn, value: Any, noted: str | None) -> Cell:
    cell = lake_reader(column.type)(value)
    return cell if noted is None else _noted(column, noted, cell)


def _noted(column: LakeColumn, text: str, beside: Cell) -> Cell:
    """A value that is in the text map; its column must then be null, or the row is wrong."""
    cell = noted_reader(column.type)(text)
    return cell if beside is None else InText((text, beside))

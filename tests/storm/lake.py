"""The lake as any reader of Iceberg sees it: by pyiceberg, without the code that writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from lake_consumer.cuts import Cut, CutBook
from lake_consumer.errors import NotReadable
from lake_consumer.iceberg.names import CHANGES_SUFFIX, CUTS, LakeName
from lake_consumer.iceberg.reading import LakeReader, watermark_of
from lake_consumer.tablestates import TableState
from schemas.names import TableName
from tests.support.lakeprocess import LakeProcess

TEXTS = "_bridge_text"
_DOC = re.compile(r"attnum=(\d+)")


@dataclass(frozen=True, slots=True)
class LakeRows:
    """Rows of a mirror by attnum."""

    attnums: tuple[int, ...]
    rows: list[list[Any]]


class LakeView:
    """Everything that the judge reads of a lake."""

    def __init__(self, process: LakeProcess) -> None:
        self._reader = LakeReader(process.catalog, process.warehouse)

    def close(self) -> None:
        self._reader.close()

    def names(self) -> list[LakeName]:
        return self._reader.names()

    def logs(self) -> list[LakeName]:
        return [name for name in self.names() if name.namespace.endswith(CHANGES_SUFFIX)]

    def applied(self) -> int:
        """The stream sequence up to which everything is in the lake."""
        if CUTS not in self.names():
            return 0
        return watermark_of(self._reader.load(CUTS)).stream_sequence

    def moment(self) -> dict[str, int]:
        """How many transactions of each writer the lake has."""
        found = self.mirror(LakeName("public", "moment"))
        return {row[0]: row[1] for row in found.rows} if found is not None else {}

    def states(self) -> dict[LakeName, TableState]:
        """The state of every mirror, by the mirror's name."""
        return {
            LakeName(log.namespace.removesuffix(CHANGES_SUFFIX), log.name): state_of(
                self._reader.load(log)
            )
            for log in self.logs()
        }

    def mirror(self, name: LakeName, snapshot_id: int | None = None) -> LakeRows | None:
        """A mirror now, or at a snapshot; None where there is none."""
        try:
            table = self._reader.load(name)
        except Exception as error:
            if isinstance(error.__cause__, NoSuchTableError):
                return None
            raise
        found = table.scan(snapshot_id=snapshot_id)
        return _rows(found.to_arrow(), found.projection().fields)

    def log(self, name: LakeName) -> list[dict[str, Any]]:
        """Every change of a log, in the order of the stream."""
        found = self._reader.load(name).scan()
        if not list(found.plan_files()):
            # pyiceberg cannot make an empty table that has a uuid in a struct.
            return []
        rows: list[dict[str, Any]] = found.to_arrow().sort_by("stream_seq").to_pylist()
        return rows

    def log_columns(self, name: LakeName) -> dict[str, tuple[int, str]]:
        """What each column of a log's rows is: its attnum and the rest of its description."""
        image: Any = self._reader.load(name).schema().find_field("new").field_type
        return {
            field.name: (int(found[1]), field.doc)
            for field in image.fields
            if (found := _DOC.match(field.doc or ""))
        }

    def cuts(self) -> CutBook:
        return self._reader.cuts()

    def names_at(self, cut: Cut) -> dict[TableName, TableName]:
        """By the names that tables had at a cut, the names that they have now."""
        return self._reader.table_names().names_at(list(self._reader.states()), cut.stream_seq)

    def snapshot_at(self, book: CutBook, name: LakeName, cut: Cut) -> int | None:
        """The mirror's snapshot at a cut; None where the cut says that it cannot be read."""
        try:
            return book.mirror_snapshot(str(name), cut)
        except NotReadable:
            return None


def state_of(log: Table) -> TableState:
    return TableState.from_properties(log.properties)


def _rows(found: pa.Table, fields: Any) -> LakeRows:
    columns = {f.name: int(doc[1]) for f in fields if (doc := _DOC.match(f.doc or ""))}
    names = list(columns)
    data = [found.column(name).to_pylist() for name in names]
    texts = [dict(row or ()) for row in found.column(TEXTS).to_pylist()]
    rows = [
        [text.get(name, value) for name, value in zip(names, values, strict=True)]
        for text, values in zip(texts, zip(*data, strict=True), strict=True)
    ]
    return LakeRows(tuple(columns.values()), rows)

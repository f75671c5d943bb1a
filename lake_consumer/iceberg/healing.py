"""Rows put right in a mirror, in one step that only succeeds if nobody wrote meanwhile.

The rows go to a branch that starts at the snapshot they were compared with; then the table's main
line is moved forward to it. Iceberg refuses that when main has moved since, so a batch that came in
between is never overwritten with an older state. The commits carry no watermark: the table stands
where it stood. Its newest cut then names the healed snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lake_consumer.columns import TEXT_COLUMN
from lake_consumer.cuts import Cut
from lake_consumer.errors import HealRefused
from lake_consumer.iceberg.failures import clear_errors
from lake_consumer.iceberg.mirrorrows import Layout, MirrorAtCut
from lake_consumer.iceberg.names import CATALOG, CUTS, LakeName, mirror_of, quote
from lake_consumer.iceberg.unstamped import argument, take_stamp_off, text
from lake_consumer.values import may_be_text, to_text
from lake_consumer.verify.canonical import Cell, InText
from lake_consumer.verify.rows import Difference
from schemas.names import TableName
from schemas.types import ContractType

BRANCH = "walbridge_heal"
_views = count()


class Healer:
    """Writes rows anew in one lake."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @clear_errors
    def heal(
        self,
        table: TableName,
        mirror: MirrorAtCut,
        layout: Layout,
        differences: Sequence[Difference],
        cut: Cut,
    ) -> None:
        """Make the rows of these keys what they should be, or raise `HealRefused`."""
        if not mirror.is_newest:
            raise HealRefused(f"the mirror of {table} is already behind cut {cut}")
        take_stamp_off(self._spark)
        name = mirror_of(table)
        self._drop_branch(name)
        self._spark.sql(
            f"ALTER TABLE {name.sql} CREATE BRANCH {BRANCH} AS OF VERSION {mirror.snapshot_id}"
        )
        try:
            self._write(name, layout, differences)
            healed = self._publish(name)
        finally:
            self._drop_branch(name)
        self._name_in_cuts(table, cut, healed)

    def _write(self, name: LakeName, layout: Layout, differences: Sequence[Difference]) -> None:
        schema = self._spark.table(name.sql).schema
        wanted = [*layout.names, TEXT_COLUMN]
        schema = StructType([schema[column] for column in wanted])
        # A row's key is in its cells, whether the row should be there or not.
        wrong = [row for item in differences for row in (*item.found, item.expected) if row]
        right = [item.expected for item in differences if item.expected is not None]
        branch = f"{name.sql}.branch_{BRANCH}"
        keys = [column.name for column in layout.key_columns]
        old = self._spark.createDataFrame([_record(layout, row) for row in wrong], schema)
        view = f"_healed_{next(_views)}"
        old.select(*map(quote, [*keys, TEXT_COLUMN])).createOrReplaceTempView(view)
        try:
            # Names are quoted; values come from the view. Iceberg refuses a key that matches twice
            # in the source, so each is given once.
            self._spark.sql(
                f"MERGE INTO {branch} t USING ({_distinct(view, layout)}) s "
                f"ON {_same_key(layout)} WHEN MATCHED THEN DELETE"
            )
        finally:
            self._spark.catalog.dropTempView(view)
        if right:
            new = self._spark.createDataFrame([_record(layout, row) for row in right], schema)
            new.coalesce(1).writeTo(branch).append()

    def _publish(self, name: LakeName) -> int:
        """Move main to the branch; gives the snapshot that the table is at then."""
        try:
            moved = self._spark.sql(
                f"CALL {CATALOG}.system.fast_forward("
                f"table => {argument(name)}, branch => 'main', to => {text(BRANCH)})"
            ).collect()
        except (PySparkException, Py4JError) as error:
            if "ancestor" not in str(error):
                raise
            raise HealRefused(f"{name} was written by others while it was healed") from error
        return int(moved[0]["updated_ref"])

    def _name_in_cuts(self, table: TableName, cut: Cut, snapshot: int) -> None:
        # Values are numbers and a quoted text.
        of_table = f"table_name = {text(str(table))} AND stream_seq <= {cut.stream_seq}"
        self._spark.sql(
            f"UPDATE {CUTS.sql} SET snapshot_id = {snapshot} WHERE {of_table} AND stream_seq = "  # noqa: S608
            f"(SELECT max(stream_seq) FROM {CUTS.sql} WHERE {of_table})"
        )

    def _drop_branch(self, name: LakeName) -> None:
        self._spark.sql(f"ALTER TABLE {name.sql} DROP BRANCH IF EXISTS {BRANCH}")


def _key_terms(layout: Layout, of: str) -> list[str]:
    terms = []
    for column in layout.key_columns:
        terms.append(f"{of}{quote(column.name)}")
        if may_be_text(column.type):
            terms.append(f"{of}{quote(TEXT_COLUMN)}[{text(column.name)}]")
    return terms


def _distinct(view: str, layout: Layout) -> str:
    terms = ", ".join(f"{term} AS k{n}" for n, term in enumerate(_key_terms(layout, "")))
    return f"SELECT DISTINCT {terms} FROM {view}"  # noqa: S608 - quoted names


def _same_key(layout: Layout) -> str:
    terms = _key_terms(layout, "t.")
    return " AND ".join(f"{term} <=> s.k{n}" for n, term in enumerate(terms))


def _record(layout: Layout, row: tuple[Cell, ...]) -> tuple[Any, ...]:
    """A row of cells as Spark takes it: native values, and the texts of those without."""
    noted: dict[str, str] = {}
    values: list[Any] = []
    for column, cell in zip(layout.columns, row, strict=True):
        if isinstance(cell, InText):
            noted[column.name] = _text(column.type, cell.value)
            values.append(None)
        else:
            values.append(_native(column.type, cell))
    return (*values, noted or None)


def _text(type: ContractType, value: Any) -> str:
    return value if isinstance(value, str) else to_text(type, _lists(value))


def _lists(value: Any) -> Any:
    return list(map(_lists, value)) if isinstance(value, tuple) else value


def _native(type: ContractType, cell: Cell) -> Any:
    if cell is None:
        return None
    if type.element is not None:
        return [_native(type.element, item) for item in cell]
    return _NATIVE.get(type.spark.partition("(")[0], _as_is)(cell)


def _as_is(cell: Cell) -> Any:
    return cell


def _moment(cell: str) -> datetime:
    return datetime.fromisoformat(cell.removesuffix("Z")).replace(tzinfo=UTC)


_NATIVE: Mapping[str, Callable[[Any], Any]] = {
    "date": date.fromisoformat,
    "timestamp": _moment,
    "timestamp_ntz": datetime.fromisoformat,
    "decimal": Decimal,
    "float": float,
    "double": float,
}

"""The fold, in Spark: one outcome per key of a batch, without collecting anything.

Most keys need no more than their last change, and the JVM finds it alone. Only keys that met an
unchanged TOAST column or a change of key go through the pure fold in Python: in hash buckets, and
those whose key changed together in one group, because their changes depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from lake_consumer.columns import TEXT_COLUMN, Columns, LakeColumn
from lake_consumer.fold import Event, Key, Outcome, Row, fold
from lake_consumer.iceberg.decode import row_type
from lake_consumer.iceberg.names import quote
from lake_consumer.values import may_be_text

MOVED_TOGETHER = -1
FOLD_BUCKETS = 8


@dataclass(frozen=True)
class KeyedRows:
    """How rows of one table are keyed: `columns` of the log's rows, `key` of the table."""

    columns: Columns
    key: Columns

    def parts(self, row: str) -> list[Column]:
        """What makes two rows the same row: each key column, and its text where it may be text."""
        found: list[Column] = []
        for column in self.key:
            found.append(field(row, column.name))
            if may_be_text(column.type):
                found.append(field(row, TEXT_COLUMN)[column.name])
        return found

    @property
    def aliases(self) -> list[str]:
        return [f"_k{at}" for at in range(sum(1 + may_be_text(c.type) for c in self.key))]

    def keyed(self, rows: DataFrame, row: str, prefix: str = "") -> DataFrame:
        """Add the key's parts as columns of their own."""
        pairs = zip(self.aliases, self.parts(row), strict=True)
        return rows.withColumns({prefix + alias: part for alias, part in pairs})


def field(row: str, name: str) -> Column:
    return F.col(f"{quote(row)}.{quote(name)}" if row else quote(name))


def events_of(changes: DataFrame, rows: KeyedRows) -> DataFrame:
    """Changes with their key; `before` is the row, or key, that an update left behind."""
    is_delete = F.col("operation") == "DELETE"
    events = changes.select(
        "stream_seq",
        "operation",
        "unchanged",
        F.when(is_delete, F.col("old")).otherwise(F.col("new")).alias("row"),
        F.when(~is_delete, F.col("old")).alias("before"),
    )
    events = rows.keyed(events, "row")
    same = F.lit(True)
    for alias, part in zip(rows.aliases, rows.parts("before"), strict=True):
        same = same & F.col(alias).eqNullSafe(part)
    moved = F.col("before").isNotNull() & ~same
    return events.withColumn("moved", moved).withColumn(
        "special", moved | (F.coalesce(F.size("unchanged"), F.lit(0)) > 0)
    )


def outcomes_of(events: DataFrame, rows: KeyedRows, *, special: bool) -> DataFrame:
    """One row per key: operation, row, kept, base."""
    if not special:
        return _last_changes(events, rows)
    keys = _special_keys(events, rows)
    marked = events.join(keys, on=_same(rows, "_s"), how="left")
    simple = marked.where(F.col("together").isNull())
    bucket = F.when(F.col("together"), F.lit(MOVED_TOGETHER)).otherwise(
        F.pmod(F.hash(*rows.aliases), F.lit(FOLD_BUCKETS))
    )
    folded = (
        marked.where(F.col("together").isNotNull())
        .withColumn("bucket", bucket)
        .select("bucket", "stream_seq", "operation", "unchanged", "row", "before", "moved")
        .groupBy("bucket")
        .applyInArrow(_fold_group(rows), outcome_schema(rows.columns))
    )
    return _last_changes(simple, rows).unionByName(folded)


def _same(rows: KeyedRows, prefix: str) -> list[Column]:
    return [F.col(alias).eqNullSafe(F.col(prefix + alias)) for alias in rows.aliases]


def _special_keys(events: DataFrame, rows: KeyedRows) -> DataFrame:
    """Keys that need the pure fold; `together` where a change of key ties them to others."""
    special = events.where("special")
    own = special.select(*rows.aliases, F.col("moved").alias("together"))
    left = special.where("moved").select(
        *[part.alias(a) for a, part in zip(rows.aliases, rows.parts("before"), strict=True)],
        F.lit(True).alias("together"),
    )
    keys = own.unionByName(left).groupBy(*rows.aliases).agg(F.max("together").alias("together"))
    return keys.withColumnsRenamed({alias: f"_s{alias}" for alias in rows.aliases})


def _last_changes(events: DataFrame, rows: KeyedRows) -> DataFrame:
    last = F.max_by(F.struct("operation", "row"), F.col("stream_seq")).alias("last")
    empty = F.lit(None)
    return (
        events.groupBy(*rows.aliases)
        .agg(last)
        .select(
            "last.operation",
            "last.row",
            empty.cast("array<string>").alias("kept"),
            F.when(F.lit(False), F.col("last.row")).alias("base"),
        )
    )


def _outcome_arrow(columns: Columns) -> pa.Schema:
    row = row_type(columns)
    return pa.schema(
        [
            ("operation", pa.string()),
            ("row", row),
            ("kept", pa.list_(pa.string())),
            ("base", row),
        ]
    )


def outcome_schema(columns: Columns) -> Any:
    return from_arrow_schema(_outcome_arrow(columns), prefer_timestamp_ntz=True)


def _fold_group(rows: KeyedRows) -> Callable[[pa.Table], pa.Table]:
    folding = FoldGroup(rows)

    # Spark counts a function's arguments to choose what it passes, and would count `self`.
    def fold_group(group: pa.Table) -> pa.Table:
        return folding.fold(group)

    return fold_group


@dataclass(frozen=True)
class FoldGroup:
    """The pure fold, fed from Arrow; runs in the executors."""

    rows: KeyedRows

    def fold(self, group: pa.Table) -> pa.Table:
        changes = sorted(group.to_pylist(), key=lambda change: change["stream_seq"])
        folded = fold(self._event(change) for change in changes)
        return pa.Table.from_pylist(
            [self._outcome(outcome) for outcome in folded.values()],
            schema=_outcome_arrow(self.rows.columns),
        )

    def _event(self, change: dict[str, Any]) -> Event:
        cells = self._cells(change["row"])
        return Event(
            key=self._key(cells),
            row=None if change["operation"] == "DELETE" else cells,
            before=self._key(self._cells(change["before"])) if change["moved"] else None,
            unchanged=frozenset(change["unchanged"] or ()),
        )

    def _cells(self, row: Row) -> Row:
        """A cell is a value with its text: what heals one heals both."""
        texts = dict(row[TEXT_COLUMN] or ())
        return {c.name: (row[c.name], texts.get(c.name)) for c in self.rows.columns}

    def _key(self, cells: Row) -> Key:
        return tuple(_hashable(cells[column.name]) for column in self.rows.key)

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        gone = outcome.row is None
        return {
            "operation": "DELETE" if gone else "UPDATE",
            "row": self._row(self._key_cells(outcome.key) if gone else outcome.row),
            "kept": sorted(outcome.kept) or None,
            "base": self._row(self._key_cells(outcome.base)) if outcome.kept else None,
        }

    def _key_cells(self, key: Any) -> Row:
        return {column.name: cell for column, cell in zip(self.rows.key, key, strict=True)}

    def _row(self, cells: Row | None) -> Row:
        cells = cells or {}
        texts = [(name, text) for name, (_, text) in cells.items() if text is not None]
        return {**{name: value for name, (value, _) in cells.items()}, TEXT_COLUMN: texts or None}


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(item) for item in value)
    return value


def heal(outcomes: DataFrame, mirror: DataFrame, rows: KeyedRows) -> DataFrame:
    """Take kept columns from the mirror's row under the key it had before the batch."""
    live = mirror.select(F.struct(*[F.col(quote(name)) for name in mirror.columns]).alias("live"))
    live = rows.keyed(live, "live", "_m")
    based = rows.keyed(outcomes, "base", "_b")
    same = [F.col(f"_b{a}").eqNullSafe(F.col(f"_m{a}")) for a in rows.aliases]
    joined = based.join(live, on=[F.col("base").isNotNull(), *same], how="left")
    return joined.select("operation", _healed_row(rows.columns, mirror.columns).alias("row"))


def _healed_row(columns: Iterable[LakeColumn], held: list[str]) -> Column:
    kept = F.coalesce(F.col("kept"), F.array().cast("array<string>"))
    cells = [
        F.when(F.array_contains(kept, column.name), field("live", column.name))
        .otherwise(field("row", column.name))
        .alias(column.name)
        for column in columns
        if column.name in held
    ]
    empty = F.create_map().cast("map<string,string>")
    own = F.coalesce(field("row", TEXT_COLUMN), empty)
    theirs = F.coalesce(field("live", TEXT_COLUMN), empty)
    texts = F.map_concat(
        F.map_filter(own, lambda name, _: ~F.array_contains(kept, name)),
        F.map_filter(theirs, lambda name, _: F.array_contains(kept, name)),
    )
    return F.struct(*cells, F.when(F.size(texts) > 0, texts).alias(TEXT_COLUMN))

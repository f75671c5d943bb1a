"""The fold, in the executors: one outcome per key of a batch, without collecting anything.

All changes of a key are in one bucket, so a partition of blocks folds by itself. Most keys need no
more than their last change, and Arrow finds it alone. Only keys that met an unchanged TOAST column
or a change of key go through the pure fold in Python; a change of key ties buckets together, so
then the whole table is folded in one place.

The fold itself puts the changes into stream order. Blocks of different buckets cover the same
stretch of the stream, so no order of whole blocks is the order of their changes.

What comes out are Arrow's bytes again, ready for what is done with them: the keys that the mirror
holds, the rows that are new in it, and the rows that wait for columns from the mirror.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lake_consumer.columns import TEXT_COLUMN, Columns, LakeColumn
from lake_consumer.evolution import Renames
from lake_consumer.fills import Fill
from lake_consumer.fold import Event, Outcome, Row, fold
from lake_consumer.iceberg.blocks import FILES
from lake_consumer.iceberg.datafiles import FileTarget
from lake_consumer.iceberg.decode import log_arrow_schema, row_type
from lake_consumer.iceberg.facts import event_keys, moved_rows
from lake_consumer.iceberg.filling import fill_added
from lake_consumer.iceberg.keys import KeyedRows, field, hashable
from lake_consumer.iceberg.opening import read_ipc, write_ipc
from lake_consumer.values import may_be_text
from schemas.types import ContractType

FOLDED = pa.schema(
    [
        ("held", pa.binary()),
        ("rows", pa.binary()),
        ("files", FILES),
        ("healing", pa.binary()),
    ]
)


def healing_schema(columns: Columns) -> pa.Schema:
    """Rows that lack the columns named in `kept`, which the mirror has under the key of `base`."""
    row = row_type(columns)
    return pa.schema([("row", row), ("kept", pa.list_(pa.string())), ("base", row)])


def mirror_arrow_schema(columns: Columns) -> pa.Schema:
    return pa.schema(list(row_type(columns)))


@dataclass(frozen=True)
class Folder:
    """Folds blocks of one table to rows of `FOLDED`."""

    rows: KeyedRows
    mirror: Columns
    above: int
    renames: Renames = attribute(default_factory=dict)
    target: FileTarget | None = None
    """Where the rows are written right here; they come out as files then."""
    fills: tuple[Fill, ...] = ()
    """What rows hold in columns that were added after their change."""

    def fold_blocks(self, blocks: list[tuple[int, Any]]) -> Iterator[pa.RecordBatch]:
        """Fold blocks, each given with its first stream sequence."""
        # In this order the blocks of a single bucket need no sorting.
        ordered = sorted(blocks, key=lambda pair: pair[0])
        yield from self.fold_all(pa.concat_tables([read_ipc(block) for _, block in ordered]))

    def fold_all(self, changes: pa.Table) -> Iterator[pa.RecordBatch]:
        """Fold the changes that count, if there are any; they may come in any order."""
        fresh = pc.and_(
            pc.greater(changes["stream_seq"], self.above),
            pc.not_equal(changes["operation"], "TRUNCATE"),
        )
        changes = in_stream_order(changes.filter(fresh)).combine_chunks()
        if changes.num_rows:
            yield self.fold(changes.to_batches()[0])

    def fold(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Fold changes, given in stream order."""
        changes = fill_added(changes, self.fills)
        parts = event_keys(changes, self.rows)
        special = self._special(changes, parts)
        plain = np.flatnonzero(~special)
        held, rows = [], []
        healing = None
        if len(plain):
            all_plain = len(plain) == len(special)
            some = changes if all_plain else changes.take(pa.array(plain))
            kept_parts = parts if all_plain else [p.take(pa.array(plain)) for p in parts]
            last_held, last_rows = self._last_changes(some, kept_parts)
            held.append(last_held)
            rows.append(last_rows)
        if special.any():
            folded = self._fold_special(changes.take(pa.array(np.flatnonzero(special))))
            held.append(folded[0])
            rows.append(folded[1])
            healing = folded[2]
        keys = pa.concat_tables(held)
        outcome = {
            "held": write_ipc(keys) if keys.num_rows else None,
            "healing": write_ipc(healing) if healing is not None else None,
            **self._ready(pa.concat_tables(rows)),
        }
        return pa.RecordBatch.from_pylist([outcome], schema=FOLDED)

    def _ready(self, rows: pa.Table) -> dict[str, Any]:
        if self.target is None:
            return {"rows": write_ipc(rows)}
        batches = rows.combine_chunks().to_batches()
        return {"files": [f._asdict() for batch in batches for f in self.target.write(batch)]}

    def _special(self, changes: pa.RecordBatch, parts: list[pa.Array]) -> np.ndarray[Any, Any]:
        """Which changes are of a key that needs the pure fold."""
        if not self.rows.is_plain:
            return np.ones(changes.num_rows, dtype=bool)
        has_unchanged = pc.fill_null(
            pc.greater(pc.list_value_length(changes["unchanged"]), 0), False
        )
        moved = moved_rows(changes, self.rows)
        itself: np.ndarray[Any, Any] = (
            np.asarray(has_unchanged.to_numpy(zero_copy_only=False), dtype=bool) | moved
        )
        if not itself.any():
            return itself
        keys = self.rows.tuples(parts)
        involved = {keys[at] for at in np.flatnonzero(itself)}
        left = changes.take(pa.array(np.flatnonzero(moved)))["old"]
        involved.update(self.rows.tuples(self.rows.arrays(left)))
        return np.fromiter((key in involved for key in keys), dtype=bool, count=len(keys))

    def _last_changes(
        self, changes: pa.RecordBatch, parts: list[pa.Array]
    ) -> tuple[pa.Table, pa.Table]:
        """The keys that the mirror holds, and the rows that the last changes leave, by key."""
        names = self.rows.aliases
        at = pa.array(np.arange(changes.num_rows, dtype=np.int64))
        keys = pa.table([*parts, at], names=[*names, "at"])
        found = keys.group_by(names, use_threads=False).aggregate([("at", "min"), ("at", "max")])
        # Sorted within a file, rows of later batches leave out more of it.
        found = found.sort_by([(name, "ascending") for name in names])
        operations = changes["operation"]
        held = found.filter(pc.not_equal(operations.take(found["at_min"]), "INSERT"))
        last = found["at_max"]
        stays = last.filter(pc.not_equal(operations.take(last), "DELETE"))
        rows = pa.Table.from_struct_array(changes["new"].take(stays.combine_chunks()))
        return held.select(names).cast(self.rows.schema), self._mirror_rows(rows)

    def _mirror_rows(self, rows: pa.Table) -> pa.Table:
        return rows.select([*(column.name for column in self.mirror), TEXT_COLUMN])

    def _fold_special(self, changes: pa.RecordBatch) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        moved = moved_rows(changes, self.rows)
        events = (
            self._event(change, bool(is_moved))
            for change, is_moved in zip(changes.to_pylist(), moved, strict=True)
        )
        outcomes = list(fold(events).values())
        held = [outcome.key for outcome in outcomes if outcome.held]
        left = [outcome for outcome in outcomes if outcome.row is not None]
        ready = [self._row(outcome.row) for outcome in left if not outcome.kept]
        waiting = [self._waiting(outcome) for outcome in left if outcome.kept]
        columns = self.rows.columns
        return (
            self._keys(held),
            self._mirror_rows(pa.Table.from_pylist(ready, schema=mirror_arrow_schema(columns))),
            pa.Table.from_pylist(waiting, schema=healing_schema(columns)) if waiting else None,
        )

    def _keys(self, keys: list[Any]) -> pa.Table:
        """Keys of cells back to the parts of a key."""
        schema = self.rows.schema
        parts: list[list[Any]] = [[] for _ in schema]
        for key in keys:
            at = 0
            for column, (value, text) in zip(self.rows.key, key, strict=True):
                parts[at].append(_from_hashable(column.type, value))
                at += 1
                if may_be_text(column.type):
                    parts[at].append(text)
                    at += 1
        arrays = [pa.array(part, type=kind) for part, kind in zip(parts, schema.types, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _event(self, change: dict[str, Any], moved: bool) -> Event:
        is_delete = change["operation"] == "DELETE"
        cells = self._cells(change["old" if is_delete else "new"])
        return Event(
            key=self._key(cells),
            row=None if is_delete else cells,
            before=self._key(self._cells(change["old"])) if moved else None,
            unchanged=frozenset(self._now(change, name) for name in change["unchanged"] or ()),
            inserted=change["operation"] == "INSERT",
        )

    def _now(self, change: dict[str, Any], name: str) -> str:
        revision: int = change["schema_revision"]
        return self.renames.get((revision, name), name)

    def _cells(self, row: Row) -> Row:
        """A cell is a value with its text: what heals one heals both."""
        texts = dict(row[TEXT_COLUMN] or ())
        return {c.name: (row[c.name], texts.get(c.name)) for c in self.rows.columns}

    def _key(self, cells: Row) -> tuple[Any, ...]:
        return tuple(hashable(cells[column.name]) for column in self.rows.key)

    def _waiting(self, outcome: Outcome) -> dict[str, Any]:
        base = {
            column.name: (_from_hashable(column.type, value), text)
            for column, (value, text) in zip(self.rows.key, _cells_of(outcome.base), strict=True)
        }
        return {
            "row": self._row(outcome.row),
            "kept": sorted(outcome.kept),
            "base": self._row(base),
        }

    def _row(self, cells: Row | None) -> Row:
        cells = cells or {}
        texts = [(name, text) for name, (_, text) in cells.items() if text is not None]
        return {**{name: value for name, (value, _) in cells.items()}, TEXT_COLUMN: texts or None}


@dataclass(frozen=True)
class LogFolder:
    """Folds rows of a change log, for `mapInArrow`: the log's columns in, `FOLDED` out."""

    folder: Folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if found:
            schema = log_arrow_schema(self.folder.rows.columns)
            changes = pa.Table.from_batches(found).select(schema.names).cast(schema)
            yield from self.folder.fold_all(changes)


def in_stream_order(changes: pa.Table) -> pa.Table:
    """Sort changes by stream sequence, unless they are sorted already.

    Whoever brought the changes together decides nothing about their order: blocks of different
    buckets overlap, and so do the partitions of a change log.
    """
    sequences = changes["stream_seq"].to_numpy()
    if (sequences[1:] > sequences[:-1]).all():
        return changes
    return changes.take(pa.array(np.argsort(sequences, kind="stable")))


def _from_hashable(type: ContractType, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_from_hashable(type.element or type, item) for item in value]
    is_float = type.kind in ("float32", "float64")
    return math.nan if is_float and value == "NaN" else value


def _cells_of(key: Any) -> Iterable[Any]:
    return key or ()


def heal(waiting: DataFrame, mirror: DataFrame, rows: KeyedRows) -> DataFrame:
    """Take kept columns from the mirror's row under the key it had before the batch."""
    waiting = rows.keyed(waiting, "base", "_b")
    live = mirror.select(F.struct(*[field("", name) for name in mirror.columns]).alias("live"))
    live = rows.keyed(live, "live", "_m")
    same = [F.col(f"_b{a}").eqNullSafe(F.col(f"_m{a}")) for a in rows.aliases]
    # The few that wait are sent to every reader of the mirror, which is so read without a shuffle.
    wanted = waiting.select(*[f"_b{a}" for a in rows.aliases]).distinct()
    found = live.join(F.broadcast(wanted), on=same, how="inner").drop(
        *[f"_m{a}" for a in rows.aliases]
    )
    found = found.withColumnsRenamed({f"_b{a}": f"_f{a}" for a in rows.aliases})
    again = [F.col(f"_b{a}").eqNullSafe(F.col(f"_f{a}")) for a in rows.aliases]
    joined = waiting.join(found, on=again, how="left")
    healed = _healed(rows.columns, mirror.columns)
    # Named in a second step: an expression that says `kept` would mean a column of that name.
    numbered = [cell.alias(f"_c{at}") for at, cell in enumerate(healed.values())]
    return joined.select(*numbered).toDF(*healed)


def _healed(columns: Iterable[LakeColumn], held: list[str]) -> dict[str, Column]:
    kept = F.col("kept")
    by_name = {column.name: column for column in columns}
    cells = {
        name: F.when(F.array_contains(kept, name), field("live", name)).otherwise(
            field("row", name)
        )
        for name in held
        if name in by_name
    }
    empty = F.create_map().cast("map<string,string>")
    own = F.coalesce(field("row", TEXT_COLUMN), empty)
    theirs = F.coalesce(field("live", TEXT_COLUMN), empty)
    texts = F.map_concat(
        F.map_filter(own, lambda name, _: ~F.array_contains(kept, name)),
        F.map_filter(theirs, lambda name, _: F.array_contains(kept, name)),
    )
    return {**cells, TEXT_COLUMN: F.when(F.size(texts) > 0, texts)}

"""One table, PostgreSQL against lake: checksums per key range, rows only where those differ.

How two states that never stand still are compared exactly:

1. PostgreSQL shows the table in one snapshot, and says which transactions it sees, by their ids.
2. A mark is written into the WAL behind it. The first cut of the lake at or behind the mark has
   every transaction that the snapshot sees, and perhaps some that it does not.
3. Those few are in the change log. Rows they touch are taken from PostgreSQL's snapshot and the
   logged changes are applied to them (`replay`): that is what the lake must hold at the cut.
4. All other rows must be equal as they are.

So a busy database raises no false alarm, and no row is left out. What is compared are values in one
canonical form (`canonical`), summed up per range of keys (`ranges`). Memory holds sums, the changes
of step 3 (less than one lake commit) and the rows of a few ranges that differ, never a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lake_consumer.iceberg.mirrorrows import Layout, MirrorAtCut
from lake_consumer.postgres.source import KeySpan, Relation, Source
from lake_consumer.verify.canonical import Row, text_reader
from lake_consumer.verify.ranges import KeyRanges, RangeSums
from lake_consumer.verify.replay import replay, touched_keys
from lake_consumer.verify.rows import Difference, compare
from lake_consumer.verify.visibility import SeenTransactions

RANGE_ROWS = 5_000
RANGES_AT_ONCE = 20
"""How many differing ranges are looked at with their rows in memory."""

_INTEGERS = frozenset({"int16", "int32", "int64", "uint32"})

Told = Callable[[str, int, int], None]
"""What is being read, how many rows of it so far, and about how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found of one table."""

    layout: Layout
    rows: int
    lake_rows: int
    ranges: KeyRanges
    differing: tuple[int, ...]
    differences: tuple[Difference, ...]
    examined: int
    """How many of the differing ranges were looked at row by row."""

    replayed: int
    absent: tuple[str, ...]
    """Columns of PostgreSQL that the lake has not met yet: no row changed since they came."""


class TableCheck:
    """Compares one table."""

    def __init__(
        self,
        source: Source,
        relation: Relation,
        mirror: MirrorAtCut,
        tell: Told,
        range_rows: int = RANGE_ROWS,
    ) -> None:
        self._source = source
        self._relation = relation
        self._mirror = mirror
        self._tell = tell
        self._range_rows = range_rows
        common = [at for at in relation.columns if at in mirror.columns]
        key = [column.position for column in mirror.shape.key]
        self._layout = Layout(
            tuple(mirror.columns[at] for at in common), tuple(common.index(at) for at in key)
        )
        self._names = [relation.columns[at] for at in common]
        self._readers = [text_reader(column.type) for column in self._layout.columns]

    def run(self, enough: int | None) -> Findings:
        """Compare; stop looking at rows when `enough` differences are known (None: find all)."""
        layout = self._layout
        ranges = KeyRanges(self._edges())
        seen = SeenTransactions.parse(self._source.snapshot)
        changes = list(self._mirror.unseen_changes(layout, seen))
        moving = touched_keys(changes)
        ours, theirs = RangeSums(ranges), RangeSums(ranges)
        held: dict[Row, Row] = {}
        for row in self._read_postgres(None):
            key = layout.key_of(row)
            if key in moving:
                held[key] = row
            else:
                ours.add(key, row)
        moved = replay(held, changes)
        for key, row in moved.items():
            ours.add(key, row)
        for row in self._read_lake(None, ours.rows):
            theirs.add(layout.key_of(row), row)
        differing = ours.differing(theirs)
        differences: list[Difference] = []
        examined = 0
        for group in _groups(differing):
            if enough is not None and len(differences) >= enough:
                break
            differences += self._look(ranges, group, moving, moved)
            examined += len(group)
        return Findings(
            layout=layout,
            rows=ours.rows,
            lake_rows=theirs.rows,
            ranges=ranges,
            differing=tuple(differing),
            differences=tuple(differences),
            examined=examined,
            replayed=len(changes),
            absent=tuple(
                name
                for at, name in self._relation.columns.items()
                if at not in self._mirror.columns
            ),
        )

    def _edges(self) -> Iterator[Row]:
        names = [self._names[at] for at in self._layout.key]
        readers = [self._readers[at] for at in self._layout.key]
        for texts in self._source.sample(self._relation, names, self._range_rows):
            yield tuple(read(text) for read, text in zip(readers, texts, strict=True))

    def _read_postgres(self, span: KeySpan | None) -> Iterator[Row]:
        readers = self._readers
        rows = self._source.rows(self._relation, self._names, span)
        for told, texts in enumerate(rows, start=1):
            if told % 1_000 == 0:
                self._tell("PostgreSQL", told, self._relation.estimate)
            yield tuple(read(text) for read, text in zip(readers, texts, strict=True))

    def _read_lake(self, span: KeySpan | None, about: int) -> Iterator[Row]:
        low, high = (span.low, span.high) if span else (None, None)
        for told, row in enumerate(self._mirror.rows(self._layout, low, high), start=1):
            if told % 1_000 == 0:
                self._tell("lake", told, about)
            yield row

    def _look(
        self, ranges: KeyRanges, group: Sequence[int], moving: set[Row], moved: dict[Row, Row]
    ) -> list[Difference]:
        """Compare the rows of some ranges."""
        wanted, key_of = frozenset(group), self._layout.key_of
        expected = {key: row for key, row in moved.items() if ranges.of(key) in wanted}
        span = self._span(ranges, group)
        for row in self._read_postgres(span):
            key = key_of(row)
            if ranges.of(key) in wanted and key not in moving:
                expected[key] = row
        rows = ((key_of(row), row) for row in self._read_lake(span, len(expected)))
        return compare(expected, ((key, row) for key, row in rows if ranges.of(key) in wanted))

    def _span(self, ranges: KeyRanges, group: Sequence[int]) -> KeySpan | None:
        """Read only a part of both sides, where our order of keys is also theirs."""
        first = self._layout.key[0]
        if self._layout.columns[first].type.kind not in _INTEGERS:
            return None
        low, high = ranges.bounds(group[0])[0], ranges.bounds(group[-1])[1]
        return KeySpan(self._names[first], low[0] if low else None, high[0] if high else None)


def _groups(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Cut differing ranges into groups that lie near each other."""
    group: list[int] = []
    for number in numbers:
        if group and (len(group) == RANGES_AT_ONCE or number - group[0] > 2 * RANGES_AT_ONCE):
            yield group
            group = []
        group.append(number)
    if group:
        yield group

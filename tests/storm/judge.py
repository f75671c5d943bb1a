"""Compares the lake with PostgreSQL: mirrors, cuts and change logs.

PostgreSQL judges every value: what the lake holds is copied into columns of the original's types,
and the text that PostgreSQL writes for it is compared with the text it wrote for the original.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import psycopg

from lake_consumer.cuts import Cut, CutBook
from lake_consumer.iceberg.names import CHANGES_SUFFIX, LakeName, mirror_of
from lake_consumer.tablestates import TableState
from schemas.names import TableName
from tests.storm.lake import TEXTS, LakeRows, LakeView
from tests.storm.pgoutput import UNCHANGED, Change, Image, Relation
from tests.storm.truth import (
    Connection,
    History,
    Row,
    TableVersion,
    copied_texts,
    short,
    sorted_rows,
)

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which the lake is not PostgreSQL's."""

    table: str
    what: str
    rows: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.table}: {self.what}", *(f"    {row}" for row in self.rows)])


def compare_rows(connection: Connection, truth: TableVersion, lake: LakeRows) -> Finding | None:
    """Compare a table with rows of its mirror, column by column of the same attnum."""
    place = {attnum: at for at, attnum in enumerate(lake.attnums)}
    common = [column for column in truth.columns if column.attnum in place]
    lacking = [column.name for column in truth.columns if column.attnum not in place]
    cells = [[row[place[column.attnum]] for column in common] for row in lake.rows]
    try:
        texts = copied_texts(connection, [column.type for column in common], cells)
    except psycopg.Error as error:
        return Finding(str(truth), f"the lake's values are none of PostgreSQL's: {error}")
    kept = [at for at, column in enumerate(truth.columns) if column in common]
    wanted = Counter(tuple(row[at] for at in kept) for row in truth.rows)
    found = Counter(sorted_rows(texts))
    missing, surplus = wanted - found, found - wanted
    lacking_values = _lacking_values(truth, lacking)
    if not missing and not surplus and not lacking_values:
        return None
    what = (
        f"{missing.total()} rows only in PostgreSQL, {surplus.total()} only in the lake, of"
        f" {len(truth.rows)} and {len(lake.rows)}; columns {[c.name for c in common]}"
        f"{f', the lake lacks values of {lacking_values}' if lacking_values else ''}"
    )
    shown = [f"only in PostgreSQL: {row}" for row in list(missing)[:SHOWN]]
    return Finding(
        str(truth), what, [*shown, *(f"only in the lake: {r}" for r in list(surplus)[:SHOWN])]
    )


def _lacking_values(truth: TableVersion, lacking: Collection[str]) -> list[str]:
    """Columns that the lake does not have although some row has a value there."""
    return [
        column.name
        for at, column in enumerate(truth.columns)
        if column.name in lacking and any(row[at] is not None for row in truth.rows)
    ]


def judge_mirrors(
    connection: Connection, view: LakeView, tables: Iterable[TableVersion], allowed: Collection[str]
) -> list[Finding]:
    """Every mirror is equal, or parked for a reason that Iceberg gives no way around."""
    states, found = view.states(), []
    for truth in tables:
        name = LakeName(truth.schema, truth.name)
        state = states.get(name)
        if state is None:
            found.append(Finding(str(truth), "the lake does not know the table"))
        elif not state.is_live:
            if state.kind != "parked" or not any(reason in state.reason for reason in allowed):
                found.append(Finding(str(truth), f"the mirror is {state.kind}: {state.reason}"))
        elif truth.has_key:
            mirror = view.mirror(name)
            if mirror is None:
                found.append(Finding(str(truth), "there is no mirror"))
            elif differs := compare_rows(connection, truth, mirror):
                found.append(differs)
    return found


def judge_gone(view: LakeView, published: Collection[LakeName]) -> list[Finding]:
    """What PostgreSQL does not publish any more is gone, and the newest cut does not show it."""
    book, found = view.cuts(), []
    newest = book.at(None)
    for name, state in view.states().items():
        if name in published:
            continue
        if not state.is_gone:
            what = f"it is not published any more, but the mirror is {state.kind}: {state.reason}"
            found.append(Finding(str(name), what))
        if view.snapshot_at(book, name, newest) is not None:
            found.append(Finding(str(name), "it is not published any more, but in the newest cut"))
    return found


class CutJudge:
    """Holds cuts against what was true when their last transaction had committed."""

    def __init__(
        self, connection: Connection, view: LakeView, histories: Sequence[History]
    ) -> None:
        self._connection = connection
        self._view = view
        self._histories = histories
        self._book: CutBook = view.cuts()
        self._known: set[tuple[int, int]] = set()
        self.compared = self.unreadable = 0

    def cuts(self) -> list[Cut]:
        return self._book.cuts()

    def judge(self, cut: Cut) -> list[Finding]:
        moments = self._moments(cut)
        if moments is None:
            return []
        names, found = self._view.names_at(cut), []
        for history in self._histories:
            tables = history.versions[moments[history.letter]]
            for truth in tables.values():
                name = names.get(TableName(truth.schema, truth.name))
                if name and truth.has_key and (finding := self._compare(truth, name, cut)):
                    at = f"cut {cut} ({history.letter}{moments[history.letter]})"
                    found.append(Finding(finding.table, f"{at}: {finding.what}", finding.rows))
        return found

    def _moments(self, cut: Cut) -> dict[str, int] | None:
        name = LakeName("public", "moment")
        snapshot = self._view.snapshot_at(self._book, name, cut)
        found = None if snapshot is None else self._view.mirror(name, snapshot)
        return None if found is None else {row[0]: row[1] for row in found.rows}

    def _compare(self, truth: TableVersion, table: TableName, cut: Cut) -> Finding | None:
        name = mirror_of(table)
        snapshot = self._view.snapshot_at(self._book, name, cut)
        if snapshot is None:
            self.unreadable += 1
            return None
        if (id(truth), snapshot) in self._known:
            return None
        self._known.add((id(truth), snapshot))
        self.compared += 1
        mirror = self._view.mirror(name, snapshot)
        assert mirror is not None
        return compare_rows(self._connection, truth, mirror)


Logged = tuple[LakeName, dict[str, Any]]


class LogJudge:
    """Holds all change logs against what PostgreSQL published: each change once, in order."""

    def __init__(
        self, connection: Connection, view: LakeView, attnums: Mapping[tuple[int, str], set[int]]
    ) -> None:
        self._connection = connection
        self._view = view
        self._attnums = attnums

    def judge(self, changes: Sequence[Change]) -> list[Finding]:
        logged = self._logged()
        wanted: dict[int, list[Change]] = defaultdict(list)
        for change in changes:
            wanted[change.commit_lsn].append(change)
        lost = [lsn for lsn in wanted if lsn not in logged]
        surplus = [lsn for lsn in logged if lsn not in wanted]
        found = [self._finding(wanted[lsn][0], "a transaction is in no change log") for lsn in lost]
        found += [
            Finding(str(logged[lsn][0][0]), f"the log has a transaction at {lsn:X} that is none")
            for lsn in surplus
        ]
        pairs: list[tuple[Change, Logged]] = []
        for lsn, expected in wanted.items():
            if lsn in logged:
                found += self._transaction(expected, logged[lsn], pairs)
        return [*found[:SHOWN], *self._values(pairs)]

    def _finding(self, change: Change, what: str) -> Finding:
        relation = change.relation
        place = f"xid {change.xid} commit {change.commit_lsn:X}"
        return Finding(f"{relation.schema}.{relation.name}", f"{what}: {place}")

    def _logged(self) -> dict[int, list[Logged]]:
        found: dict[int, list[Logged]] = defaultdict(list)
        for name in self._view.logs():
            for row in self._view.log(name):
                found[row["commit_lsn"]].append((name, row))
        for rows in found.values():
            rows.sort(key=lambda logged: logged[1]["stream_seq"])
        return found

    def _transaction(
        self,
        expected: Sequence[Change],
        logged: Sequence[Logged],
        pairs: list[tuple[Change, Logged]],
    ) -> list[Finding]:
        wanted = [(change.xid, change.operation) for change in expected]
        given = [(row["xid"], row["operation"]) for _, row in logged]
        orders = [row["seq"] for _, row in logged]
        if wanted != given or orders != sorted(set(orders)):
            what = (
                f"the transaction has {dict(Counter(o for _, o in wanted))} and the logs have"
                f" {dict(Counter(o for _, o in given))} in"
                f" {sorted({str(name) for name, _ in logged})}, or another order"
            )
            return [self._finding(expected[0], what)]
        pairs += zip(expected, logged, strict=True)
        return []

    def _values(self, pairs: Sequence[tuple[Change, Logged]]) -> list[Finding]:
        groups: dict[tuple[Relation, LakeName, str], list[tuple[Image, dict[str, Any], Change]]]
        groups = defaultdict(list)
        for change, (name, row) in pairs:
            for which, image in (("new", change.new), ("old", change.old)):
                if image is not None:
                    groups[change.relation, name, which].append((image, row, change))
        return [
            finding
            for (relation, name, which), images in groups.items()
            if (finding := self._images(relation, name, which, images))
        ]

    def _images(
        self,
        relation: Relation,
        name: LakeName,
        which: str,
        images: Sequence[tuple[Image, dict[str, Any], Change]],
    ) -> Finding | None:
        columns = self._view.log_columns(name)
        for at, (column, type_oid, modifier) in enumerate(relation.columns):
            attnums = self._attnums.get((relation.oid, column), set())
            candidates = [own for own, (attnum, _) in columns.items() if attnum in attnums]
            aliases = sorted(
                name
                for (oid, name), held in self._attnums.items()
                if oid == relation.oid and held & attnums
            )
            kind = self._type(type_oid, modifier)
            wrong = list(range(len(images)))
            # A value kept as text stands under the name that its column had when it was written.
            for own, noted in product(candidates, [*aliases, *candidates]):
                wrong = self._wrong(wrong, images, (at, which, own, kind), noted)
            if wrong:
                image, row, change = images[wrong[0]]
                seen = {own: (row[which] or {}).get(own) for own in candidates}
                what = (
                    f"{len(wrong)} of {len(images)} values of {column} ({kind}) in `{which}` of"
                    f" {name} differ, first at xid {change.xid} {change.operation}:"
                    f" PostgreSQL {image[at]!r:.200}, log {seen!r:.300}"
                    f" unchanged {row['unchanged']}"
                )
                return Finding(f"{relation.schema}.{relation.name}", what)
        return None

    def _type(self, oid: int, modifier: int) -> str:
        row = self._connection.execute(
            "SELECT format_type(%s::oid, %s)", [oid, modifier]
        ).fetchone()
        return str(row[0]) if row else ""

    def _wrong(
        self,
        places: Sequence[int],
        images: Sequence[tuple[Image, dict[str, Any], Change]],
        column: tuple[int, str, str, str],
        noted: str,
    ) -> list[int]:
        """Those places of a column where the log says another value than PostgreSQL."""
        at, which, own, kind = column
        cells = [_cell(images[place][1], which, own, noted) for place in places]
        try:
            texts: list[Row] = copied_texts(self._connection, [kind], [[cell] for cell in cells])
        except psycopg.Error:
            return list(places)
        wrong = []
        for place, (text,) in zip(places, texts, strict=True):
            image, row, _ = images[place]
            wanted = image[at]
            if wanted == UNCHANGED:
                # Under REPLICA IDENTITY FULL the value may be taken from the row before.
                good = (text is None and own in (row["unchanged"] or ())) or text is not None
            else:
                good = text == short(wanted)
            if not good:
                wrong.append(place)
        return wrong


def _cell(row: Mapping[str, Any], which: str, own: str, noted: str) -> object:
    image = row[which] or {}
    value = image.get(own)
    return value if value is not None else dict(image.get(TEXTS) or ()).get(noted)


def describe(states: Mapping[LakeName, TableState], table: str) -> str:
    schema, name = table.split(".", 1)
    state = states.get(LakeName(schema.removesuffix(CHANGES_SUFFIX), name))
    return "unknown" if state is None else f"{state.kind} {state.reason}"

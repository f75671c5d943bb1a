"""The storm's judge: it must be able to say no, and must not cry wolf."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from lake_consumer.cuts import Cut, CutBook, CutRow
from lake_consumer.iceberg.names import LakeName
from lake_consumer.tablestates import LIVE, TableState, gone, parked
from tests.conftest import Connection
from tests.storm.judge import LogJudge, compare_rows, judge_gone
from tests.storm.lake import TEXTS, LakeRows
from tests.storm.pgoutput import UNCHANGED, Change, Relation
from tests.storm.truth import Attribute, TableVersion

TRUTH = TableVersion(
    7,
    "public",
    "a_t",
    (Attribute(1, "id", "integer"), Attribute(3, "day", "date")),
    True,
    (("1", "2020-01-02"), ("2", "infinity"), ("3", None)),
)
GOOD: list[list[Any]] = [[3, None], [2, "infinity"], [1, "2020-01-02"]]


def test_a_uuid_in_a_column_that_is_text_by_now_is_no_difference(connection: Connection) -> None:
    """A cut may show the type before ALTER TYPE, as long as the values are PostgreSQL's."""
    value = uuid4()
    truth = replace(TRUTH, columns=(Attribute(1, "code", "text"),), rows=((str(value),),))

    assert compare_rows(connection, truth, LakeRows((1,), [[value]])) is None
    assert compare_rows(connection, truth, LakeRows((1,), [[uuid4()]])) is not None


@pytest.mark.parametrize(
    ("attnums", "rows", "equal"),
    [
        ((1, 3), GOOD, True),
        ((1, 3), GOOD[1:], False),
        ((1, 3), [*GOOD, GOOD[0]], False),
        ((1, 3), [[3, None], [2, None], [1, "2020-01-02"]], False),
        ((1, 3), [[3, None], [2, "no date"], [1, "2020-01-02"]], False),
        ((1,), [[3], [2], [1]], False),
        ((1, 2), GOOD, False),
    ],
)
def test_a_planted_difference_of_a_mirror_is_found(
    connection: Connection, attnums: tuple[int, ...], rows: list[list[Any]], equal: bool
) -> None:
    found = compare_rows(connection, TRUTH, LakeRows(attnums, rows))

    assert (found is None) is equal


RELATION = Relation(7, "public", "a_t", (("id", 23, -1), ("b", 1082, -1)))
LOG = LakeName("public__changes", "a_t")


class OneLog:
    """A lake with one change log, whose columns swapped their names since."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = list(rows)

    def logs(self) -> list[LakeName]:
        return [LOG]

    def log(self, _: LakeName) -> list[dict[str, Any]]:
        return self._rows

    def log_columns(self, _: LakeName) -> dict[str, tuple[int, str]]:
        return {"id": (1, ""), "a": (2, ""), "b": (3, "")}


def logged(seq: int, operation: str, new: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    place = {"commit_lsn": 5, "xid": 9, "seq": seq, "stream_seq": seq + 1, "operation": operation}
    return {**place, "new": new, "old": None, "unchanged": None, **more}


def changed(operation: str, *new: str | None) -> Change:
    return Change(5, 9, operation, RELATION, new or None, None)


CHANGES = [changed("INSERT", "1", "infinity"), changed("UPDATE", "1", None), changed("TRUNCATE")]
ROWS = [
    logged(0, "INSERT", {"id": 1, "a": None, "b": None, TEXTS: [("b", "infinity")]}),
    logged(1, "UPDATE", {"id": 1, "a": None, "b": None, TEXTS: [("a", "infinity")]}),
    logged(2, "TRUNCATE", None),
]


def judge(connection: Connection, rows: list[dict[str, Any]], changes: list[Change]) -> list[Any]:
    attnums = {(7, "id"): {1}, (7, "a"): {2, 3}, (7, "b"): {2, 3}}
    return LogJudge(connection, OneLog(*rows), attnums).judge(changes)  # type: ignore[arg-type]


def test_a_log_that_has_each_change_once_is_right(connection: Connection) -> None:
    """A null is a null, although another column's text stands under a name that it once had."""
    assert judge(connection, ROWS, CHANGES) == []


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:2],
        [ROWS[0], ROWS[0], *ROWS[1:]],
        [{**ROWS[0], "stream_seq": 2}, {**ROWS[1], "stream_seq": 1}, ROWS[2]],
        [{**ROWS[0], "new": {"id": 2, "a": None, "b": None, TEXTS: None}}, *ROWS[1:]],
        [{**ROWS[0], "new": {"id": 1, "a": None, "b": None, TEXTS: None}}, *ROWS[1:]],
        [{**row, "commit_lsn": 6} for row in ROWS],
    ],
)
def test_a_planted_difference_of_a_log_is_found(
    connection: Connection, rows: list[dict[str, Any]]
) -> None:
    """Lost, twice, another order, another value, a lost value, another transaction."""
    assert judge(connection, rows, CHANGES) != []


def test_a_value_that_was_not_sent_is_told_from_null(connection: Connection) -> None:
    row = logged(0, "UPDATE", {"id": 1, "a": None, "b": None, TEXTS: None})
    change = changed("UPDATE", "1", UNCHANGED)

    assert judge(connection, [{**row, "unchanged": ["b"]}], [change]) == []
    assert judge(connection, [row], [change]) != []


class OneTable:
    """A lake with one table, in one state, that the newest cut shows or not."""

    def __init__(self, state: TableState, snapshot: int | None) -> None:
        self._state = state
        self._snapshot = snapshot

    def states(self) -> dict[LakeName, TableState]:
        return {LakeName("public", "a_t"): self._state}

    def cuts(self) -> CutBook:
        row = CutRow(
            table="public.a_t", commit_lsn=5, commit_ts=datetime(2026, 1, 1), stream_seq=1,
            snapshot_id=self._snapshot, changes_snapshot_id=2,
        )  # fmt: skip
        return CutBook([row])

    def snapshot_at(self, _book: CutBook, _name: LakeName, _cut: Cut) -> int | None:
        return self._snapshot


@pytest.mark.parametrize(
    ("state", "snapshot", "published", "right"),
    [
        (gone("dropped", 5), None, set(), True),
        (gone("dropped", 5), 1, set(), False),
        (LIVE, 1, set(), False),
        (parked("for a reason"), None, set(), False),
        (LIVE, 1, {LakeName("public", "a_t")}, True),
    ],
)
def test_a_table_that_is_gone_must_be_seen_to_be(
    state: TableState, snapshot: int | None, published: set[LakeName], right: bool
) -> None:
    view: Any = OneTable(state, snapshot)

    assert (judge_gone(view, published) == []) is right

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest

from lake_consumer.query.printing import csv_lines, hidden_columns, json_lines, table_lines

MOMENT = datetime(2025, 12, 8, 13, 45, 21, 719719, tzinfo=UTC)
ROWS = pa.table(
    {
        "id": pa.array([1, 20], pa.int64()),
        "name": ["Ann", None],
        "balance": pa.array([Decimal("10.50"), Decimal("-7.00")], pa.decimal128(10, 2)),
        "at": pa.array([MOMENT, None], pa.timestamp("us", tz="UTC")),
        "texts": pa.array([[("until", "infinity")], None], pa.map_(pa.string(), pa.string())),
    }
)


def test_a_table_is_aligned_and_counts_its_rows() -> None:
    """Numbers to the right, and nothing that could be taken for another value."""
    assert list(table_lines(ROWS.to_reader())) == [
        "id | name | balance | at                            | texts",
        "---+------+---------+-------------------------------+----------------------",
        ' 1 | Ann  |   10.50 | 2025-12-08 13:45:21.719719+00 | {"until": "infinity"}',
        "20 | NULL |   -7.00 | NULL                          | NULL",
        "(2 rows)",
    ]


def test_a_long_table_is_cut_and_says_so() -> None:
    """A terminal is no place for a million rows."""
    lines = list(table_lines(pa.table({"n": list(range(5))}).to_reader(2), limit=2))

    assert lines[2:] == ["0", "1", "(5 rows, the first 2 shown; --csv and --json give all)"]


def test_a_cell_stays_on_its_line() -> None:
    """A line break or a page of text must not tear the table apart."""
    lines = list(table_lines(pa.table({"t": ["a\nb", "x" * 500]}).to_reader()))

    assert lines[2] == "a\\nb"
    assert len(lines[3]) == 80
    assert lines[3].endswith("…")


def test_no_character_tears_the_table_apart() -> None:
    """Tabs and control characters are escapes, wide characters take two columns."""
    texts = ["a\tb", "\x1b[31m", "東京", "e\u0301", "👩\u200d👧", "\u202eabc", "C:\\new", "🇩🇪"]
    rows = pa.table({"t": texts, "東": ["x"] * len(texts)})

    assert list(table_lines(rows.to_reader()))[:-1] == [
        "t         | 東",
        "----------+---",
        "a\\tb      | x",
        "\\x1b[31m  | x",
        "東京      | x",
        "e\u0301         | x",
        "👩\u200d👧        | x",
        "\\u202eabc | x",
        "C:\\\\new   | x",
        "🇩🇪        | x",
    ]


def test_wide_text_is_cut_at_its_columns() -> None:
    """Not in the middle of a character, and never wider than a cell may be."""
    lines = list(table_lines(pa.table({"t": ["東" * 100, "x" + "東" * 100]}).to_reader()))

    assert lines[2] == "東" * 39 + "…"
    assert lines[3] == "x" + "東" * 39 + "…"


def test_bytes_are_shown_as_postgresql_writes_them() -> None:
    """Their backslash is no escape of ours."""
    assert list(table_lines(pa.table({"b": [b"\x00a"]}).to_reader()))[2] == "\\x0061"


NOTED = pa.table(
    {
        "until": pa.array([None, date(2025, 12, 8)], pa.date32()),
        "_bridge_text": pa.array(
            [[("until", "infinity")], None], pa.map_(pa.string(), pa.string())
        ),
    }
)


def test_the_text_map_is_hidden_from_people() -> None:
    """Unless they ask for it; what it holds is not kept from them."""
    lines = list(table_lines(NOTED.to_reader(), hidden_columns("SELECT * FROM t")))

    assert lines[0] == "until"
    assert lines[-1] == (
        "1 row has a value without a native form, shown as NULL; "
        "select _bridge_text to see the text"
    )
    asked = hidden_columns("SELECT until, _bridge_text FROM t")
    assert next(iter(table_lines(NOTED.to_reader(), asked))) == "until      | _bridge_text"


def test_programs_get_every_column() -> None:
    """What is hidden from a program is lost."""
    hide = hidden_columns("SELECT * FROM t")

    assert next(iter(csv_lines(NOTED.to_reader(), hide))) == "until,_bridge_text"
    first = next(iter(json_lines(NOTED.to_reader(), hide)))
    assert json.loads(first)["_bridge_text"] == {"until": "infinity"}


def test_csv_tells_null_from_an_empty_text() -> None:
    """As PostgreSQL's own CSV does."""
    rows = pa.table({"a": ["", None, 'say "hi", Bo'], "b,c": [1.5, float("nan"), 2.0]})

    assert list(csv_lines(rows.to_reader())) == [
        'a,"b,c"',
        '"",1.5',
        ",nan",
        '"say ""hi"", Bo",2.0',
    ]


def test_json_is_exact() -> None:
    """What a JSON number could alter is a text, as in the contract."""
    lines = list(json_lines(ROWS.to_reader()))

    assert json.loads(lines[0]) == {
        "id": 1,
        "name": "Ann",
        "balance": "10.50",
        "at": "2025-12-08 13:45:21.719719+00",
        "texts": {"until": "infinity"},
    }
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, True),
        (b"\x00\xff", "\\x00ff"),
        (date(2025, 12, 8), "2025-12-08"),
        (float("inf"), "inf"),
        ([1, None], [1, None]),
        ({"a": {"b": [b"\x01"]}}, {"a": {"b": ["\\x01"]}}),
    ],
)
def test_every_kind_of_value_has_a_json_form(value: object, shown: object) -> None:
    """A query must not fail while it prints."""
    (line,) = json_lines(pa.table({"v": [value]}).to_reader())

    assert json.loads(line)["v"] == shown


def test_a_uuid_is_its_text() -> None:
    """Arrow holds it as sixteen bytes."""
    text = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    rows = pa.table({"u": pa.array([UUID(text).bytes], pa.uuid())})

    assert list(csv_lines(rows.to_reader())) == ["u", text]

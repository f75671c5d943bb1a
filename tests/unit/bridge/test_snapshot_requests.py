"""Requests for snapshots: what is understood, and that everything else is refused in one way."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.snapshot.requests import (
    Rejected,
    SnapshotRequest,
    check_keys,
    choose_columns,
    new_snapshot_id,
    parse_request,
)
from schemas.names import TableName
from tests.unit.schemas.samples import SHAPE

USERS = TableName("public", "users")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("body", [b"", b"  \n", b"{}"])
def test_nothing_asks_for_the_whole_table(body: bytes) -> None:
    assert parse_request("users", body) == SnapshotRequest(table=USERS)


def test_keys_and_columns_are_read() -> None:
    body = b'{"from": [1, "eu"], "to": [true, 1.50], "columns": ["id"]}'

    assert parse_request("sales/orders", body) == SnapshotRequest(
        table=TableName("sales", "orders"),
        from_key=("1", "eu"),
        to_key=("true", "1.50"),
        columns=("id",),
    )


def test_digits_of_a_number_are_kept_as_written() -> None:
    """A double would round what numeric and bigint hold exactly."""
    request = parse_request("users", b'{"from": [0.1000000000000000055511151231257827]}')

    assert request.from_key == ("0.1000000000000000055511151231257827",)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"{",
        b"null",
        b'"users"',
        b'{"from": []}',
        b'{"from": 1}',
        b'{"from": [[1]]}',
        b'{"to": [null]}',
        b'{"to": ["a\\u0000b"]}',
        b'{"to": ["\\ud800"]}',
        b'{"to": [NaN]}',
        b'{"columns": []}',
        b'{"columns": "id"}',
        b'{"columns": ["id", "id"]}',
        b'{"columns": [1]}',
        b'{"sql": "DROP TABLE users"}',
        b"[" * 100_000,
        b'{"from": [' + b"9" * 10_000 + b"]}",
    ],
)
def test_anything_else_is_rejected(body: bytes) -> None:
    with pytest.raises(Rejected):
        parse_request("users", body)


@given(st.text(), st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_message_is_understood_or_rejected(token: str, body: bytes) -> None:
    """Anybody may publish anything; the service must live on."""
    with contextlib.suppress(Rejected):
        assert parse_request(token, body).table.token == token


def test_equal_requests_are_equal_however_they_are_written() -> None:
    """Else two consumers of the same table would copy it twice."""
    first = parse_request("users", b'{"to": [9], "from": [1]}')

    assert first == parse_request("users", b' {"from":["1"],"to":["9"]} ')
    assert len({first, parse_request("users", b'{"from":[1],"to":[9]}')}) == 1


def test_columns_come_in_the_tables_order_and_unknown_ones_are_rejected() -> None:
    names = [column.name for column in SHAPE.columns]

    assert choose_columns(SHAPE, ()) == SHAPE.columns
    assert [c.name for c in choose_columns(SHAPE, names[::-1])] == names
    with pytest.raises(Rejected):
        choose_columns(SHAPE, ["no such column"])


def test_a_key_may_be_shorter_than_the_tables_and_not_longer() -> None:
    fits = SnapshotRequest(table=SHAPE.name, from_key=("1",) * len(SHAPE.key))
    too_long = SnapshotRequest(table=SHAPE.name, to_key=("1",) * (len(SHAPE.key) + 1))

    check_keys(SHAPE, fits)
    with pytest.raises(Rejected):
        check_keys(SHAPE, too_long)


def test_snapshot_ids_fit_a_subject_and_differ() -> None:
    ids = {new_snapshot_id() for _ in range(100)}

    assert len(ids) == 100
    assert not any(set(snapshot_id) & set(".*> \t") for snapshot_id in ids)


@pytest.mark.parametrize(
    ("body", "is_range", "is_whole"),
    [
        (b"{}", False, True),
        (b'{"from": [1]}', True, False),
        (b'{"to": [1]}', True, False),
        (b'{"from": [1], "to": [2]}', True, False),
        (b'{"columns": ["id"]}', False, False),
    ],
)
def test_only_a_request_without_limits_is_for_the_whole_table(
    body: bytes, is_range: bool, is_whole: bool
) -> None:
    """Consumers take a whole snapshot for the table's state, and a part for what it is."""
    request = parse_request("users", body)

    assert (request.is_range, request.is_whole) == (is_range, is_whole)

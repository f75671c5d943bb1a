from __future__ import annotations

import pytest

from lake_consumer.requests import (
    FORGET_PREFIX,
    RESYNC_PREFIX,
    Identity,
    Request,
    read_requests,
)
from lake_consumer.shapes import shape_properties
from schemas.names import TableName
from tests.support.lake import make_shape

A, B = TableName("public", "a"), TableName("public", "b")
MEANT = Identity("u1", 1)
REQUEST = Request(table=A, identity=MEANT, purge=True)


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ({A: MEANT, B: Identity("u2", 2)}, A),
        ({B: MEANT}, B),
        ({A: Identity("u2", 2), B: MEANT}, B),
        ({A: Identity("u2", 2)}, None),
        ({A: Identity("u1", 7)}, None),
        ({}, None),
    ],
    ids=["as it was", "renamed", "names swapped", "another's name", "created anew", "purged"],
)
def test_a_request_finds_the_table_and_never_another(
    held: dict[TableName, Identity], found: TableName | None
) -> None:
    assert REQUEST.find(held) == found


def test_a_request_of_an_earlier_version_goes_by_the_name() -> None:
    """It waited in the lake while the consumer was updated."""
    properties = {
        f"{RESYNC_PREFIX}a": "2026-01-01T00:00:00+00:00",
        f"{FORGET_PREFIX}b": '{"purge": true, "force": false}',
    }

    (resync,) = read_requests(properties, RESYNC_PREFIX)
    (forget,) = read_requests(properties, FORGET_PREFIX)

    assert resync.find({A: MEANT}) == A
    assert (forget.find({B: MEANT}), forget.purge, forget.force) == (B, True, False)


def test_a_request_survives_in_properties() -> None:
    assert read_requests(REQUEST.to_property(FORGET_PREFIX), FORGET_PREFIX) == [REQUEST]


def test_a_table_that_waits_for_its_next_relation_is_that_one() -> None:
    """Another table took the name; its schema message is still to come."""
    properties = shape_properties(make_shape("a", {"id": "int64"}, relation=1), 3)

    assert Identity.of("u1", properties) == MEANT
    assert Identity.of("u1", {**properties, "bridge.awaited-relation": "5"}).relation == 5


def test_a_table_that_says_nothing_has_no_relation() -> None:
    """A log of an earlier version: 0 is no OID, so it is never taken for another table."""
    assert Identity.of("u1", {}) == Identity("u1", 0)

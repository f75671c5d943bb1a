"""Verdicts that processes leave for each other in properties."""

from __future__ import annotations

from datetime import UTC, datetime

from lake_consumer.verifications import (
    VERIFIED_PREFIX,
    Verification,
    read_verifications,
    verification_properties,
)
from schemas.names import TableName

ORDERS = TableName("sales", "orders")
AT = datetime(2025, 12, 8, 13, 45, tzinfo=UTC)


def test_verdicts_come_back_as_they_were_left() -> None:
    found = {ORDERS: Verification(AT, "equal", "0/191BFD0")}

    assert read_verifications(verification_properties(found.items())) == found
    assert found[ORDERS].is_equal
    assert not Verification(AT, "differs", "0/1").is_equal
    assert str(found[ORDERS]) == "equal at 2025-12-08T13:45:00+00:00"


def test_what_is_no_verdict_is_left_out() -> None:
    """Anybody may write properties; metrics must not stop because of them."""
    broken = {VERIFIED_PREFIX + "a": "{", VERIFIED_PREFIX + "b": "{}", "owner": "me"}

    assert read_verifications(broken) == {}

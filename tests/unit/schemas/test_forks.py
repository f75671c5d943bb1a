"""`bridge-fork` contents: there and back, and any bytes instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.forks import MOST_BYTES, Fork, format_fork, parse_fork
from schemas.jsonschemas import PAYLOADS
from schemas.positions import Position
from tests.unit.schemas.samples import FORK

forks = st.builds(
    Fork,
    system=st.text(max_size=20),
    timeline=st.integers(0, 2**32 - 1),
    switch_lsn=st.integers(0, 2**64 - 1),
    slot=st.text(max_size=20),
    reason=st.text(max_size=20),
)
FIELDS = json.loads(format_fork(FORK))


@given(forks)
def test_a_fork_comes_back_from_its_content(fork: Fork) -> None:
    """As text, as MessagePack carries bytes, and as JSON carries them."""
    content = format_fork(fork)

    assert parse_fork(content) == fork
    assert parse_fork(content.encode()) == fork
    assert parse_fork(f"\\x{content.encode().hex()}") == fork
    Draft202012Validator(PAYLOADS["bridge-fork"].document("bridge-fork")).validate(
        json.loads(content)
    )


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "7", "\\xzz", '"text"', "{}", b"\xff", None, 7, [], {}),
        *('{"version":1}', '{"version":2}', "[" * 100_000, '{"version":' + "1" * 10_000 + "}"),
        format_fork(FORK) + " " * MOST_BYTES,
    ],
)
def test_any_other_content_is_no_fork(content: Any) -> None:
    """Whatever the stream holds, the parser does not raise."""
    assert parse_fork(content) is None


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_are_no_fork(content: bytes) -> None:
    """The parser stands at the door."""
    assert parse_fork(content) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"system": 7},
        {"slot": None},
        {"timeline": "2"},
        {"timeline": True},
        {"timeline": -1},
        {"timeline": 2**32},
        {"switch_lsn": 1.5},
        {"switch_lsn": -1},
        {"switch_lsn": 2**64},
        {"reason": []},
    ],
)
def test_a_fork_with_a_wrong_field_is_none(wrong: dict[str, Any]) -> None:
    """Half of a fork would invalidate the wrong rows."""
    assert parse_fork(json.dumps({**FIELDS, **wrong})) is None


def test_further_keys_and_a_missing_reason_are_accepted() -> None:
    """A later bridge may say more."""
    fields = {name: value for name, value in FIELDS.items() if name != "reason"}

    assert parse_fork(json.dumps({**fields, "more": 1})) == Fork(
        FORK.system, FORK.timeline, FORK.switch_lsn, FORK.slot
    )


def test_the_place_of_a_fork_is_just_before_what_follows_it() -> None:
    """A commit exactly at the switch must still rise above it."""
    assert Fork("1", 2, 100, "s").place == Position(99, 0)
    assert Fork("1", 2, 0, "s").place == Position(0, 0)

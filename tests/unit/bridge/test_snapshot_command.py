"""What `bridge snapshot` asks and shows."""

from __future__ import annotations

import argparse
import io

import pytest

from bridge.snapshot.command import Screen, add_arguments, bar, build_request, describe
from schemas.names import TableName
from schemas.snapshots import SnapshotName, failure

USERS = TableName("public", "users")
NAME = SnapshotName("s1", USERS, 0x16B3748, 5)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "request_body"),
    [
        (["users"], {}),
        (["users", "--from", "7", "--to", "9"], {"from": ["7"], "to": ["9"]}),
        (["users", "--from", '["eu", 3]'], {"from": ["eu", 3]}),
        (["users", "--columns", "id,name"], {"columns": ["id", "name"]}),
    ],
)
def test_arguments_become_the_request(
    arguments: list[str], request_body: dict[str, object]
) -> None:
    assert build_request(parse(*arguments)) == request_body


def test_a_key_that_is_no_list_is_refused_by_the_command_line() -> None:
    with pytest.raises(SystemExit):
        parse("users", "--from", "[1")


def test_every_notice_is_said_in_words() -> None:
    assert describe(USERS, NAME.accepted()) == "snapshot s1 of public.users at 0/16B3748"
    assert "2 rows in 1 chunks" in describe(
        USERS,
        NAME.meta(
            batch_count=1,
            row_count=2,
            checksum="sha256:00",
            cdc_complete=9,
            schema_revision=1,
            whole=True,
        ),
    )
    assert describe(USERS, failure("s1", "why", "what to do")) == "failed: why\n  what to do"
    rejected = {"status": "rejected", "error": "no", "available_tables": ["users"]}
    assert describe(USERS, rejected) == "rejected: no\n  available: users"


@pytest.mark.parametrize(("done", "estimated"), [(0, 0), (5, 0), (0, 10), (5, 10), (20, 10)])
def test_a_bar_has_its_width_and_never_says_all(done: int, estimated: int) -> None:
    """The estimate may be old: only the meta says that a snapshot is whole."""
    drawn = bar(done, estimated)

    assert len(drawn) == len(bar(0, 0))
    assert "100%" not in drawn


def test_no_terminal_gets_no_control_characters() -> None:
    out = io.StringIO()

    Screen(out)(USERS, {"state": "copying", "rows": 1, "estimated_rows": 2, "rows_per_second": 3})

    assert "\x1b" not in out.getvalue()
    assert out.getvalue().endswith("1 rows, 3 rows/s\n")

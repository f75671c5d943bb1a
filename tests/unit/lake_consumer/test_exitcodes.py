"""Every exit code that an error can have is explained to supervisors."""

from __future__ import annotations

from collections.abc import Iterator

from lake_consumer.errors import Disposition, LakeError
from lake_consumer.exitcodes import EXIT_CODES


def _all(kind: type[LakeError]) -> Iterator[type[LakeError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _all(child)


def test_every_exit_code_of_an_error_is_in_the_table() -> None:
    listed = {row.code for row in EXIT_CODES}

    assert {kind.exit_code for kind in _all(LakeError)} <= listed
    assert {0, 2, 130} <= listed


def test_what_run_retries_is_worth_a_restart_for_other_commands() -> None:
    restart = {row.code: row.restart for row in EXIT_CODES}

    for kind in _all(LakeError):
        if kind.disposition is Disposition.RETRY:
            assert restart[kind.exit_code].startswith("yes"), kind

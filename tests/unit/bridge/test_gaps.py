"""A slot made anew leaves a gap exactly where another one published before."""

from __future__ import annotations

import pytest

from bridge.gaps import gap_message, leaves_gap
from bridge.sources import SourceId
from schemas.positions import Lsn, Position

OURS = SourceId("7", 5, "shop")


@pytest.mark.parametrize(
    ("owners", "live", "gap"),
    [
        ([], [], False),
        (["7/5/shop"], [], True),
        (["7/5/shop"], ["shop"], True),
        (["7/5/before"], [], True),
        (["7/5/beside"], ["beside"], False),
        (["7/6/shop"], [], False),
        (["8/5/shop"], [], False),
    ],
)
def test_a_gap_is_where_somebody_published_and_nobody_goes_on(
    owners: list[str], live: list[str], gap: bool
) -> None:
    assert leaves_gap(owners, OURS, live) is gap


def test_no_commit_behind_the_gap_counts_as_stored() -> None:
    """The first commit of the new slot may begin exactly where the WAL ended."""
    place = gap_message(OURS, Lsn(1_000)).place

    assert place.position < Position(1_000, 0)
    assert place.last


def test_a_gap_stands_behind_every_commit_before_it_and_is_no_transactions() -> None:
    """The last commit may end, at the latest, on the byte before the WAL's end."""
    message = gap_message(OURS, Lsn(1_000))

    assert message.place.position == Position(999, 0)
    assert (message.transactional, message.place.xid) == (False, 0)

"""Positions of a source rise, whatever piece of the stream is looked at."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_consumer.errors import OutOfOrder
from lake_consumer.order import (
    Places,
    Rung,
    Stretch,
    check_order,
    may_follow,
    reached_summary,
    read_reached,
    read_stretches,
    sum_up_order,
    write_stretches,
)

rungs = st.builds(Rung, st.integers(0, 6), st.integers(0, 6))
streams = st.lists(st.tuples(st.sampled_from("ab"), rungs), min_size=1, max_size=12)


def pieces(stream: list[tuple[str, Rung]], cut: int) -> list[Stretch]:
    """What executors say of a stream of one source that two of them read."""
    found: list[Stretch] = []
    numbered = list(enumerate(stream, start=1))
    for part in (numbered[:cut], numbered[cut:]):
        tokens = {token for _, (token, _) in part}
        places = [
            Places(
                token,
                *(
                    np.array(column, dtype=np.int64)
                    for column in zip(
                        *((at, *rung) for at, (name, rung) in part if name == token), strict=True
                    )
                ),
            )
            for token in sorted(tokens)
        ]
        found += sum_up_order({"s": places} if places else {})
    return found


@given(streams, st.integers(0, 12))
def test_a_stream_is_in_order_just_if_each_message_may_follow_the_one_before(
    stream: list[tuple[str, Rung]], cut: int
) -> None:
    """The vectorised check in pieces is the definition, message by message."""
    order = [rung for _, rung in stream]
    is_rising = all(may_follow(a, b) for a, b in pairwise(order))
    stretches = read_stretches(write_stretches(pieces(stream, cut)))

    if is_rising:
        assert check_order(stretches, {}) == {"s": order[-1]}
    else:
        with pytest.raises(OutOfOrder):
            check_order(stretches, {})


def test_the_message_names_what_fell_and_what_it_is_not_above() -> None:
    """Whoever is called at night needs the sequence, the table and both positions."""
    stream = [("a", Rung(5, 1)), ("b", Rung(7, 3)), ("a", Rung(5, 1))]

    with pytest.raises(OutOfOrder) as error:
        check_order(pieces(stream, 3), {})

    assert "stream sequence 3 (cdc.a) has position 0/5 seq 0" in str(error.value)
    assert "had reached 0/7 seq 1" in str(error.value)
    assert "rmm" in error.value.advice


def test_what_the_lake_has_reached_counts() -> None:
    """A restart begins where the lake is."""
    stretches = pieces([("a", Rung(5, 1))], 1)

    assert check_order(stretches, {"s": Rung(4, 9), "other": Rung(9, 1)}) == {
        "s": Rung(5, 1),
        "other": Rung(9, 1),
    }
    for held in (Rung(5, 1), Rung(6, 0)):
        with pytest.raises(OutOfOrder):
            check_order(stretches, {"s": held})


def test_a_message_may_share_a_place_and_a_change_may_not() -> None:
    """A schema message stands with the change that needs it; marks may be sent twice."""
    assert may_follow(Rung(5, 0), Rung(5, 1))
    assert may_follow(Rung(5, 2), Rung(5, 2))
    assert not may_follow(Rung(5, 1), Rung(5, 1))
    assert not may_follow(Rung(5, 1), Rung(5, 0))


def test_a_table_is_of_the_source_that_announced_it_last() -> None:
    """Another bridge may take a table over in the middle of a batch."""
    places = Places("t", np.array([1, 5, 6]), np.array([9, 9, 1]), np.array([1, 3, 1]))

    divided = {
        source: part.sequences.tolist()
        for source, part in places.by_source({"t": [(0, "old"), (6, "new")]})
    }

    assert divided == {"old": [1, 5], "new": [6]}
    assert [source for source, _ in places.by_source({})] == ["table t"]


def test_positions_come_back_from_a_commit() -> None:
    """They are kept in the summary of the table of cuts."""
    reached = {"7/1/s": Rung(5, 1)}

    assert read_reached(reached_summary(reached)) == reached
    assert read_reached({}) is None

"""Lag in seconds: right when traffic stops, when a backlog drains and when the bridge is stuck."""

from __future__ import annotations

import pytest

from bridge.lag import FRESH_SECONDS, LagMeter


@pytest.fixture
def meter() -> LagMeter:
    """A bridge that was caught up at 1,000 s, where the WAL ended at 100."""
    meter = LagMeter(started=900.0)
    meter.looked(100, 1_000.0)
    meter.stored(100)
    return meter


def test_no_traffic_is_no_lag(meter: LagMeter) -> None:
    """An alert must not fire at night because nobody writes."""
    for at in range(1_005, 5_000, 5):
        meter.looked(100, float(at))
        meter.stored(100)
        assert meter.seconds(at + 4.9) == 0


def test_an_hour_without_traffic_is_no_lag_of_the_next_commit(meter: LagMeter) -> None:
    """What counts is the age of the commit that waits, not of the last one that was stored."""
    meter.read(90, 990.0)
    meter.stored(100)
    meter.looked(100, 4_600.0)
    meter.stored(100)

    meter.looked(150, 4_605.0)

    assert meter.seconds(4_606.0) == 6


def test_a_stuck_bridge_lags_more_and_more(meter: LagMeter) -> None:
    """NATS takes nothing, PostgreSQL writes on: the oldest unstored commit gets older."""
    for at in (1_005.0, 1_010.0, 1_300.0):
        meter.looked(100 + int(at), at)
        meter.read(100 + int(at), at - 1)
        meter.stored(100)

    assert meter.seconds(1_301.0) == 301


def test_a_backlog_lags_by_the_age_of_what_was_stored_last(meter: LagMeter) -> None:
    meter.looked(10_000, 2_000.0)
    meter.read(400, 1_400.0)
    meter.stored(400)
    assert meter.seconds(2_000.0) == 600

    meter.read(900, 1_900.0)
    assert meter.seconds(2_000.0) == 600, "it was read, not stored"

    meter.stored(900)
    assert meter.seconds(2_000.0) == 100

    meter.stored(10_000)
    assert meter.seconds(2_001.0) == 0


def test_steady_traffic_lags_by_its_latency(meter: LagMeter) -> None:
    """The WAL's end is never reached while others write; commit times tell."""
    for second in range(1, 60):
        at = 1_000.0 + second
        if second % 5 == 0:
            meter.looked(100 * second + 50, at)
        meter.read(100 * second, at)
        meter.stored(100 * second)
        assert meter.seconds(at + 0.2) < 1


def test_silence_of_postgresql_is_no_proof(meter: LagMeter) -> None:
    """Without a look nobody knows what was committed; an alert must fire then, too."""
    assert meter.seconds(1_000 + FRESH_SECONDS) == 0
    assert meter.seconds(1_001 + FRESH_SECONDS) == 1 + FRESH_SECONDS


def test_before_the_first_look_the_process_is_as_old_as_its_lag() -> None:
    """A bridge that never got as far as PostgreSQL must not look caught up."""
    assert LagMeter(started=100.0).seconds(160.0) == 60


def test_another_server_may_stand_at_a_lower_position(meter: LagMeter) -> None:
    """After a restore, marks of the old server can no longer be reached."""
    meter.looked(10_000, 1_005.0)
    meter.looked(120, 1_010.0)

    meter.stored(120)

    assert meter.seconds(1_011.0) == 0
    meter.looked(130, 1_015.0)
    assert meter.seconds(1_016.0) == 6


def test_marks_that_are_stored_one_after_the_other_all_count(meter: LagMeter) -> None:
    """Only two of many are kept, and the bound still follows what is stored."""
    for at in range(1_001, 1_101):
        meter.looked(at, float(at))
    meter.stored(1_050)
    meter.stored(1_099)

    assert meter.seconds(1_101.0) <= 100
    meter.stored(1_100)
    assert meter.seconds(1_101.0) == 0


def test_a_position_below_what_is_stored_changes_nothing(meter: LagMeter) -> None:
    """A new session begins to store again from where PostgreSQL was told."""
    meter.looked(2_000, 1_001.0)
    meter.stored(2_000)
    before = meter.seconds(1_500.0)

    meter.stored(1_500)

    assert meter.seconds(1_500.0) == before

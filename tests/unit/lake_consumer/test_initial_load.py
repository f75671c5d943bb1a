from __future__ import annotations

from collections import deque

import pytest

from lake_consumer.initial_load import (
    CATCH_UPS_AT_MOST,
    IDLE_SECONDS,
    LANE_ROWS,
    SHORT_TAIL,
    UNIT_CHUNKS,
    Progress,
    Unit,
    count_lanes,
    needs_catch_up,
    plan_units,
    queue_units,
    take_round,
    why_stale,
)
from lake_consumer.loads import Meta
from lake_consumer.tablestates import LIVE, TableState, loading, parked


def meta(batch_count: int, row_count: int, snapshot_id: str = "s") -> Meta:
    return Meta(
        sequence=1,
        snapshot_id=snapshot_id,
        lsn=1,
        timestamp="",
        cdc_sequence=0,
        cdc_complete=0,
        schema_revision=1,
        batch_count=batch_count,
        row_count=row_count,
        checksum="c",
    )


@pytest.mark.parametrize(
    ("chunks", "rows"),
    [(0, 0), (1, 1), (UNIT_CHUNKS, 10), (UNIT_CHUNKS + 1, 10), (1000, 10_000_000), (3, 0)],
)
def test_units_cover_every_chunk_once_in_order(chunks: int, rows: int) -> None:
    """The digests of units are combined in chunk order; a chunk left out would be lost rows."""
    units = plan_units(meta(chunks, rows))

    assert [n for unit in units for n in range(unit.first, unit.last + 1)] == list(range(chunks))
    assert all(unit.last - unit.first < UNIT_CHUNKS for unit in units)
    assert rows - len(units) <= sum(unit.rows for unit in units) <= rows


def test_chunks_of_many_rows_make_smaller_units() -> None:
    """A task holds the rows of a unit in memory."""
    units = plan_units(meta(100, 100 * LANE_ROWS))

    assert {(unit.last - unit.first, unit.rows) for unit in units} == {(0, LANE_ROWS)}


def test_a_round_has_at_most_its_lanes_and_each_at_most_its_share() -> None:
    waiting = deque(plan_units(meta(10 * UNIT_CHUNKS, 1000)))

    lanes = take_round(waiting, 2)

    assert [len(lane) for lane in lanes] == [1, 1]
    assert len(waiting) == 8


def test_small_snapshots_share_a_lane() -> None:
    """A hundred tables of a row each are two jobs, not a hundred."""
    waiting = deque(Unit(f"s{n}", 0, 0, 1) for n in range(100))

    lanes = take_round(waiting, 2)

    assert [len(lane) for lane in lanes] == [UNIT_CHUNKS, UNIT_CHUNKS]
    assert len(waiting) == 100 - 2 * UNIT_CHUNKS


def test_small_snapshots_do_not_wait_for_large_ones() -> None:
    large = plan_units(meta(4 * UNIT_CHUNKS, 1000, "large"))
    small = plan_units(meta(1, 1, "small"))

    queued = queue_units(large, small)

    assert [unit.snapshot_id for unit in queued] == ["small", *["large"] * 4]
    assert [unit.first for unit in queued][1:] == [unit.first for unit in large]


@pytest.mark.parametrize(
    ("cores", "idle", "lanes"),
    [(1, 0.0, 1), (2, 0.0, 1), (8, 0.0, 4), (8, IDLE_SECONDS, 8), (2, IDLE_SECONDS - 0.1, 1)],
)
def test_loads_take_half_of_the_cores_while_there_are_batches(
    cores: int, idle: float, lanes: int
) -> None:
    assert count_lanes(cores, idle) == lanes


def test_a_tail_is_caught_up_with_while_it_is_long_but_not_for_ever() -> None:
    """A table that changes faster than it is folded still becomes live."""
    assert not needs_catch_up(SHORT_TAIL, 0)
    assert needs_catch_up(SHORT_TAIL + 1, 0)
    assert needs_catch_up(SHORT_TAIL + 1, CATCH_UPS_AT_MOST - 1)
    assert not needs_catch_up(SHORT_TAIL + 1, CATCH_UPS_AT_MOST)


@pytest.mark.parametrize(
    "now",
    [
        LIVE,
        parked("no"),
        loading("first sight", 6),
        loading("another reason", 5),
        TableState("loading", "first sight", 5, 9),
    ],
)
def test_a_load_is_useless_in_any_other_state_than_the_one_it_began_in(now: TableState) -> None:
    """A resync, a gap or a rewrite moves the state, and so the snapshots that will do."""
    begun = loading("first sight", 5)

    assert why_stale(begun, now)
    assert not why_stale(begun, loading("first sight", 5))


def test_progress_says_what_is_left() -> None:
    fields = Progress(rows=500, total=2000, seconds=5.0).fields

    assert fields == {"rows": 500, "total": 2000, "rate": "100/s", "seconds_left": "15"}
    assert Progress(rows=0, total=9, seconds=0.0).fields["seconds_left"] == "unknown"


def test_a_unit_costs_what_it_has_of_a_round_in_chunks_or_in_rows() -> None:
    """The same for a unit late in the snapshot as for the first."""
    assert Unit("s", 3 * UNIT_CHUNKS, 4 * UNIT_CHUNKS - 1, 0).cost == 1
    assert Unit("s", UNIT_CHUNKS, UNIT_CHUNKS, 0).cost == 1 / UNIT_CHUNKS
    assert Unit("s", 7, 7, LANE_ROWS // 2).cost == 0.5

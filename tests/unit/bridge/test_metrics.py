"""Metrics that operators alert on: present when there is a number, absent when there is none."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.metrics import METRICS, WAL_STATUSES, metrics_line, render
from bridge.status import SlotWatch, SnapshotProgress, Status


def shown(status: Status) -> dict[str, float]:
    families = text_string_to_metric_families(render(status).decode())
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_number_that_does_not_exist_is_absent() -> None:
    """0 bytes left is an emergency; no limit is none."""
    found = shown(Status("s", "p"))

    for name in ("slot_safe_wal_bytes", "slot_seconds_left", "last_error_age_seconds"):
        assert f"bridge_{name}" not in found
    assert {row.name for row in METRICS if row.kind == "counter"} <= found.keys()


@pytest.mark.parametrize("wal_status", WAL_STATUSES)
def test_one_wal_status_is_1(wal_status: str) -> None:
    found = shown(Status("s", "p", watch=SlotWatch(wal_status=wal_status)))

    assert {one: found[f"bridge_slot_wal_status{one}"] for one in WAL_STATUSES} == {
        one: float(one == wal_status) for one in WAL_STATUSES
    }


def test_what_is_left_of_the_slot_is_shown() -> None:
    watch = SlotWatch(safe_wal_size=0, seconds_left=float("inf"), looked_at=time.time() - 7)
    status = Status("s", "p", watch=watch)
    found = shown(status)

    assert found["bridge_slot_safe_wal_bytes"] == 0
    assert found["bridge_slot_seconds_left"] == float("inf")
    assert found["bridge_slot_check_age_seconds"] >= 7
    slot = status.to_map()["slot_state"]
    assert (slot["safe_wal_size"], slot["seconds_left"]) == (0, None)
    assert slot["checked_seconds_ago"] >= 7


def test_requests_that_wait_are_told_from_those_that_run() -> None:
    """A request that was handed back waits as well, though no snapshot is begun for it."""
    status = Status("s", "p")
    status.snapshots += [
        SnapshotProgress("a", "1"),
        SnapshotProgress("b", "2", "waiting"),
        SnapshotProgress("c", "3", "copying"),
        SnapshotProgress("d", "4", "exporting"),
    ]
    status.snapshot_totals.handed_back.add(("users", ""))
    found = shown(status)

    assert found["bridge_snapshots_waiting"] == 3
    assert found["bridge_snapshots_running"] == 2
    assert status.to_map()["snapshots"]["waiting"] == 3


def test_the_age_of_an_error_outlives_it() -> None:
    """A bridge that reconnects every minute streams whenever somebody looks."""
    status = Status("s", "p")
    status.failed("NATS is gone")
    status.last_error = None

    assert shown(status)["bridge_last_error_age_seconds"] < 60
    assert status.to_map()["last_error_seconds_ago"] is not None


def test_a_standby_has_no_lag_of_its_own() -> None:
    """Whoever reads the slot reports it; a standby that did too would raise a false alarm."""
    status = Status("s", "p", state="standby")

    assert "bridge_lag_seconds" not in shown(status)
    assert status.to_map()["lag_seconds"] is None
    assert "lag_seconds=- " in metrics_line(status)


def test_lag_is_by_postgresqls_clock() -> None:
    """Commit times are; a clock that differs by an hour must not look like an hour of lag."""
    now = time.time()
    status = Status("s", "p", state="streaming", acked_lsn=100)
    status.watch = SlotWatch(looked_at=now, clock_ahead=3_600.0)
    status.lag.looked(100, now + 3_600)
    assert shown(status)["bridge_lag_seconds"] == 0

    status.lag.looked(200, now + 3_600)

    assert shown(status)["bridge_lag_seconds"] < 60

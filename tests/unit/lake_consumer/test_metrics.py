"""What `run` tells of itself, asked as Prometheus asks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http import HTTPStatus

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lake_consumer.batches import Batch
from lake_consumer.errors import BadOption
from lake_consumer.exporter import STALLED_SECONDS, Endpoints, serving
from lake_consumer.iceberg.reading import TableStatus
from lake_consumer.metrics import (
    METRICS,
    TABLE_METRICS,
    TABLE_STATE,
    Meter,
    Remembered,
    render,
)
from lake_consumer.metricsoptions import MetricsOptions
from lake_consumer.verifications import Verification
from lake_consumer.watermark import Watermark

BATCH = Batch(first=1, last=50, commit_lsn=0x191BFD0, commit_ts="2025-12-08T13:45:21.719719Z")
USERS = TableStatus(
    "public.users",
    7,
    3,
    Watermark(50, 0x191BFD0, "2025-12-08T13:45:21.719719Z"),
    data_files=2,
    deleted_rows=1,
    verified=Verification(datetime(2025, 12, 8, tzinfo=UTC), "differs", "0/1"),
)
LOG = TableStatus(
    "public__changes.users", 9, 3, Watermark(50, 1), table="public.users", kind="gone"
)


def _meter() -> Meter:
    meter = Meter()
    meter.took(BATCH, changes=48, bytes=5_000, seconds=2.0)
    meter.looked(60, 50)
    return meter


def _get(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_every_metric_is_served_with_its_value() -> None:
    """Totals of the program, and a labelled gauge for every table."""
    endpoints = Endpoints(_meter(), Remembered(lambda: [USERS, LOG]))
    with serving(MetricsOptions(port=0), endpoints) as port:
        code, text = _get(port, "/metrics")

    assert code == HTTPStatus.OK
    samples = {
        (sample.name, sample.labels.get("table")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    rows = (*METRICS, *TABLE_METRICS)
    assert {name for name, _ in samples} == {TABLE_STATE, *(row.name for row in rows)}
    assert samples["lake_changes_total", None] == 48
    assert samples["lake_batch_messages_per_second", None] == 25
    assert samples["lake_behind_messages", None] == 10
    assert samples["lake_behind_seconds", None] > 0
    assert samples["lake_table_data_files", "public.users"] == 2
    assert samples["lake_table_verified_equal", "public.users"] == 0
    assert samples["lake_table_verified_timestamp_seconds", "public.users"] == 1_765_152_000
    assert samples["lake_table_commit_age_seconds", "public.users"] > 0
    assert ("lake_table_commit_age_seconds", "public__changes.users") not in samples


def test_a_table_is_in_one_state() -> None:
    """One sample per state, so that an alert can name the state it is about."""
    text = render(_meter(), lambda: [USERS, LOG]).decode()

    samples = {
        sample.labels["state"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == TABLE_STATE and sample.labels["table"] == "public.users"
    }
    assert samples == {"live": 0, "loading": 0, "parked": 0, "gone": 1}


def test_health_names_parked_tables_and_stays_healthy() -> None:
    """A restart does not help a parked table, so no probe must cause one."""
    meter = _meter()
    meter.parked = ("public.users",)

    answer = Endpoints(meter, Remembered(list)).health()

    assert answer.status == HTTPStatus.OK
    body = json.loads(answer.body)
    assert (body["status"], body["parked_tables"]) == ("parked", ["public.users"])


def test_an_idle_lake_is_not_behind() -> None:
    """However old the newest commit is: there was nothing since."""
    meter = _meter()
    meter.looked(50, 50)

    assert (meter.behind_messages, meter.behind_seconds) == (0, 0.0)


def test_health_tells_a_stalled_loop_from_a_living_one() -> None:
    meter = _meter()
    with serving(MetricsOptions(port=0), Endpoints(meter, Remembered(list))) as port:
        alive = _get(port, "/health")
        meter.turned -= STALLED_SECONDS + 1
        stalled = _get(port, "/health")
        lost = _get(port, "/nothing")
        status = json.loads(_get(port, "/status")[1])

    assert alive[0] == HTTPStatus.OK
    assert stalled[0] == HTTPStatus.SERVICE_UNAVAILABLE
    assert "stalled" in stalled[1]
    assert lost[0] == HTTPStatus.NOT_FOUND
    assert status["lake_messages_total"] == 50


def test_a_port_that_is_taken_is_said_and_none_is_opened_unasked() -> None:
    with serving(MetricsOptions(), Endpoints(Meter(), Remembered(list))) as off:
        assert off is None
    with serving(MetricsOptions(port=0), Endpoints(Meter(), Remembered(list))) as port:
        options = MetricsOptions(port=port)
        with pytest.raises(BadOption, match="cannot listen"), serving(options, Endpoints(
            Meter(), Remembered(list))):  # fmt: skip
            pass


def test_tables_are_read_once_in_a_while() -> None:
    """A scrape must not open every table's metadata each time."""
    reads: list[int] = []

    def read() -> list[TableStatus]:
        reads.append(1)
        return [USERS]

    tables = Remembered(read)

    assert [*tables(), *tables()] == [USERS, USERS]
    assert len(reads) == 1

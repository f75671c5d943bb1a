"""What `run` tells of itself, asked as Prometheus asks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lake_consumer.batches import Batch
from lake_consumer.errors import BadOption
from lake_consumer.exporter import STALLED_SECONDS, Endpoints, serving
from lake_consumer.iceberg.reading import TableStatus
from lake_consumer.metrics import METRICS, TABLE_METRICS, Meter, Remembered
from lake_consumer.metricsoptions import MetricsOptions
from lake_consumer.watermark import Watermark

BATCH = Batch(first=1, last=50, commit_lsn=0x191BFD0, commit_ts="2025-12-08T13:45:21.719719Z")
USERS = TableStatus("public.users", 7, 3, Watermark(50, 0x191BFD0), data_files=2, deleted_rows=1)


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
    endpoints = Endpoints(_meter(), Remembered(lambda: [USERS]))
    with serving(MetricsOptions(port=0), endpoints) as port:
        code, text = _get(port, "/metrics")

    assert code == HTTPStatus.OK
    samples = {
        (sample.name, sample.labels.get("table")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {name for name, _ in samples} == {row.name for row in (*METRICS, *TABLE_METRICS)}
    assert samples["lake_changes_total", None] == 48
    assert samples["lake_batch_messages_per_second", None] == 25
    assert samples["lake_behind_messages", None] == 10
    assert samples["lake_behind_seconds", None] > 0
    assert samples["lake_table_data_files", "public.users"] == 2


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

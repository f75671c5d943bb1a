"""Metrics of `run`: one row each, read when somebody asks, so that a batch pays nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lake_consumer.batches import Batch
from lake_consumer.errors import NoLake
from lake_consumer.iceberg.reading import TableStatus
from lake_consumer.tablestates import STATE_KINDS

Family = Literal["counter", "gauge"]


@dataclass(slots=True)
class Meter:
    """What `run` has done so far, counted by its loop and read by whoever asks."""

    started: float = field(default_factory=time.monotonic)
    turned: float = field(default_factory=time.monotonic)
    """When the loop last came round: it looked at the stream, or applied a batch."""

    batches: int = 0
    messages: int = 0
    changes: int = 0
    bytes: int = 0
    apply_seconds: float = 0.0
    last_seconds: float = 0.0
    last_messages: int = 0
    applied: int = 0
    stream_end: int = 0
    commit_lsn: int = 0
    commit_ts: str = ""
    care_rounds: int = 0
    care_seconds: float = 0.0
    care_failures: int = 0
    dead_letters: int = 0
    snapshots_waiting: int = 0
    parked: tuple[str, ...] = ()
    """Tables that wait for a person."""
    outage: str = ""
    """What the loop waits for, in words; empty while it follows."""
    outage_began: float | None = None
    outage_attempts: int = 0
    outages: int = 0

    def suffered(self, why: str, now: float) -> None:
        """Count an attempt that failed; the first one begins an outage."""
        self.turned = now
        if self.outage_began is None:
            self.outage_began = now
            self.outages += 1
        self.outage = why
        self.outage_attempts += 1

    def recovered(self) -> None:
        self.outage, self.outage_began, self.outage_attempts = "", None, 0

    @property
    def outage_seconds(self) -> float:
        return 0.0 if self.outage_began is None else time.monotonic() - self.outage_began

    def looked(self, stream_end: int, applied: int) -> None:
        self.turned = time.monotonic()
        self.stream_end, self.applied = stream_end, applied

    def took(self, batch: Batch, *, changes: int, bytes: int, seconds: float) -> None:
        self.turned = time.monotonic()
        self.batches += 1
        self.messages += batch.messages
        self.changes += changes
        self.bytes += bytes
        self.apply_seconds += seconds
        self.last_seconds, self.last_messages = seconds, batch.messages
        self.applied = batch.last
        self.commit_lsn, self.commit_ts = batch.commit_lsn, batch.commit_ts

    def cared(self, seconds: float, *, failed: bool) -> None:
        self.turned = time.monotonic()
        self.care_rounds += 1
        self.care_seconds += seconds
        self.care_failures += failed

    @property
    def behind_messages(self) -> int:
        return max(0, self.stream_end - self.applied)

    @property
    def behind_seconds(self) -> float:
        """Age of the newest commit in the lake; nothing while all there is is applied."""
        if not self.behind_messages or not self.commit_ts:
            return 0.0
        age = datetime.now(UTC) - datetime.fromisoformat(self.commit_ts)
        return max(0.0, age.total_seconds())

    @property
    def rate(self) -> float:
        return self.last_messages / self.last_seconds if self.last_seconds else 0.0

    def document(self) -> dict[str, Any]:
        """The same for programs that read JSON."""
        return {row.name: row.read(self) for row in METRICS}


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One number of the meter under its public name."""

    name: str
    kind: Family
    help: str
    read: Callable[[Meter], float]


METRICS = (
    MetricRow("lake_uptime_seconds", "gauge", "Seconds since the process began to follow",
              lambda m: time.monotonic() - m.started),
    MetricRow("lake_batches_total", "counter", "Lake commits", lambda m: m.batches),
    MetricRow("lake_messages_total", "counter", "Messages of the stream applied",
              lambda m: m.messages),
    MetricRow("lake_changes_total", "counter", "Row changes applied", lambda m: m.changes),
    MetricRow("lake_bytes_total", "counter", "Bytes of messages applied", lambda m: m.bytes),
    MetricRow("lake_apply_seconds_total", "counter", "Seconds spent applying batches",
              lambda m: m.apply_seconds),
    MetricRow("lake_batch_seconds", "gauge", "Seconds that the newest batch took",
              lambda m: m.last_seconds),
    MetricRow("lake_batch_messages_per_second", "gauge", "Messages per second of that batch",
              lambda m: m.rate),
    MetricRow("lake_applied_sequence", "gauge", "Stream sequence up to which all is in the lake",
              lambda m: m.applied),
    MetricRow("lake_stream_sequence", "gauge", "The stream's last sequence, as last seen",
              lambda m: m.stream_end),
    MetricRow("lake_behind_messages", "gauge", "Messages in the stream and not yet in the lake",
              lambda m: m.behind_messages),
    MetricRow("lake_behind_seconds", "gauge",
              "Age of the newest commit in the lake; 0 while there is nothing to apply",
              lambda m: m.behind_seconds),
    MetricRow("lake_commit_lsn", "gauge", "WAL position of the newest commit in the lake",
              lambda m: m.commit_lsn),
    MetricRow("lake_dead_letters", "gauge",
              "Messages in stream DEAD, which could not be applied and were left out",
              lambda m: m.dead_letters),
    MetricRow("lake_snapshots_waiting", "gauge",
              "Tables that wait for a snapshot to be taken and loaded",
              lambda m: m.snapshots_waiting),
    MetricRow("lake_tables_parked", "gauge",
              "Tables whose mirror stopped and needs an operator (`resync`)",
              lambda m: len(m.parked)),
    MetricRow("lake_outage_seconds", "gauge",
              "Seconds since NATS, catalog or disk failed; 0 while all of them work",
              lambda m: m.outage_seconds),
    MetricRow("lake_outages_total", "counter",
              "Outages of NATS, catalog or disk that `run` waited for", lambda m: m.outages),
    MetricRow("lake_maintenance_rounds_total", "counter", "Rounds of maintenance",
              lambda m: m.care_rounds),
    MetricRow("lake_maintenance_seconds_total", "counter", "Seconds spent on maintenance",
              lambda m: m.care_seconds),
    MetricRow("lake_maintenance_failures_total", "counter", "Rounds of maintenance that failed",
              lambda m: m.care_failures),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableRow:
    """One number of every table."""

    name: str
    help: str
    read: Callable[[TableStatus], float | None]
    """None if the table has no such number."""


TABLE_METRICS = (
    TableRow("lake_table_rows", "Rows, by table", lambda t: t.rows),
    TableRow("lake_table_data_files", "Data files, by table", lambda t: t.data_files),
    TableRow("lake_table_deleted_rows", "Rows that readers have to skip, by table",
             lambda t: t.deleted_rows),
    TableRow("lake_table_snapshots", "Snapshots, by table", lambda t: t.snapshots),
    TableRow("lake_table_stream_sequence", "Stream sequence of the newest change, by table",
             lambda t: t.watermark.stream_sequence),
    TableRow("lake_table_commit_lsn", "WAL position of the newest change, by table",
             lambda t: t.watermark.commit_lsn),
    TableRow("lake_table_commit_age_seconds",
             "Seconds since the commit time of the newest change, by table",
             lambda t: _age(t.watermark.commit_ts)),
    TableRow("lake_table_verified_timestamp_seconds",
             "Unix time of the last `verify` of the table, by table",
             lambda t: None if t.verified is None else t.verified.at.timestamp()),
    TableRow("lake_table_verified_equal",
             "1 if the last `verify` found the table equal to PostgreSQL, else 0, by table",
             lambda t: None if t.verified is None else t.verified.is_equal),
)  # fmt: skip

TABLE_STATE = "lake_table_state"
TABLE_STATE_HELP = "1 for the state the table is in: live, loading, parked or gone, else 0"


def _age(commit_ts: str) -> float | None:
    if not commit_ts:
        return None
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(commit_ts)).total_seconds())


_FAMILIES: Mapping[Family, Callable[[str, str], Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}

ReadTables = Callable[[], Iterable[TableStatus]]


class Remembered:
    """Tables as they were a moment ago: reading them opens every table's metadata.

    A catalog that is locked or away takes long to say so. During an outage, and while another
    request reads, the tables are shown as they were, so that every other metric stays readable.
    """

    def __init__(
        self,
        read: ReadTables,
        seconds: float = 15,
        *,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._is_away = is_away
        self._known: list[TableStatus] = []
        self._read_at: float | None = None
        self._lock = threading.Lock()

    def __call__(self) -> list[TableStatus]:
        if self._is_away() or not self._lock.acquire(blocking=self._read_at is None):
            return self._known
        try:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at > self._seconds:
                with contextlib.suppress(NoLake):
                    self._known = list(self._read())
                self._read_at = now
            return self._known
        finally:
            self._lock.release()


class MeterCollector(Collector):
    """Gives Prometheus the rows of both tables above."""

    def __init__(self, meter: Meter, tables: ReadTables) -> None:
        self._meter = meter
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            family = _FAMILIES[row.kind](row.name, row.help)
            family.add_metric([], float(row.read(self._meter)))
            yield family
        tables = list(self._tables())
        for column in TABLE_METRICS:
            labelled = GaugeMetricFamily(column.name, column.help, labels=["table"])
            for table in tables:
                if (value := column.read(table)) is not None:
                    labelled.add_metric([table.name], float(value))
            yield labelled
        yield _states(tables)


def _states(tables: Iterable[TableStatus]) -> Metric:
    """One sample per PostgreSQL table and state, as change logs tell it."""
    family = GaugeMetricFamily(TABLE_STATE, TABLE_STATE_HELP, labels=["table", "state"])
    for table in tables:
        for kind in STATE_KINDS if table.table else ():
            family.add_metric([table.table, kind], float(table.kind == kind))
    return family


def render(meter: Meter, tables: ReadTables) -> bytes:
    """Write all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(MeterCollector(meter, tables))
    return generate_latest(registry)

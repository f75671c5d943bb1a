"""Metrics: one row each, read from the status when somebody asks, so the hot path pays nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.status import Status


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One number of the status under its public name."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[Status], float | None]
    """None where there is no such number now: the metric is left out."""


METRICS = (
    MetricRow("bridge_uptime_seconds", "gauge", "Seconds since the process started",
              lambda s: s.uptime_seconds),
    MetricRow("bridge_wal_messages_received_total", "counter", "pgoutput messages received",
              lambda s: s.wal_messages),
    MetricRow("bridge_events_skipped_total", "counter",
              "Changes read again and found in the stream already", lambda s: s.skipped),
    MetricRow("bridge_forks_total", "counter",
              "Forks of PostgreSQL's history marked in the stream", lambda s: s.forks),
    MetricRow("bridge_published_bytes_total", "counter", "Bytes of message bodies stored",
              lambda s: s.published_bytes),
    MetricRow("bridge_last_ack_lsn", "gauge", "LSN up to which JetStream has stored everything",
              lambda s: s.acked_lsn),
    MetricRow("bridge_safe_lsn", "gauge", "LSN that PostgreSQL may be told under --durability",
              lambda s: s.safe_lsn),
    MetricRow("bridge_connected", "gauge", "1 while streaming", lambda s: s.connected),
    MetricRow("bridge_reconnects_total", "counter", "Sessions begun again because of PostgreSQL",
              lambda s: s.source_reconnects),
    MetricRow("bridge_nats_reconnects_total", "counter", "Sessions begun again because of NATS",
              lambda s: s.sink_reconnects),
    MetricRow("bridge_lost_tails_total", "counter",
              "Times the stream had lost messages that JetStream had acknowledged",
              lambda s: s.lost_tails),
    MetricRow("bridge_lost_messages_total", "counter",
              "Acknowledged messages that the stream had lost, as far as sequences show",
              lambda s: s.lost_messages),
    MetricRow("bridge_gaps_marked_total", "counter",
              "Lost tails that PostgreSQL could not send again and that were marked as gaps",
              lambda s: s.gaps_marked),
    MetricRow("bridge_last_processing_time_us", "gauge",
              "Microseconds from reading the last WAL message to queueing it",
              lambda s: s.last_processing_us),
    MetricRow("bridge_in_flight_messages", "gauge", "Messages read and not yet acknowledged",
              lambda s: s.in_flight_messages),
    MetricRow("bridge_in_flight_bytes", "gauge", "Bytes read and not yet acknowledged",
              lambda s: s.in_flight_bytes),
    MetricRow("bridge_slot_active", "gauge", "1 while PostgreSQL sees a reader on the slot",
              lambda s: s.watch.active),
    MetricRow("bridge_wal_lag_bytes", "gauge", "WAL written and not yet confirmed",
              lambda s: s.watch.lag_bytes),
    MetricRow("bridge_slot_retained_bytes", "gauge", "WAL that PostgreSQL keeps for the slot",
              lambda s: s.watch.retained_bytes),
    MetricRow("bridge_lag_seconds", "gauge",
              "Upper bound of the age of the oldest commit not yet stored; 0 when caught up",
              lambda s: s.lag_seconds),
    MetricRow("bridge_slot_safe_wal_bytes", "gauge",
              "WAL that can still be written before the slot is lost; absent without a limit",
              lambda s: s.watch.safe_wal_size),
    MetricRow("bridge_slot_seconds_left", "gauge",
              "Seconds until the slot is lost if it stays where it is, at the present rate of WAL",
              lambda s: s.watch.seconds_left),
    MetricRow("bridge_slot_check_age_seconds", "gauge",
              "Seconds since PostgreSQL was last asked about the slot",
              lambda s: s.watch.age_seconds),
    MetricRow("bridge_last_error_age_seconds", "gauge",
              "Seconds since a session last ended by an error; absent if none has",
              lambda s: s.last_error_age_seconds),
    MetricRow("bridge_snapshots_running", "gauge", "Snapshots being taken",
              lambda s: s.snapshots_running),
    MetricRow("bridge_snapshots_waiting", "gauge",
              "Snapshot requests that wait for their turn or to be tried again",
              lambda s: s.snapshots_waiting),
    MetricRow("bridge_snapshots_completed_total", "counter", "Snapshots stored whole",
              lambda s: s.snapshot_totals.completed),
    MetricRow("bridge_snapshots_failed_total", "counter", "Snapshots that failed or were cancelled",
              lambda s: s.snapshot_totals.failed),
    MetricRow("bridge_snapshot_rows_total", "counter", "Rows of snapshots stored",
              lambda s: s.snapshot_totals.rows),
    MetricRow("bridge_snapshot_bytes_total", "counter", "Bytes of snapshot chunks stored",
              lambda s: s.snapshot_totals.bytes),
    MetricRow("bridge_snapshot_wal_kept_bytes", "gauge",
              "WAL that PostgreSQL keeps for snapshots that wait for open transactions",
              lambda s: sum(snapshot.wal_kept_bytes for snapshot in s.snapshots)),
)  # fmt: skip

EVENTS_PUBLISHED = "bridge_cdc_events_published_total"

WAL_STATUS = "bridge_slot_wal_status"
WAL_STATUS_HELP = "1 for the slot's wal_status; at unreserved the next checkpoint may lose it"
WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class StatusCollector(Collector):
    """Gives Prometheus the rows above and the per-table counter."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            value = row.read(self._status)
            if value is not None:
                family = _FAMILIES[row.kind](row.name, row.help)
                family.add_metric([], float(value))
                yield family
        yield self._wal_status()
        events = CounterMetricFamily(
            EVENTS_PUBLISHED, "Messages stored in the CDC stream", labels=["table", "operation"]
        )
        for subject, count in list(self._status.published.items()):
            _, table, operation = subject.split(".")
            events.add_metric([table, operation], count)
        yield events

    def _wal_status(self) -> Metric:
        family = GaugeMetricFamily(WAL_STATUS, WAL_STATUS_HELP, labels=["status"])
        for status in WAL_STATUSES:
            family.add_metric([status], float(self._status.watch.wal_status == status))
        return family


def render(status: Status) -> bytes:
    """Write all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    return generate_latest(registry)


def metrics_line(status: Status) -> str:
    """Sum the metrics up in one log line."""
    return (
        f"METRICS uptime_s={status.uptime_seconds:.0f} state={status.state}"
        f" wal_messages={status.wal_messages} published={status.events_published}"
        f" skipped={status.skipped} in_flight={status.in_flight_messages}"
        f" lag_seconds={_shown(status.lag_seconds)} lag_bytes={status.watch.lag_bytes}"
        f" wal_status={status.watch.wal_status} safe_wal_bytes={_shown(status.watch.safe_wal_size)}"
        f" retained_bytes={status.watch.retained_bytes}"
        f" snapshots_waiting={status.snapshots_waiting}"
        f" reconnects={status.source_reconnects} nats_reconnects={status.sink_reconnects}"
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"

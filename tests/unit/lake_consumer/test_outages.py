"""Which failures `run` waits for, how long, and what it says meanwhile."""

from __future__ import annotations

import errno
import sqlite3
from threading import Event

import nats.errors
import nats.js.errors
import pytest

from lake_consumer.errors import (
    CatalogAway,
    CatalogLocked,
    DiskFull,
    LakeBusy,
    LakeError,
    NatsRefused,
    NatsUnreachable,
    NoQuorum,
    SparkFailed,
    StreamMissing,
    UndecodableMessage,
)
from lake_consumer.iceberg.failures import translate
from lake_consumer.metrics import Meter
from lake_consumer.outages import Backoff, Outages, name_failure


def _java(cause: str) -> str:
    return f"An error occurred while calling o1.commit.\n: java.lang.X: y\nCaused by: {cause}\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (_java("java.io.IOException: No space left on device"), DiskFull),
        ("OSError: [Errno 28] No space left on device", DiskFull),
        (_java("org.sqlite.SQLiteException: [SQLITE_FULL] Insertion failed"), DiskFull),
        (_java("org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked"),
         CatalogLocked),
        (_java("org.postgresql.util.PSQLException: Connection to db:5432 refused."), CatalogAway),
        (_java("org.postgresql.util.PSQLException: FATAL: the database system is starting up"),
         CatalogAway),
        (_java("org.apache.hc.client5.http.HttpHostConnectException: Connect to rest:80 failed"),
         CatalogAway),
        ("nats.errors.TimeoutError: nats: timeout", NatsUnreachable),
        ("nats.js.errors.ServiceUnavailableError: nats: code=503", NoQuorum),
        ("lake_consumer.errors.NatsUnreachable: NATS cannot be reached", NatsUnreachable),
        ("lake_consumer.errors.UndecodableMessage: stream sequence 3: no", UndecodableMessage),
        (_java("java.lang.NullPointerException: null"), SparkFailed),
        (_java("org.postgresql.util.PSQLException: ERROR: permission denied"), SparkFailed),
    ],
)  # fmt: skip
def test_a_failure_in_spark_gets_its_name_from_its_text(text: str, kind: type[LakeError]) -> None:
    assert type(translate(text)) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (OSError(errno.EDQUOT, "over quota"), DiskFull),
        (sqlite3.OperationalError("database or disk is full"), DiskFull),
        (sqlite3.OperationalError("database is locked"), CatalogLocked),
        (nats.errors.TimeoutError(), NatsUnreachable),
        (nats.errors.NoRespondersError(), NatsUnreachable),
        (nats.js.errors.ServiceUnavailableError(code=503), NoQuorum),
        (StreamMissing("none"), StreamMissing),
        (LakeBusy("two"), LakeBusy),
        (NatsRefused("user"), NatsRefused),
        (ConnectionResetError("Connection lost"), NatsUnreachable),
        # So py4j ends once Java is gone: only a new process helps.
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), None),
        (OSError(errno.EACCES, "Permission denied"), None),
        (ValueError("a bug"), None),
    ],
)
def test_a_failure_of_the_driver_gets_a_name_if_it_is_weather(
    error: Exception, kind: type[LakeError] | None
) -> None:
    named = name_failure(error)

    assert (None if named is None else type(named)) is kind


def test_what_a_failure_came_from_counts_too() -> None:
    failed = SparkFailed("a Spark job failed")
    failed.__cause__ = OSError(errno.ENOSPC, "full")

    assert isinstance(name_failure(failed), DiskFull)


def test_waits_grow_to_a_limit() -> None:
    assert [Backoff().delay(n) for n in (1, 2, 3, 6, 7, 1_000_000)] == [0.5, 1, 2, 15, 15, 15]


class Stop(Event):
    """Remembers for how long it was waited; no time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meter, stop = Meter(), Stop()
    outages = Outages(meter, stop)
    failures = [NatsUnreachable("away")] * 3 + [DiskFull("full")]

    def session() -> None:
        if failures:
            raise failures.pop(0)
        assert (meter.outage, meter.outage_attempts) == ("full", 4)
        outages.over()
        outages.over()

    outages.survive(session)

    assert stop.waits == [0.5, 1, 2, 4]
    said = capsys.readouterr().out.splitlines()
    assert ["outage began" in line for line in said] == [True, True, False]
    assert ["outage over" in line for line in said] == [False, False, True]
    assert "reason=away" in said[0]
    assert "seconds=" in said[-1]
    assert (meter.outages, meter.outage, meter.outage_seconds) == (1, "", 0.0)


@pytest.mark.parametrize("error", [LakeBusy("two"), ValueError("a bug"), NatsRefused("user")])
def test_what_is_no_weather_ends_the_program(error: Exception) -> None:
    stop = Stop()

    def session() -> None:
        raise error

    with pytest.raises(type(error)):
        Outages(Meter(), stop).survive(session)
    assert stop.waits == []


def test_an_outage_is_left_when_told_to_stop() -> None:
    stop = Stop()

    def session() -> None:
        stop.set()
        raise NatsUnreachable("away")

    Outages(Meter(), stop).survive(session)

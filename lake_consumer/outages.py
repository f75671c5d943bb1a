"""Outages: which failures are weather, and how `run` waits until they are over.

NATS that is away or elects a leader, a catalog that is locked or away and a full disk end by
themselves or by an operator's hand, and no restart makes that sooner. `run` then lets go of all it
holds, waits, and begins again from where the tables are, as a new process would. A failure that
says of itself to stop ends the program, and so does one that has no name here.

Libraries in three languages report such failures, most of them as text inside Spark's exception.
`recognise` is the table of those texts.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event

from lake_consumer.errors import (
    CatalogAway,
    CatalogLocked,
    DiskFull,
    Disposition,
    LakeError,
    NatsUnreachable,
    NoQuorum,
    reason_of,
)
from lake_consumer.logs import info, warn
from lake_consumer.metrics import Meter

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_SIGNS: tuple[tuple[type[LakeError], re.Pattern[str]], ...] = (
    (DiskFull, re.compile(
        r"No space left on device|Disk quota exceeded|SQLITE_FULL|database or disk is full")),
    (CatalogLocked, re.compile(
        r"SQLITE_BUSY|SQLITE_LOCKED|database is locked|database table is locked")),
    (CatalogAway, re.compile(
        r"SQLITE_CANTOPEN|SQLITE_IOERR|unable to open database file"
        r"|UncheckedSQLException: Failed to connect"
        r"|PSQLException: (?:Connection to|The connection attempt failed|An I/O error occurred"
        r"|This connection has been closed"
        r"|FATAL: (?:terminating connection|the database system is|sorry, too many))"
        r"|SQL(?:Non)?TransientConnectionException|CommunicationsException"
        r"|RESTException: Error occurred while processing|HttpHostConnectException"
        r"|iceberg\.exceptions\.Service(?:Unavailable|Failure)Exception"
        r"|SdkClientException: Unable to execute HTTP request"
        r"|server closed the connection unexpectedly|Max retries exceeded with url")),
    (NoQuorum, re.compile(r"nats\.js\.errors\.(?:ServiceUnavailable|NoStreamResponse)Error")),
    (NatsUnreachable, re.compile(
        r"nats\.js\.errors\.ServerError"
        # As asyncio words it. Other resets may be Java's, whose end no waiting heals.
        r"|ConnectionResetError: Connection lost"
        r"|nats\.errors\.(?:\w*Timeout|ConnectionClosed|ConnectionReconnecting|NoRespond\w*"
        r"|NoServers|StaleConnection|UnexpectedEOF|OutboundBufferLimit)\w*")),
)  # fmt: skip
"""How failures look that a later try may not meet; the first row that fits counts."""


def recognise(text: str) -> type[LakeError] | None:
    """Find the failure that a text tells of, whoever wrote it; None for one that is not weather."""
    return next((kind for kind, sign in _SIGNS if sign.search(text)), None)


def name_failure(error: Exception) -> LakeError | None:
    """Give a failure its name; None for one that nobody foresaw."""
    if isinstance(error, LakeError) and error.disposition is Disposition.RETRY:
        return error
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            return DiskFull(reason_of(error))
        kind = type(cause)
        if found := recognise(f"{kind.__module__}.{kind.__qualname__}: {cause}"):
            return found(reason_of(error))
    return error if isinstance(error, LakeError) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the n-th try in a row."""

    first_seconds: float = 0.5
    longest_seconds: float = 15.0

    def delay(self, failures: int) -> float:
        return min(self.first_seconds * 2.0 ** min(failures - 1, 30), self.longest_seconds)


class Outages:
    """Runs sessions one after another, and tells log and meter of what is between them."""

    def __init__(self, meter: Meter, stop: Event, backoff: Backoff | None = None) -> None:
        self._meter = meter
        self._stop = stop
        self._backoff = backoff or Backoff()
        self._kind: type[LakeError] | None = None

    def survive(self, session: Callable[[], None]) -> None:
        """Run sessions until one ends by request, or by a failure that is no outage."""
        while not self._stop.is_set():
            try:
                session()
                return
            except Exception as error:
                named = name_failure(error)
                if named is None or named.disposition is Disposition.STOP:
                    raise
                self._begin(named)
            self._stop.wait(self._backoff.delay(self._meter.outage_attempts))

    def over(self) -> None:
        """Note that everything works; to be called after each turn of the loop."""
        if self._kind is None:
            return
        info("outage over", seconds=self._meter.outage_seconds,
             attempts=self._meter.outage_attempts)  # fmt: skip
        self._kind = None
        self._meter.recovered()

    def _begin(self, error: LakeError) -> None:
        self._meter.suffered(str(error), time.monotonic())
        # One outage may turn into another: NATS is back, and the disk is full.
        if self._kind is not type(error):
            self._kind = type(error)
            warn("outage began", reason=error, remedy=error.advice,
                 retry="until it is over, at least every "
                 f"{self._backoff.longest_seconds:g} s")  # fmt: skip

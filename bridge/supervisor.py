"""Keeps sessions running: what an error says about itself decides whether there is a next one.

Once the bridge has streamed, it connects again for ever, with backoff and jitter. Before that, a
server that cannot be reached is more likely a wrong setting, so the start gives up after a while
and says what to check.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from bridge.errors import (
    BridgeError,
    ChainBroken,
    Disposition,
    PublishRefused,
    SinkLost,
    SlotBusy,
)
from bridge.status import Status

_log = logging.getLogger("bridge.supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the n-th try in a row; jitter keeps many bridges from marching."""

    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=15)

    def delay(self, failures: int, jitter: float) -> float:
        """Give seconds; `jitter` between 0 and 1 takes up to half of them away."""
        full = self.first.total_seconds() * 2.0 ** min(failures - 1, 30)
        return min(full, self.longest.total_seconds()) * (1 - jitter / 2)


async def supervise(
    session: Callable[[], Awaitable[None]],
    *,
    status: Status,
    stop: asyncio.Event,
    start_timeout: timedelta,
    backoff: Backoff | None = None,
) -> None:
    """Run sessions until one ends by request, or an error says to stop."""
    backoff = backoff or Backoff()
    deadline = time.monotonic() + start_timeout.total_seconds()
    failures = 0
    while not stop.is_set():
        sessions_before = status.sessions
        try:
            await session()
            return
        except BridgeError as raised:
            error = raised
        failures = 1 if status.sessions > sessions_before else failures + 1
        status.failed(str(error))
        if _gives_up(error, status, deadline):
            raise error
        _note(error, status)
        delay = backoff.delay(failures, random.random())  # noqa: S311 - jitter, not a secret
        _log.warning("%s; trying again in %.1f s. %s", error, delay, error.advice)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await stop.wait()


def _gives_up(error: BridgeError, status: Status, deadline: float) -> bool:
    if error.disposition is Disposition.STOP:
        return True
    never_streamed = status.sessions == 0 and not isinstance(error, SlotBusy)
    return never_streamed and time.monotonic() >= deadline


def _note(error: BridgeError, status: Status) -> None:
    if isinstance(error, SlotBusy):
        status.state = "standby"
        return
    status.state = "reconnecting" if status.sessions else "starting"
    if isinstance(error, SinkLost | PublishRefused | ChainBroken):
        status.sink_reconnects += 1
    else:
        status.source_reconnects += 1

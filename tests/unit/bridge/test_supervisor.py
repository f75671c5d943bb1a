"""What an error says about itself decides whether there is a next session."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import ClassVar

import pytest

from bridge.errors import (
    BridgeError,
    ChainBroken,
    MalformedWal,
    PublishRefused,
    SinkLost,
    SlotBusy,
    SourceLost,
)
from bridge.status import Status
from bridge.supervisor import Backoff, supervise

QUICK = Backoff(first=timedelta(milliseconds=1), longest=timedelta(milliseconds=2))


async def run(status: Status, *outcomes: BridgeError | None, start_timeout: float = 0) -> int:
    """Run sessions with these outcomes and count them; a session that fails had streamed."""
    left = list(outcomes)

    async def session() -> None:
        outcome = left.pop(0)
        if not isinstance(outcome, SlotBusy):
            status.sessions += status.sessions > 0
        if outcome is not None:
            raise outcome

    await supervise(
        session,
        status=status,
        stop=asyncio.Event(),
        start_timeout=timedelta(seconds=start_timeout),
        backoff=QUICK,
    )
    return len(outcomes) - len(left)


def streamed() -> Status:
    status = Status("s", "p")
    status.sessions = 1
    return status


async def test_lost_connections_are_made_again_without_end() -> None:
    status = streamed()
    sink = (SinkLost("x"), PublishRefused("x"), ChainBroken("x"))
    assert await run(status, *[SourceLost("x")] * 20, *sink, None) == 24
    assert (status.source_reconnects, status.sink_reconnects) == (20, 3)


async def test_what_cannot_heal_ends_the_process() -> None:
    with pytest.raises(MalformedWal):
        await run(streamed(), SourceLost("x"), MalformedWal("y"), None)


async def test_a_server_that_was_never_reached_ends_the_start() -> None:
    """More likely a wrong setting than an outage: say so instead of waiting for ever."""
    with pytest.raises(SinkLost):
        await run(Status("s", "p"), SinkLost("x"), None)


async def test_the_start_keeps_trying_for_a_while() -> None:
    assert await run(Status("s", "p"), SinkLost("x"), None, start_timeout=60) == 2


async def test_a_busy_slot_is_waited_for_however_long() -> None:
    status = Status("s", "p")
    assert await run(status, *[SlotBusy("x")] * 5, None) == 6
    assert status.state == "standby"


def test_backoff_grows_to_a_bound_and_jitter_only_shortens_it() -> None:
    backoff = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=10))
    assert [backoff.delay(n, 0) for n in (1, 2, 3, 5, 500)] == [1, 2, 4, 10, 10]
    assert backoff.delay(3, 1) == 2
    assert backoff.delay(100_000, 0) == 10, "an outage of weeks is counted as well"


class CountedBackoff(Backoff):
    """Remembers which failures in a row it was asked for."""

    asked: ClassVar[list[int]] = []

    def delay(self, failures: int, jitter: float) -> float:  # noqa: ARG002 - the signature
        self.asked.append(failures)
        return 0.0


async def test_failures_are_counted_in_a_row_and_streaming_ends_the_row() -> None:
    status = Status("s", "p")
    CountedBackoff.asked.clear()
    streams = [False, False, True, False]
    states = []

    async def session() -> None:
        states.append(status.state)
        if not streams:
            return
        status.sessions += streams.pop(0)
        raise SourceLost("x")

    await supervise(
        session,
        status=status,
        stop=asyncio.Event(),
        start_timeout=timedelta(seconds=60),
        backoff=CountedBackoff(),
    )

    assert CountedBackoff.asked == [1, 2, 1, 2]
    assert states[1:] == ["starting", "starting", "reconnecting", "reconnecting"]
    assert status.last_error == "x"


async def test_a_request_to_stop_ends_the_wait_and_begins_no_session() -> None:
    stop = asyncio.Event()
    sessions = 0

    async def session() -> None:
        nonlocal sessions
        sessions += 1
        asyncio.get_running_loop().call_later(0.01, stop.set)
        raise SourceLost("x")

    hour = timedelta(hours=1)
    await supervise(
        session,
        status=streamed(),
        stop=stop,
        start_timeout=timedelta(),
        backoff=Backoff(first=hour, longest=hour),
    )

    assert sessions == 1

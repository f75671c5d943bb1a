"""Tasks end together, also those that do not want to."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bridge.errors import SinkLost
from bridge.tasks import end, raise_failure, until_first


async def forever() -> None:
    await asyncio.Event().wait()


async def deaf(times: int) -> None:
    """Swallow cancellations, as `asyncio.wait_for` of Python 3.11 may do."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
    await forever()


async def fail(error: Exception) -> None:
    raise error


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    """Else a bridge would stand still for ever between two sessions."""
    tasks = {asyncio.create_task(deaf(2)), asyncio.create_task(forever())}
    await asyncio.sleep(0)
    await asyncio.wait_for(end(tasks), 30)
    assert all(task.cancelled() for task in tasks)


async def test_ending_is_finished_even_when_cancelled() -> None:
    task = asyncio.create_task(deaf(3))
    await asyncio.sleep(0)
    ending = asyncio.create_task(end({task}))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.cancelled()


async def test_the_first_to_fail_says_why() -> None:
    tasks = {asyncio.create_task(forever()), asyncio.create_task(fail(SinkLost("x")))}
    with pytest.raises(SinkLost):
        await until_first(tasks)
    await end(tasks)


async def test_a_failure_with_a_name_explains_more() -> None:
    tasks = [asyncio.create_task(fail(error)) for error in (ValueError("y"), SinkLost("x"))]
    await asyncio.wait(tasks)
    with pytest.raises(SinkLost):
        raise_failure(tasks)

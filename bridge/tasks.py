"""Tasks that belong together: when one ends, all end, and the one that failed says why.

`asyncio.TaskGroup` cancels once and then waits. That is not enough here: `asyncio.wait_for` of
Python 3.11, which psycopg and nats-py both use, may swallow a cancellation that arrives together
with its result, and the task lives on. So `end` cancels until a task is really done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from bridge.errors import BridgeError

CANCEL_AGAIN_SECONDS = 0.2

Task = asyncio.Task[Any]


async def end(tasks: Iterable[Task], *, patience: float = CANCEL_AGAIN_SECONDS) -> None:
    """Cancel tasks until they are done, also while being cancelled ourselves.

    A task with something left to say gets `patience` for it before it is cancelled again.
    """
    left = {task for task in tasks if not task.done()}
    interrupted: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            _, left = await asyncio.wait(left, timeout=patience)
        except asyncio.CancelledError as error:
            interrupted = error
            left = {task for task in left if not task.done()}
    if interrupted is not None:
        raise interrupted


async def until_first(tasks: Iterable[Task]) -> None:
    """Wait until one of the tasks ends; raise its failure, if that is how it ended."""
    done, _ = await asyncio.wait(set(tasks), return_when=asyncio.FIRST_COMPLETED)
    raise_failure(done)


async def until_all(tasks: Iterable[Task]) -> None:
    """Wait until all tasks have ended, or one has failed; raise its failure then."""
    done, _ = await asyncio.wait(set(tasks), return_when=asyncio.FIRST_EXCEPTION)
    raise_failure(done)


def raise_failure(tasks: Iterable[Task]) -> None:
    """Raise what ended a task; a failure with a name explains more than others."""
    failures = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    named = [failure for failure in failures if isinstance(failure, BridgeError)]
    for failure in (*named, *failures):
        if failure is not None:
            raise failure

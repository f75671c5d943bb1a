"""What the bridge runs in: uvloop where there is one, else Python's own loop; and its garbage.

uvloop wakes up and writes for a third of the cost; nothing depends on it. It does not exist for
Windows, and a machine without a wheel or a compiler may do without.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable

_log = logging.getLogger("bridge")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Give what makes the loop; None says Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - it may be missing
    except ImportError as error:
        _log.info("uvloop is not used: %s", error)
        return None
    return uvloop.new_event_loop


GARBAGE_AFTER = 50_000


def calm_garbage_collector() -> None:
    """Look for cycles more rarely: every message is a new tuple, and none is part of a cycle.

    At Python's own pace (every 700 new objects) that was a twentieth of what a change costs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)

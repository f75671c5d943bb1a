"""What the bridge runs in: uvloop where there is one, else Python's own loop; and its memory.

uvloop wakes up and writes for a third of the cost; nothing depends on it. It does not exist for
Windows, and a machine without a wheel or a compiler may do without.
"""

from __future__ import annotations

import asyncio
import ctypes
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


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc calls M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""

KEPT_BYTES = 4 << 20
LARGE_BYTES = 2 << 20


def keep_freed_memory() -> bool:
    """Let the C library keep a few megabytes that were freed; say whether it can.

    Hundreds of kilobytes come and go with every read of the WAL. Given back to the kernel each
    time, and asked for again, they were a fifth of what a change costs. Only glibc has the knob.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGE_BYTES))

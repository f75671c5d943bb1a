"""Which event loop the bridge runs in: uvloop where there is one, else Python's own.

uvloop wakes up and writes for a third of the cost; nothing depends on it. It does not exist for
Windows, and a machine without a wheel or a compiler may do without.
"""

from __future__ import annotations

import asyncio
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

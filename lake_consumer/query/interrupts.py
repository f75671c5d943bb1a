"""Ctrl-C while DuckDB works: the query ends at once, and Python sees a KeyboardInterrupt.

Python runs its signal handlers between its own instructions only, so the main thread learns nothing
of a signal while it waits in DuckDB. The C-level handler does write to a descriptor at once, and a
thread that reads it cancels the query.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_DONE = 0


class Interrupts:
    """Whether the user pressed Ctrl-C."""

    def __init__(self) -> None:
        self.seen = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the query failed because it was interrupted."""
        if self.seen:
            raise KeyboardInterrupt


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[Interrupts]:
    """Call `cancel`, from another thread, as soon as SIGINT arrives."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's; another thread's query is cancelled by who runs it.
        yield interrupts
        return

    def watch() -> None:
        while (number := reads.recv(1)[0]) != _DONE:
            if number == signal.SIGINT:
                interrupts.seen = True
                cancel()

    def handle(_: int, __: FrameType | None) -> None:
        interrupts.seen = True
        raise KeyboardInterrupt

    reads, writes = socket.socketpair()
    writes.setblocking(False)
    watcher = threading.Thread(target=watch, name="interrupts", daemon=True)
    handler = signal.signal(signal.SIGINT, handle)
    before = signal.set_wakeup_fd(writes.fileno())
    watcher.start()
    try:
        yield interrupts
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        writes.send(bytes([_DONE]))
        watcher.join()
        reads.close()
        writes.close()

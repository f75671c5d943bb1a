"""Where the command `lake-consumer` begins: Ctrl-C while it still loads ends it quietly, too."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    # Loading takes a second. A KeyboardInterrupt might be lost, or be a traceback, in any import.
    before = signal.signal(signal.SIGINT, _leave)
    from lake_consumer.cli import main as run  # noqa: PLC0415

    signal.signal(signal.SIGINT, before)
    return run()


def _leave(_: int, __: FrameType | None) -> None:
    os.write(2, b"lake-consumer: interrupted\n")
    os._exit(INTERRUPTED)

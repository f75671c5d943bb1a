"""Progress for people: one line per step with the time it took; live where there is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_REFRESH_S = 0.1


class Step:
    """A line that changes while its work goes on, and stays when it is done."""

    def __init__(self, text: str, *, live: bool) -> None:
        self._text = text
        self._live = live
        self._began = time.monotonic()
        self._shown = 0.0

    def show(self, text: str) -> None:
        """Say how far the work is."""
        now = time.monotonic()
        if self._live and now - self._shown >= _REFRESH_S:
            self._shown = now
            sys.stdout.write(f"\r\x1b[2K{self._line(text)[:110]}")
            sys.stdout.flush()

    def say(self, text: str) -> None:
        """Leave a line about the work that is going on."""
        clear = "\r\x1b[2K" if self._live else ""
        print(f"{clear}          {text}", flush=True)

    def done(self, text: str) -> None:
        """Say what the work came to; the last word counts."""
        self._text = text

    def close(self, mark: str = "") -> None:
        clear = "\r\x1b[2K" if self._live else ""
        print(f"{clear}{self._line(self._text)}{mark}", flush=True)

    def _line(self, text: str) -> str:
        return f"{time.monotonic() - self._began:7.1f} s  {text}"


@contextmanager
def step(text: str) -> Iterator[Step]:
    shown = Step(text, live=sys.stdout.isatty())
    shown.show(text)
    try:
        yield shown
    except BaseException:
        shown.close(" ... did not end well")
        raise
    shown.close()


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns, numbers to the right."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [isinstance(cell, int) for cell in rows[0]]
    for row in (header, *cells):
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  " + "  ".join(aligned).rstrip())

"""Standard output of commands that print an answer.

A reader that closes its end early, such as `head`, has seen enough: the command stops without a
word. Whatever else keeps a line from being written is an error of its own.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lake_consumer.errors import OutputClosed, OutputFailed


def write(text: str) -> None:
    with _clear_errors():
        sys.stdout.write(text)


def write_log(line: str) -> None:
    """Write a line of the log; one that a full disk has no room for is left out, not fatal."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            with _clear_errors():
                raise


def flush() -> None:
    """Write what is buffered; at the interpreter's end it would be too late to say what failed."""
    with _clear_errors():
        sys.stdout.flush()


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            raise OutputClosed("standard output was closed") from None
        raise OutputFailed(f"standard output cannot be written: {error.strerror}") from error


def _discard_output() -> None:
    """Give what is still buffered a place to go, or Python would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

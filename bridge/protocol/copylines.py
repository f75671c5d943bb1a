"""Lines of COPY's text as one run of bytes, ready to be cut into values.

Behind every line stands a mark, a newline between two tabs, as if it were a value. So one split at
tabs gives every value of every line, and the marks show that each has as many as belong there.
That is exact because PostgreSQL escapes every tab and newline inside a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bridge.errors import MalformedWal

MARK = b"\t\n\t"


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, at least one."""

    text: bytes
    """Every newline between two tabs."""

    count: int

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> Lines:
        """Take lines that have their ends."""
        return cls(b"".join(lines).replace(b"\n", MARK), len(lines))

    def each(self) -> list[bytes]:
        """Give the lines one by one, with their ends."""
        *lines, rest = self.text.split(MARK)
        if rest or len(lines) != self.count:
            raise MalformedWal(f"COPY sent {self.count} lines that do not end where they should")
        return [line + b"\n" for line in lines]

    def split(self, first: int) -> tuple[Lines, Lines]:
        """Divide them into the first so many and the others."""
        lines = self.each()
        return Lines.of(lines[:first]), Lines.of(lines[first:])


def in_parts(lines: Sequence[bytes], most: int) -> Iterator[Sequence[bytes]]:
    """Give lines in order, at most so many at a time."""
    for first in range(0, len(lines), most):
        yield lines[first : first + most]

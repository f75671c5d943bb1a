"""Forks: what the stream holds of a history that PostgreSQL does not have any more. Pure.

At a `bridge-fork` the changes of its source from `switch_lsn` on, stored before it, have never
happened. The lake marks them in change logs (column `fork_seq`), rebuilds the source's mirrors, and
offers no cut any more that holds one of them. What it knows of forks stands in a property of the
table of cuts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from lake_consumer.order import Rung
from schemas.forks import Fork
from schemas.positions import Lsn

FORKS_PROPERTY = "bridge.forks"
FORK_COLUMN = "fork_seq"
"""In change logs and cuts: the stream sequence of the fork that made the row invalid."""

FORKS_AT_MOST = 50


@dataclass(frozen=True, slots=True)
class ForkMark:
    """A fork, and where in the stream it stands."""

    sequence: int
    source: str
    system: str
    timeline: int
    switch_lsn: int
    reason: str = ""

    @classmethod
    def of(cls, sequence: int, source: str, fork: Fork) -> ForkMark:
        return cls(sequence, source, fork.system, fork.timeline, fork.switch_lsn, fork.reason)

    @property
    def rung(self) -> Rung:
        """Where positions start again."""
        return Rung(max(self.switch_lsn - 1, 0), 0)

    @property
    def reason_of_load(self) -> str:
        return f"PostgreSQL's history was replaced: {self}"

    def __str__(self) -> str:
        return (
            f"fork at stream sequence {self.sequence}, timeline {self.timeline} "
            f"from {Lsn(self.switch_lsn)} on"
        )


def note_fork(properties: Mapping[str, str], mark: ForkMark) -> dict[str, str]:
    """Add a fork to those that the table of cuts knows."""
    known = {one.sequence: one for one in read_forks(properties)} | {mark.sequence: mark}
    newest = sorted(known.values(), key=lambda one: one.sequence)[-FORKS_AT_MOST:]
    return {FORKS_PROPERTY: json.dumps([asdict(one) for one in newest])}


def read_forks(properties: Mapping[str, str]) -> list[ForkMark]:
    return [ForkMark(**fields) for fields in json.loads(properties.get(FORKS_PROPERTY, "[]"))]


def describe_fork(sequence: int, known: Iterable[ForkMark]) -> str:
    """Name a fork by its sequence; an old one may not be known any more."""
    return next(
        (str(one) for one in known if one.sequence == sequence),
        f"fork at stream sequence {sequence}",
    )


def dead_rows(mark: ForkMark) -> str:
    """The rows of a change log, of the fork's source, that never happened; in SQL."""
    return (
        f"commit_lsn >= {mark.switch_lsn} AND stream_seq < {mark.sequence}"
        f" AND {FORK_COLUMN} IS NULL"
    )


def dead_cuts(mark: ForkMark, first_dead: int | None, *, is_only_source: bool) -> str:
    """The cuts that hold something that never happened; in SQL.

    The LSN of a cut is of whatever source came last in it. Where there is only one, a cut from the
    switch on names a position that now means something else, whatever it holds.
    """
    holds = "false" if first_dead is None else f"stream_seq >= {first_dead}"
    beyond = f"commit_lsn >= {mark.switch_lsn}" if is_only_source else "false"
    return f"stream_seq < {mark.sequence} AND {FORK_COLUMN} IS NULL AND ({holds} OR {beyond})"

"""Whether positions of a source rise along the stream: the second line of fencing.

The bridge stores the changes of a source once and in commit order. If something else than that is
in the stream (a session that lost its slot and stored its buffers again, a copy of messages), then
applying it would take mirrors back in time. So nothing is applied that does not rise.

A message has a *rung*: its commit LSN, and twice its ordinal, plus one if it is a change. A schema
message shares the position of the change that needs it and stands one rung below. Rungs of a source
never fall, and a change is always above everything before. Only `bridge-fork` lets them fall.

Executors sum up what they decode as `Stretch`es, one for each source in a piece of the stream; the
driver puts the stretches together and compares them with what the lake has reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from lake_consumer.errors import OutOfOrder
from schemas.positions import Lsn

POSITIONS = "bridge.positions"
"""In the summary of commits to the table of cuts: the rung that each source has reached."""

Owners = Mapping[str, Sequence[tuple[int, str]]]
"""By table token: from which stream sequence on the table is of which source."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Rung(NamedTuple):
    """A place in the order of one source."""

    commit_lsn: int
    step: int

    @property
    def is_change(self) -> bool:
        return self.step % 2 == 1

    def __str__(self) -> str:
        return f"{Lsn(self.commit_lsn)} seq {self.step // 2}"


Reached = Mapping[str, Rung]
"""How far each source is."""


def may_follow(before: Rung, after: Rung) -> bool:
    """Whether a message may be stored after another of the same source."""
    return after > before or (after == before and not after.is_change)


@dataclass(frozen=True, slots=True)
class Seen:
    """One message of a stretch."""

    sequence: int
    token: str
    rung: Rung


@dataclass(frozen=True, slots=True)
class Stretch:
    """The messages of one source in a piece of the stream."""

    source: str
    first: Seen
    last: Seen
    fallen: Seen | None = None
    """The first message that does not rise, and `before`, what it is not above."""
    before: Rung | None = None

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Stretch:
        fallen, before = fields["fallen"], fields["before"]
        return cls(
            fields["source"],
            _seen(fields["first"]),
            _seen(fields["last"]),
            None if fallen is None else _seen(fallen),
            None if before is None else Rung(*before),
        )


def _seen(fields: Mapping[str, Any]) -> Seen:
    return Seen(fields["sequence"], fields["token"], Rung(*fields["rung"]))


@dataclass(frozen=True, slots=True)
class Places:
    """Where messages of one table, or logical messages, stand; arrays of one length."""

    token: str
    sequences: Ints
    commit_lsns: Ints
    steps: Ints

    def only(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Places:
        return Places(self.token, self.sequences[mask], self.commit_lsns[mask], self.steps[mask])

    def by_source(self, owners: Owners) -> Iterable[tuple[str, Places]]:
        """Divide by the source that the table was of; one that is not known is its own."""
        spans = owners.get(self.token) or [(0, f"table {self.token}")]
        if len(spans) == 1:
            yield spans[0][1], self
            return
        starts = np.array([start for start, _ in spans[1:]], dtype=np.int64)
        span = np.searchsorted(starts, self.sequences, side="right")
        for at, (_, source) in enumerate(spans):
            if (mask := span == at).any():
                yield source, self.only(mask)


def sum_up_order(found: Mapping[str, Sequence[Places]]) -> list[Stretch]:
    """Sum up what a piece of the stream holds of each source."""
    return [_stretch(source, places) for source, places in found.items()]


def _stretch(source: str, places: Sequence[Places]) -> Stretch:
    """Vectorised: 0.05 us for a message."""
    sequences = np.concatenate([one.sequences for one in places])
    order = np.argsort(sequences, kind="stable")
    lsns = np.concatenate([one.commit_lsns for one in places])[order]
    steps = np.concatenate([one.steps for one in places])[order]
    table = np.repeat(np.arange(len(places)), [len(one.sequences) for one in places])[order]
    sequences = sequences[order]

    def seen(at: int) -> Seen:
        rung = Rung(int(lsns[at]), int(steps[at]))
        return Seen(int(sequences[at]), places[int(table[at])].token, rung)

    rises = (lsns[1:] > lsns[:-1]) | ((lsns[1:] == lsns[:-1]) & (steps[1:] > steps[:-1]))
    stays = (lsns[1:] == lsns[:-1]) & (steps[1:] == steps[:-1]) & (steps[1:] % 2 == 0)
    fallen = np.flatnonzero(~(rises | stays))
    first, last = seen(0), seen(-1)
    if not len(fallen):
        return Stretch(source, first, last)
    at = int(fallen[0])
    return Stretch(source, first, last, seen(at + 1), seen(at).rung)


def check_order(stretches: Iterable[Stretch], reached: Reached) -> dict[str, Rung]:
    """Say how far each source is after these stretches; `OutOfOrder` if one does not rise."""
    tops = dict(reached)
    for stretch in sorted(stretches, key=lambda one: one.first.sequence):
        before = tops.get(stretch.source)
        if before is not None and not may_follow(before, stretch.first.rung):
            raise _out_of_order(stretch.source, stretch.first, before)
        if stretch.fallen is not None and stretch.before is not None:
            raise _out_of_order(stretch.source, stretch.fallen, stretch.before)
        tops[stretch.source] = stretch.last.rung
    return tops


def _out_of_order(source: str, fallen: Seen, before: Rung) -> OutOfOrder:
    return OutOfOrder(
        f"stream sequence {fallen.sequence} (cdc.{fallen.token}) has position {fallen.rung}, but "
        f"source {source} had reached {before} before it: changes were stored again or out of order"
    )


def write_stretches(stretches: Iterable[Stretch]) -> str:
    return json.dumps([stretch.to_fields() for stretch in stretches])


def read_stretches(text: str) -> list[Stretch]:
    return [Stretch.from_fields(fields) for fields in json.loads(text)]


def reached_summary(reached: Reached) -> dict[str, str]:
    """What a commit to the table of cuts says of the order."""
    return {POSITIONS: json.dumps(dict(sorted(reached.items())))}


def read_reached(summary: Mapping[str, str]) -> dict[str, Rung] | None:
    """Read a commit's summary; None if it says nothing, as those of older versions."""
    if POSITIONS not in summary:
        return None
    return {source: Rung(*rung) for source, rung in json.loads(summary[POSITIONS]).items()}

"""Planning of initial loads and resyncs that run concurrently with batches. Pure decisions.

A snapshot is read in *units*: a few adjoining chunks, which one task turns into one data file. A
*round* is one Spark job over units of any number of snapshots, so a hundred small tables cost as
much as one table of their size. The number of tasks in a round (its lanes) bounds the share of the
cores that loads take from batches; a round lasts about a second, so a batch that needs a core gets
it soon, and a load that became useless stops soon.

Changes that arrive during the load are in the change log. They are folded over the loaded files in
*catch-ups* until few are left; only those few are folded while batches wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lake_consumer.loads import Meta
from lake_consumer.tablestates import TableState

UNIT_CHUNKS = 32
LANE_ROWS = 200_000
"""What one task does in a round, at most; whichever of the two is reached first."""

SHORT_TAIL = 20_000
"""Changes that may be folded while batches wait; a batch of as many takes about a second."""
CATCH_UPS_AT_MOST = 8
"""A table that changes faster than its changes are folded becomes live with a longer tail."""

IDLE_SECONDS = 3.0
"""With no batch for this long, loads take all cores."""
PROGRESS_SECONDS = 10.0


class Unit(NamedTuple):
    """Chunks `first` to `last` of a snapshot."""

    snapshot_id: str
    first: int
    last: int
    rows: int
    """Estimated from the mean of the snapshot."""

    @property
    def cost(self) -> float:
        """The part of a lane's round that this takes."""
        chunks = self.last - self.first + 1
        return max(chunks / UNIT_CHUNKS, self.rows / LANE_ROWS)


def plan_units(meta: Meta) -> list[Unit]:
    """Cut a snapshot into units."""
    if not meta.batch_count:
        return []
    mean = meta.row_count / meta.batch_count
    size = max(1, min(UNIT_CHUNKS, int(LANE_ROWS / mean) if mean else UNIT_CHUNKS))
    starts = range(0, meta.batch_count, size)
    ends = [min(start + size, meta.batch_count) - 1 for start in starts]
    return [
        Unit(meta.snapshot_id, start, end, int(mean * (end - start + 1)))
        for start, end in zip(starts, ends, strict=True)
    ]


def queue_units(waiting: Iterable[Unit], new: Sequence[Unit]) -> deque[Unit]:
    """Queue a snapshot's units: small snapshots first, so that none waits for a large one."""
    left: dict[str, list[Unit]] = {}
    for unit in (*waiting, *new):
        left.setdefault(unit.snapshot_id, []).append(unit)
    ordered = sorted(left.values(), key=len)
    return deque(unit for units in ordered for unit in units)


def take_round(waiting: deque[Unit], lanes: int) -> list[list[Unit]]:
    """Take the units of the next round from the queue: one list for each task."""
    taken: list[list[Unit]] = []
    while waiting and len(taken) < lanes:
        lane = [waiting.popleft()]
        cost = lane[0].cost
        while waiting and cost + waiting[0].cost <= 1:
            lane.append(waiting.popleft())
            cost += lane[-1].cost
        taken.append(lane)
    return taken


def count_lanes(cores: int, idle_seconds: float) -> int:
    """How many tasks of a round may run at once: half of the cores while there are batches."""
    return cores if idle_seconds >= IDLE_SECONDS else max(1, cores // 2)


def needs_catch_up(changes: int, done: int) -> bool:
    """Whether a tail of so many changes is folded concurrently with batches."""
    return changes > SHORT_TAIL and done < CATCH_UPS_AT_MOST


def why_stale(begun: TableState, now: TableState) -> str:
    """Say why a load that began in one state is useless in another; empty if it is not."""
    if now == begun:
        return ""
    if now.kind == "loading":
        return now.reason
    return f"the table is {now.kind} now: {now.reason}" if now.reason else f"it is {now.kind} now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a load is."""

    rows: int
    total: int
    seconds: float

    @property
    def fields(self) -> Mapping[str, object]:
        rate = self.rows / self.seconds if self.seconds else 0.0
        left = f"{max(0, self.total - self.rows) / rate:.0f}" if rate else "unknown"
        return {
            "rows": self.rows,
            "total": self.total,
            "rate": f"{rate:.0f}/s",
            "seconds_left": left,
        }

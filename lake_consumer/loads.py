"""What to do next about a table that waits for a snapshot. Pure decisions.

A request is stored in the INIT stream, so it cannot be lost, and a snapshot that is there already
will do if it is the whole table and everything it lacks is in the table's change log. All that is
needed to go on after a crash is the table's state and what INIT holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake_consumer.tablestates import TableState

ASK_AGAIN_SECONDS = (0.0, 2.0, 5.0, 15.0, 60.0)
"""How long to wait after the first, second ... request that came to nothing."""

REFUSALS_AT_MOST = 3
"""Requests that end in an error, running, before the table is parked with the bridge's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """A complete snapshot, as `init.meta` tells of it."""

    sequence: int
    snapshot_id: str
    lsn: int
    timestamp: str
    cdc_sequence: int
    cdc_complete: int
    schema_revision: int
    batch_count: int
    row_count: int
    checksum: str
    chunks_checksum: str = ""
    """Empty for a snapshot of an older bridge: only a sequential pass can verify it then."""

    @classmethod
    def of(cls, sequence: int, fields: Mapping[str, Any]) -> Meta | None:
        """Read a notice; None for a part of a table, and for one of a bridge that is too old."""
        if not fields.get("whole"):
            return None
        optional = {"chunks_checksum": fields.get("chunks_checksum", "")}
        names = cls.__dataclass_fields__.keys() - {"sequence", *optional}
        return cls(sequence=sequence, **{name: fields[name] for name in names}, **optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """What INIT holds of one table: the newest request, complete snapshots, the newest error."""

    request: int | None = None
    is_settled: bool = False
    """Whether the bridge has done with that request what it could."""
    metas: Sequence[Meta] = ()
    error: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load this snapshot now."""

    meta: Meta


@dataclass(frozen=True, slots=True)
class Ask:
    """Store a request; `error` is what became of the last one, if anything is known."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class Park:
    """The bridge refuses, time and again."""

    error: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do; `sequence` is how far the stream must be read for the snapshot there is."""

    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What this process knows of its own requests for one table."""

    request: int = 0
    times: int = 0
    at: float = 0.0
    refusals: int = 0


def plan_load(
    notices: Notices,
    asked: Asked,
    *,
    state: TableState,
    position: int,
    spoiled: Collection[str],
    now: float,
) -> Load | Ask | Park | Wait:
    """Decide for a table in this state, in a lake that is at `position`."""
    usable = [
        meta
        for meta in notices.metas
        if meta.cdc_sequence >= state.since
        and meta.sequence > state.after
        and meta.snapshot_id not in spoiled
    ]
    if usable:
        # Any will do; the newest leaves the fewest changes to fold.
        meta = max(usable, key=lambda meta: meta.sequence)
        return Load(meta) if position >= meta.cdc_complete else Wait(meta.cdc_complete)
    if notices.request is not None and not notices.is_settled:
        return Wait()
    error = None
    if asked.times and notices.error and notices.error[0] > asked.request:
        error = notices.error[1]
        if asked.refusals + 1 >= REFUSALS_AT_MOST:
            return Park(error)
    patience = ASK_AGAIN_SECONDS[min(asked.times, len(ASK_AGAIN_SECONDS) - 1)]
    return Ask(error) if now - asked.at >= patience else Wait()

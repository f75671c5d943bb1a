"""Gaps: a slot that is made anew does not give the changes between the old one's end and its begin.

Consumers must hear of that, in order with the changes. So before such a slot is made the stream
gets a message under the prefix `bridge-gap`: whatever a consumer holds of this source's tables is
as old as the stream was there, and only a new snapshot brings it up to date. The message comes
first and the slot second: a death between them marks a gap that is none, never the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from bridge.sources import SourceId, may_take
from schemas.events import LogicalMessage, Place
from schemas.positions import Lsn
from schemas.subjects import GAP_PREFIX


def leaves_gap(owners: Iterable[str], ours: SourceId, live_slots: Collection[str]) -> bool:
    """Whether a new slot follows one that published before: this one, or another that is gone."""
    return any(may_take(owner, ours, live_slots) for owner in owners)


def gap_message(ours: SourceId, wal_end: Lsn, now: datetime | None = None) -> LogicalMessage:
    """Mark the gap: behind everything committed so far, before all that a new slot can give."""
    # A commit that follows may begin exactly at the WAL's end; it must not count as stored.
    behind = wal_end - 1
    moment = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return LogicalMessage(
        prefix=GAP_PREFIX,
        content=json.dumps({"slot": ours.slot, "missing_until": int(wal_end)}),
        transactional=False,
        place=Place(lsn=behind, commit_lsn=behind, commit_ts=moment, xid=0, seq=0, last=True),
        source=str(ours),
    )

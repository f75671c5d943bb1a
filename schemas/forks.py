"""`bridge-fork`: the source's history was replaced, as the content of a logical message.

After a failover, a restore or a rewind PostgreSQL may go on from an earlier point than the stream
has reached. Every message of the same source that is stored before the fork and has
`commit_lsn >= switch_lsn` never happened on the surviving timeline. After the fork positions start
again above its own place, `fork_place`, which is the one place where positions may fall. Consumers
need new snapshots of the source's tables, as after `bridge-gap`. `switch_lsn` 0 says that nothing
before the fork is proven.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from schemas.contents import content_text
from schemas.positions import Position
from schemas.values import Value

FORK_VERSION = 1

MOST_BYTES = 1 << 20
"""A content with more is no fork."""

_NEEDED = ("system", "timeline", "switch_lsn", "slot")
_LSN_LIMIT = 1 << 64
_TIMELINE_LIMIT = 1 << 32


@dataclass(frozen=True, slots=True)
class Fork:
    """Which history survived, and from where on the stream held another one."""

    system: str
    timeline: int
    switch_lsn: int
    slot: str
    reason: str = ""

    @property
    def place(self) -> Position:
        """The position of the message itself: before everything that the new history can send."""
        return Position(max(self.switch_lsn - 1, 0), 0)


def format_fork(fork: Fork) -> str:
    """Write the content of a `bridge-fork` message."""
    content = {
        "version": FORK_VERSION,
        "slot": fork.slot,
        "system": fork.system,
        "timeline": fork.timeline,
        "switch_lsn": int(fork.switch_lsn),
        "reason": fork.reason,
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def parse_fork(content: Value) -> Fork | None:
    """Read a content as a message carries it; None if it is no fork of this version."""
    try:
        fields = json.loads(content_text(content, MOST_BYTES))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("version") != FORK_VERSION:
        return None
    found: dict[str, Any] = {name: fields.get(name) for name in _NEEDED}
    fork = Fork(**found, reason=fields.get("reason", ""))
    is_text = all(isinstance(text, str) for text in (fork.system, fork.slot, fork.reason))
    is_lsn = _is_below(fork.switch_lsn, _LSN_LIMIT) and _is_below(fork.timeline, _TIMELINE_LIMIT)
    return fork if is_text and is_lsn else None


def _is_below(value: Any, limit: int) -> bool:
    return type(value) is int and 0 <= value < limit

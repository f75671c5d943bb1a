"""KV `sources`: the PostgreSQL history that each slot's part of the stream was written from.

The stream forgets by age, and a session may last longer than that. So the timeline is kept in a
bucket of its own, one key per slot, and written before the first change of a session.

Beside it stands what the stream was seen to hold, so that a new process can tell whether the stream
has lost its end since.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext

from bridge.history import History
from bridge.tails import Acknowledged
from schemas.streams import SOURCES_BUCKET
from schemas.subjects import source_token

_STREAM = f"KV_{SOURCES_BUCKET.name}"


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """What is known of one slot's part of the stream."""

    history: History
    acknowledged: Acknowledged


class SourceStore:
    """The entry of one slot, written by the session that has the slot or is about to create it."""

    def __init__(self, js: JetStreamContext, source: str) -> None:
        self._js = js
        self._source = source
        self._subject = f"$KV.{SOURCES_BUCKET.name}.{source_token(source)}"
        self._entry: SourceEntry | None = None

    @property
    def acknowledged(self) -> Acknowledged:
        """What the stream was seen to hold, as `read` found it or `remember` left it."""
        return self._entry.acknowledged if self._entry else Acknowledged()

    async def read(self) -> History | None:
        """Give the history that was recorded last; None if none was, or none we can read."""
        try:
            found = await self._js.get_last_msg(_STREAM, self._subject)
        except nats.js.errors.NotFoundError:
            return None
        self._entry = _read(found.data, self._source)
        return self._entry.history if self._entry else None

    async def record(self, history: History) -> datetime:
        """Note the history of what is published from now on, and give the server's time."""
        stored = await self._js.get_msg(_STREAM, await self._write(history, self.acknowledged))
        return stored.time or datetime.now(UTC)

    async def remember(self, acknowledged: Acknowledged) -> None:
        """Note what the stream was seen to hold, of the history that is recorded."""
        if self._entry is not None and self._entry.acknowledged != acknowledged:
            await self._write(self._entry.history, acknowledged)

    async def _write(self, history: History, acknowledged: Acknowledged) -> int:
        entry = {
            "source": self._source,
            "timeline": history.timeline,
            "switches": [list(switch) for switch in history.switches],
            **asdict(acknowledged),
        }
        answer = await self._js.publish(self._subject, json.dumps(entry).encode(), stream=_STREAM)
        self._entry = SourceEntry(history, acknowledged)
        return answer.seq


def _read(data: bytes | None, source: str) -> SourceEntry | None:
    try:
        found: dict[str, Any] = json.loads(data or b"")
        if found["source"] != source:
            return None
        switches = tuple((int(timeline), int(end)) for timeline, end in found["switches"])
        # Earlier bridges noted no more than the history.
        seen = {field.name: int(found.get(field.name, 0)) for field in fields(Acknowledged)}
        return SourceEntry(History(int(found["timeline"]), switches), Acknowledged(**seen))
    except (KeyError, TypeError, ValueError):
        return None

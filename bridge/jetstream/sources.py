"""KV `sources`: the PostgreSQL history that each slot's part of the stream was written from.

The stream forgets by age, and a session may last longer than that. So the timeline is kept in a
bucket of its own, one key per slot, and written before the first change of a session.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext

from bridge.history import History
from schemas.streams import SOURCES_BUCKET
from schemas.subjects import source_token

_STREAM = f"KV_{SOURCES_BUCKET.name}"


class SourceStore:
    """The entry of one slot."""

    def __init__(self, js: JetStreamContext, source: str) -> None:
        self._js = js
        self._source = source
        self._subject = f"$KV.{SOURCES_BUCKET.name}.{source_token(source)}"

    async def read(self) -> History | None:
        """Give the history that was recorded last; None if none was, or none we can read."""
        try:
            found = await self._js.get_last_msg(_STREAM, self._subject)
        except nats.js.errors.NotFoundError:
            return None
        return _read(found.data, self._source)

    async def record(self, history: History) -> datetime:
        """Note the history of what is published from now on, and give the server's time."""
        fields = {
            "source": self._source,
            "timeline": history.timeline,
            "switches": [list(switch) for switch in history.switches],
        }
        answer = await self._js.publish(self._subject, json.dumps(fields).encode(), stream=_STREAM)
        stored = await self._js.get_msg(_STREAM, answer.seq)
        return stored.time or datetime.now(UTC)


def _read(data: bytes | None, source: str) -> History | None:
    try:
        fields: dict[str, Any] = json.loads(data or b"")
        if fields["source"] != source:
            return None
        switches = tuple((int(timeline), int(end)) for timeline, end in fields["switches"])
        return History(int(fields["timeline"]), switches)
    except (KeyError, TypeError, ValueError):
        return None

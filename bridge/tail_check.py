"""Acts on a lost tail: sends it again, loudly, or marks the gap that it leaves.

`tails` judges; this reads the stream's end, remembers over sessions and processes what was
acknowledged, and says what was found.
"""

from __future__ import annotations

import asyncio
import logging
import time

from nats.js import JetStreamContext

from bridge.config import NatsConfig
from bridge.errors import BridgeError, SinkLost
from bridge.gaps import gap_message
from bridge.jetstream import control
from bridge.jetstream.lane import Lane
from bridge.jetstream.registry import Registry
from bridge.jetstream.sources import SourceStore
from bridge.jetstream.tail import read_tail
from bridge.progress import Progress
from bridge.sources import SourceId
from bridge.status import Status
from bridge.tails import Acknowledged, LostTail, Tail, judge_tail
from schemas.positions import Lsn, Position

KEEP_EVERY_SECONDS = 1.0

_log = logging.getLogger("bridge")


class TailCheck:
    """What the sessions of one process saw acknowledged, held against what the stream holds."""

    def __init__(self, config: NatsConfig, status: Status) -> None:
        self._config = config
        self._status = status
        self._acknowledged = Acknowledged()

    async def check(
        self,
        js: JetStreamContext,
        registry: Registry,
        sources: SourceStore,
        *,
        ours: SourceId,
        start_lsn: Lsn,
        stored: Position,
    ) -> None:
        """Compare what was acknowledged with what is stored, and send it again or mark the gap."""
        seen = _valid(self._acknowledged, registry).joined(_valid(sources.acknowledged, registry))
        with control.translated(self._config):
            tail = await read_tail(js, registry, stored)
            lost = judge_tail(seen, tail, start_lsn)
            self._acknowledged = Acknowledged(tail.last_sequence, stored.commit_lsn)
            if lost is not None:
                self._report(lost, seen, tail, start_lsn, stored)
            if lost is not None and lost.is_gap:
                await registry.publish(gap_message(ours, start_lsn), behind=tail.last_sequence)
                self._status.gaps_marked += 1
            else:
                self._acknowledged = self._acknowledged.grown(confirmed=seen.confirmed)
            if lost is not None:
                # After the mark: a death between them finds the loss again, and the mark behind it.
                await sources.remember(self._acknowledged)
        if lost is None or not lost.is_gap:
            return
        raise SinkLost("changes that JetStream had acknowledged are lost, and the gap is marked",
                       advice="The next session goes on after the mark.")  # fmt: skip

    def _report(
        self, lost: LostTail, seen: Acknowledged, tail: Tail, start_lsn: Lsn, stored: Position
    ) -> None:
        self._status.lost_tails += 1
        self._status.lost_messages += lost.messages
        _log.error(
            "JetStream lost changes that it had acknowledged: the stream ends with sequence %d"
            " (%s), and %d were acknowledged up to %s or later; %s",
            tail.last_sequence,
            Lsn(stored.commit_lsn),
            seen.sequence,
            Lsn(seen.acked),
            f"those before {start_lsn} cannot be sent again: the gap is marked in the stream,"
            " and consumers need new snapshots" if lost.is_gap else "they are sent again",
        )  # fmt: skip

    def remember(self, lane: Lane, progress: Progress, stored: Position) -> None:
        """Note what a session saw stored, for the next one to compare."""
        is_past = self._status.confirmed_lsn > stored.commit_lsn
        self._acknowledged = self._acknowledged.grown(
            sequence=lane.last_sequence,
            acked=max(progress.acked_proof, stored.commit_lsn),
            confirmed=max(progress.safe_proof, stored.commit_lsn if is_past else 0),
        )

    async def keep(
        self, sources: SourceStore, lane: Lane, progress: Progress, stored: Position
    ) -> None:
        """Note every second, for the next process, what this session sees stored."""
        while True:
            await self.keep_now(sources, lane, progress, stored)
            await asyncio.sleep(KEEP_EVERY_SECONDS)

    async def keep_now(
        self, sources: SourceStore, lane: Lane, progress: Progress, stored: Position
    ) -> None:
        self.remember(lane, progress, stored)
        # Noted before PostgreSQL is told: what is told meanwhile and lost must count as told.
        soon = progress.proof_at(time.monotonic() + 2 * KEEP_EVERY_SECONDS)
        try:
            with control.translated(self._config):
                await sources.remember(self._acknowledged.grown(confirmed=soon))
        except BridgeError as error:
            # The session ends by itself if NATS is gone; otherwise the next note has it all.
            _log.debug("cannot note what was acknowledged: %s", error)


def _valid(acknowledged: Acknowledged, registry: Registry) -> Acknowledged:
    """Leave out what was acknowledged before a fork: it belongs to another history."""
    fork = registry.last_fork
    is_dead = fork is not None and fork.comes_after(acknowledged.sequence)
    return Acknowledged() if is_dead else acknowledged

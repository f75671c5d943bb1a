"""Acts on a lost tail: sends it again, loudly, or marks the gap that it leaves.

`tails` judges; this reads the stream's end, remembers over sessions and processes what was
acknowledged, and says what was found.
"""

from __future__ import annotations

import asyncio
import logging
import time

from bridge.config import NatsConfig
from bridge.errors import BridgeError, SinkLost
from bridge.gaps import gap_message
from bridge.history import StoredEnd
from bridge.jetstream import control
from bridge.jetstream.fence import Opening
from bridge.jetstream.lane import Lane
from bridge.jetstream.registry import Registry
from bridge.jetstream.sources import SourceStore
from bridge.progress import Progress
from bridge.sources import SourceId
from bridge.status import Status
from bridge.tails import Acknowledged, Tail, judge_tail
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
        registry: Registry,
        sources: SourceStore,
        *,
        ours: SourceId,
        start_lsn: Lsn,
        stored: StoredEnd,
        opening: Opening,
    ) -> None:
        """Compare what was acknowledged with what is stored, and send it again or mark the gap.

        The mark is stored on the session's condition.
        """
        seen = _valid(self._acknowledged, registry).joined(_valid(sources.acknowledged, registry))
        with control.translated(self._config):
            last, _ = await registry.chain_end()
            tail = Tail(last, stored.position, stored.is_whole)
            lost = judge_tail(seen, tail, start_lsn)
            mark = gap_message(ours, start_lsn)
            # Nothing else stands there: the answer to an earlier mark was lost, not the mark.
            is_marked = lost is not None and stored.position == mark.place.position
            is_gap = lost is not None and lost.is_gap and not is_marked
            if lost is not None:
                self._tell(seen, tail, start_lsn if is_gap or is_marked else None)
            if is_gap:
                # Until it is stored, what was seen is all that tells of the gap.
                await registry.publish(mark, opening.condition)
            self._acknowledged = Acknowledged(last, stored.position.commit_lsn)
            if not is_gap and not is_marked:
                self._acknowledged = self._acknowledged.grown(confirmed=seen.confirmed)
            if lost is not None:
                self._status.lost_tails += 1
                self._status.lost_messages += lost.messages
                self._status.gaps_marked += is_gap or is_marked
                # After the mark: a death between them finds the loss again, and the mark behind it.
                await sources.remember(self._acknowledged)
        if is_gap:
            raise SinkLost("JetStream lost acknowledged changes, and the gap is marked",
                           advice="The next session goes on after the mark.")  # fmt: skip

    def _tell(self, seen: Acknowledged, tail: Tail, missing_until: Lsn | None) -> None:
        _log.error(
            "JetStream lost changes that it had acknowledged: the stream ends with sequence %d"
            " (%s), and %d were acknowledged up to %s or later; %s",
            tail.last_sequence,
            Lsn(tail.stored.commit_lsn),
            seen.sequence,
            Lsn(seen.acked),
            "they are sent again" if missing_until is None else
            f"those before {missing_until} cannot be sent again: consumers need new snapshots at"
            " the bridge-gap mark",
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

"""The fence of a stream that others write to: it keeps a session out that lost its slot.

Alone in a stream, messages name what they follow, and whatever another client stored makes the
server reject all that an old session still has on its way (`chain`, `batch`). Beside other writers
they cannot. So a session there first stores a message on a subject of its slot's own, and begins
every batch on the condition that this is still the last one there. A batch that was already open
knows no condition: the server forgets it after 10 seconds in which nothing of it came. Therefore a
session that follows one in a shared stream waits 12 seconds after its own message was stored,
before it looks up how far the stream is. It waits by its own clock, and again from the beginning
whenever an old batch may have got more time: something of the slot was stored, the stream has
another leader (which restarts the server's timer), or the server stood still itself.

The message says whether the next session has to wait (`shared`). It says so until a wait is over,
so a session that ends while it waits leaves that to the next. Each message is stored only if the
one that was seen before is still the last, and the slot was ours after that was seen: of two
sessions, the one that has the slot wins.

A stream deletes by age, so a session that lasts repeats its message (`keep`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext

from bridge.errors import SinkLost
from bridge.jetstream.frames import EXPECTED_SEQUENCE
from bridge.jetstream.lane import Lane
from bridge.jetstream.registry import Registry
from schemas.codecs import CONTENT_TYPE
from schemas.events import LogicalMessage, Place
from schemas.names import TableName
from schemas.streams import CDC_STREAM
from schemas.subjects import session_prefix, session_subject

EXPECTED_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"

MARGIN_SECONDS = 2.0
BATCH_SECONDS = 10.0 + MARGIN_SECONDS
"""Longer than nats-server keeps a batch that nothing is added to."""

LOOK_EVERY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 120.0
RENEW_EVERY_SECONDS = 3_600.0
RENEWALS_PER_AGE = 3

_IN_PROCESS = 10164
_TRIES = 10

_log = logging.getLogger("bridge.jetstream")


@dataclass(slots=True)
class Vigil:
    """Decides when the server has forgotten every batch that was open at `since`."""

    since: float
    leader: str

    def seconds_left(self, *, asked: float, now: float, leader: str, is_disturbed: bool) -> float:
        """Take a look at the stream that began at `asked` and is over now."""
        if is_disturbed or leader != self.leader:
            self.since, self.leader = now, leader
        return max(0.0, self.since + BATCH_SECONDS - asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a fence needs of its session."""

    tables: Iterable[TableName]
    first_place: Place
    """The place of the message while the stream holds nothing else of this slot."""

    demand_slot: Callable[[], Awaitable[None]]
    """Raises if the slot is not ours any more."""

    meanwhile: Callable[[], None]
    """Called now and then, so that PostgreSQL keeps the connection."""

    stop: asyncio.Event


class Fence:
    """The message that opens one session."""

    def __init__(self, js: JetStreamContext, registry: Registry, means: Means) -> None:
        self._js = js
        self._registry = registry
        self._means = means
        self._subject = session_subject(registry.source)
        self._tables: set[TableName] = set()
        self._sequence = 0
        """Of the last message on our subject that was ours, or was there before."""

    @property
    def condition(self) -> dict[str, str]:
        """Headers that a message of this session carries to be stored only while it lasts."""
        return {
            EXPECTED_SUBJECT_SEQUENCE: str(self._sequence),
            f"{EXPECTED_SUBJECT_SEQUENCE}-Subject": self._subject,
        }

    @property
    def header_lines(self) -> str:
        """The same, as batches of this session begin with them."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.condition.items())

    async def take_over(self, *, shared: bool) -> bool:
        """Leave every older session behind; False if the bridge is to stop before that is done."""
        self._sequence, before = await self._registry.session_message()
        was_shared = self._sequence > 0 and _is_shared(before)
        if not shared and not was_shared:
            return True
        # Whoever has the slot after this finds our message, or makes the server reject it.
        await self._means.demand_slot()
        self._tables = await self._registry.slot_tables(self._means.tables, self._means.meanwhile)
        await self._store(shared=True)
        if was_shared and not await self._outlast():
            return False
        if not shared:
            await self._store(shared=False)
        return True

    async def open(self, *, shared: bool) -> Opening | None:
        """Take over, and give what the session's messages are tied to; None if it is to stop."""
        if not await self.take_over(shared=shared):
            return None
        end, is_clustered = await self._registry.chain_end()
        # After that: a session that shares the stream and opened before its end was read would
        # not break our chain, and one that opens now does.
        await self.demand_last()
        return Opening(self if shared else None, end, is_clustered)

    async def demand_last(self) -> None:
        """Make sure that no other session has opened since this one looked."""
        found, _ = await self._registry.session_message()
        if found != self._sequence:
            raise SinkLost(
                f"another session of this slot opened meanwhile, at sequence {found} of stream"
                f" {CDC_STREAM.name}",
                advice="The session that has the slot goes on; this one connects again.",
            )

    async def keep(self, lane: Lane) -> None:
        """Repeat the message before the stream deletes it by age; never returns."""
        while True:
            age = (await self._registry.max_age()).total_seconds()
            await asyncio.sleep(min(age / RENEWALS_PER_AGE or RENEW_EVERY_SECONDS,
                                    RENEW_EVERY_SECONDS))  # fmt: skip
            if age:
                await lane.renew_fence(self._renew)

    async def _renew(self) -> str:
        for _ in range(_TRIES):
            try:
                await self._store(shared=True)
                break
            except nats.js.errors.APIError as error:
                # In a cluster the first message of a batch may be on its way on our condition.
                if error.err_code != _IN_PROCESS:
                    raise
                await asyncio.sleep(MARGIN_SECONDS / _TRIES)
        return self.header_lines

    async def _store(self, *, shared: bool) -> None:
        """Store the message behind the one we know of, or raise that there is another."""
        place = await self._registry.last_place(self._tables, self._means.meanwhile)
        message = LogicalMessage(
            prefix=session_prefix(self._registry.source),
            content=json.dumps({"slot": self._registry.slot, "shared": shared}),
            transactional=False,
            place=place or self._means.first_place,
            source=self._registry.source,
        )
        # Without an id: it must be stored even if another session stood at the same place just now.
        answer = await self._js.publish(
            message.subject,
            self._registry.encode(message),
            stream=CDC_STREAM.name,
            headers={
                CONTENT_TYPE: self._registry.content_type,
                EXPECTED_SUBJECT_SEQUENCE: str(self._sequence),
            },
        )
        self._sequence = answer.seq

    async def _outlast(self) -> bool:
        """Wait until the server has forgotten the batches of older sessions; False if to stop."""
        _log.info("waiting at least %.0f s: the session before shared stream %s with other writers,"
                  " and the server may still accept messages of a batch it left open",
                  BATCH_SECONDS, CDC_STREAM.name)  # fmt: skip
        registry, means = self._registry, self._means
        end, leader = await registry.end_and_leader()
        began = monotonic()
        vigil = Vigil(began, leader)
        while True:
            asked, seen = monotonic(), end
            end, leader = await registry.end_and_leader()
            # A server that stood still may have stopped its timers too.
            stalled = monotonic() - asked > MARGIN_SECONDS
            found = None
            if end > seen:
                found = await registry.stored_behind(seen, self._tables, means.meanwhile)
            now = monotonic()
            left = vigil.seconds_left(
                asked=asked, now=now, leader=leader, is_disturbed=stalled or found is not None
            )
            if not left:
                _log.info("waited %.1f s for batches of older sessions", now - began)
                return True
            if now - began > LONGEST_WAIT_SECONDS:
                raise _never_quiet(now - began, found.subject if found else None)
            means.meanwhile()
            if await is_set_within(means.stop, min(left, LOOK_EVERY_SECONDS)):
                return False


@dataclass(frozen=True, slots=True)
class Opening:
    """What the messages of a session are tied to: the stream's end, or the session's fence.

    The end if nobody else writes to the stream, as far as is known.
    """

    fence: Fence | None
    end: int
    is_clustered: bool

    @property
    def condition(self) -> dict[str, str]:
        """Headers of a single message that is stored only if the session is still the last."""
        return self.fence.condition if self.fence else {EXPECTED_SEQUENCE: str(self.end)}

    def tie(self, lane: Lane) -> None:
        """Let the lane send everything on the same condition."""
        if self.fence:
            lane.fence(self.fence.header_lines)
        elif self.is_clustered:
            lane.follow(behind=self.end)
        else:
            lane.chain(CDC_STREAM.name, behind=self.end)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _is_shared(fields: dict[str, Any] | None) -> bool:
    """Read whether a session has to be waited for; one that cannot be read has to."""
    try:
        return bool(json.loads(str((fields or {})["content"]))["shared"])
    except (KeyError, TypeError, ValueError):
        return True


def _never_quiet(seconds: float, subject: str | None) -> SinkLost:
    what = f"{subject} was written to just now" if subject else "its leader keeps changing"
    return SinkLost(
        f"cannot take over stream {CDC_STREAM.name} after {seconds:.0f} s: {what}, so a batch of an"
        " older session may still be open",
        advice="Stop the other client that publishes to this bridge's subjects, or look after the"
        " NATS cluster. The bridge waits again.",
    )

"""One history: a session's proof that PostgreSQL goes on where the stream ends.

Carries out what `history` decides. Before a slot is created and again when it is ours, the stream's
end and the recorded timeline are compared with the server. A fork stops the bridge, or is marked in
the stream if the operator wants that (`--on-fork mark`); the session after the mark counts nothing
that the mark declared invalid. A fork that is found before the slot is created is marked before it:
the start of a slot passes for proof of what the stream holds up to there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from bridge.config import BridgeConfig
from bridge.errors import ForkMarked, HistoryForked
from bridge.history import History, StoredEnd, find_fork, fork_message
from bridge.jetstream import control
from bridge.jetstream.fence import Opening
from bridge.jetstream.registry import Registry
from bridge.jetstream.sources import SourceStore
from bridge.postgres import catalog, connection
from bridge.postgres.timeline import server_history
from bridge.postgres.walstream import WalStream
from bridge.sources import SourceId
from bridge.status import Status
from schemas.names import TableName
from schemas.positions import Lsn

ID_MARGIN = timedelta(seconds=2)
"""The server forgets ids by a timer of its own, a moment after the duplicate window."""

SIGN_OF_LIFE_SECONDS = 5.0

_log = logging.getLogger("bridge")


class Continuity:
    """The proof of one session."""

    def __init__(
        self,
        config: BridgeConfig,
        registry: Registry,
        sources: SourceStore,
        ours: SourceId,
        status: Status,
    ) -> None:
        self._config = config
        self._registry = registry
        self._sources = sources
        self._ours = ours
        self._status = status

    async def check_before_slot(self, source: catalog.Connection) -> None:
        """Refuse to create a slot on a server whose history does not contain the stream.

        The history is recorded: the gap mark that may follow is already part of it.
        """
        await self._check(source, await server_history(self._config.postgres))

    async def mark_before_slot(self, source: catalog.Connection, opening: Opening) -> None:
        """Mark the fork that keeps the slot from being created, unless it is marked by now."""
        server = await server_history(self._config.postgres)
        async with self.marking_forks(server, None, opening):
            await self._check(source, server)

    async def _check(self, source: catalog.Connection, server: History) -> None:
        stored, recorded = await self._known((), lambda: None)
        if fork := await self._find(source, stored, recorded, server):
            raise fork
        if recorded != server:
            with control.translated(self._config.nats):
                await self._sources.record(server)

    async def stored_end(
        self,
        source: catalog.Connection,
        wal: WalStream,
        tables: Iterable[TableName],
        meanwhile: Callable[[], None],
    ) -> StoredEnd:
        """Give the end of what the stream holds, of a history that this server may have written.

        The slot must be ours. The history is recorded before anything of it is published.
        """
        stored, recorded = await self._known(tables, meanwhile)
        fork = await self._find(source, stored, recorded, wal.history)
        if fork is not None:
            raise fork
        with control.translated(self._config.nats):
            now = await self._sources.record(wal.history)
            await self._outlast_ids(now, wal)
        return stored

    async def _known(
        self, tables: Iterable[TableName], meanwhile: Callable[[], None]
    ) -> tuple[StoredEnd, History | None]:
        with control.translated(self._config.nats):
            stored = await self._registry.stored_end(tables, meanwhile)
            return stored, await self._sources.read()

    async def _find(
        self,
        source: catalog.Connection,
        stored: StoredEnd,
        recorded: History | None,
        server: History,
    ) -> HistoryForked | None:
        # Asked last: the stream cannot hold more than the WAL has by now.
        with connection.translated(self._config.postgres):
            wal_end = await catalog.wal_end(source)
        return find_fork(stored, recorded, server, wal_end)

    @asynccontextmanager
    async def marking_forks(
        self, server: History, start_lsn: Lsn | None, opening: Opening
    ) -> AsyncIterator[None]:
        """Mark a fork in the stream and end the session, if that is what the operator wants.

        The mark is stored on the session's condition or not at all: a session that lost its slot
        meanwhile must not declare its successor's changes invalid. `start_lsn` is where the slot
        begins; None if there is none yet.
        """
        try:
            yield
        except HistoryForked as fork:
            if self._config.on_fork == "stop":
                raise
            message = fork_message(self._ours, server, fork, start_lsn)
            _log.error("%s. Marking the fork in the stream: changes from %s on are invalid before"
                       " the mark, and consumers need new snapshots",
                       fork, Lsn(message.place.commit_lsn + 1))  # fmt: skip
            with control.translated(self._config.nats):
                await self._registry.publish(message, opening.condition)
            self._status.forks += 1
            raise ForkMarked(str(fork)) from fork

    async def _outlast_ids(self, now: datetime, wal: WalStream) -> None:
        """Wait until the stream has forgotten the ids of what a fork declared invalid.

        LSNs are used again after a fork, and with them ids: a new change would pass for a resend.
        """
        last = self._registry.last_fork
        if last is None or last.stored_at is None:
            return
        window = await self._registry.duplicate_window()
        left = (last.stored_at + window + ID_MARGIN - now).total_seconds()
        if left > 0:
            _log.info(
                "waiting %.0f s after a fork, until JetStream has forgotten message ids", left
            )
        deadline = time.monotonic() + left
        while (left := deadline - time.monotonic()) > 0:
            # Position 0 confirms nothing, and keeps PostgreSQL from giving us up.
            wal.confirm(0)
            await asyncio.sleep(min(left, SIGN_OF_LIFE_SECONDS))

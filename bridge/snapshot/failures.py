"""Failed snapshots, told: no consumer may wait for ever for one that will not come.

Whoever listens hears of it at once, and it is stored for those who come later. A stream that is
full first loses the chunks of the failed snapshot; where that does not make room for the notice, it
is kept here, shown in `/status`, and stored when there is room again. What a bridge that died could
not say is said at the next start, because the stream shows a start without an end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from bridge.errors import BridgeError
from bridge.jetstream.snapshots import InitStream
from bridge.status import SnapshotTotals
from schemas.names import TableName

NOTICE_SECONDS = 3.0
AGAIN_SECONDS = 2.0
UNTOLD_AT_MOST = 100

_log = logging.getLogger("bridge.snapshot")


class Failures:
    """Tells of failed snapshots until it is stored."""

    def __init__(self, init: InitStream, totals: SnapshotTotals) -> None:
        self._init = init
        self._totals = totals
        self._untold: dict[str, tuple[TableName, Mapping[str, Any]]] = {}

    async def tell(self, table: TableName, fields: Mapping[str, Any]) -> None:
        """Say that a snapshot is not to be used."""
        self._totals.last_error = {"table": str(table), **fields}
        if (refusal := await self._store(table, fields)) is None:
            return
        _log.warning("the failure of snapshot %s is not stored yet: %s",
                     fields["snapshot_id"], refusal)  # fmt: skip
        self._untold[fields["snapshot_id"]] = (table, fields)
        while len(self._untold) > UNTOLD_AT_MOST:
            del self._untold[next(iter(self._untold))]
        self._totals.untold = len(self._untold)

    async def tell_again(self) -> None:
        """Store, now and then, what could not be stored before."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            for snapshot_id, (table, fields) in list(self._untold.items()):
                if await self._store(table, fields):
                    break
                del self._untold[snapshot_id]
            self._totals.untold = len(self._untold)

    async def _store(self, table: TableName, fields: Mapping[str, Any]) -> str | None:
        """Give why it is not stored; None where it is."""
        try:
            async with asyncio.timeout(NOTICE_SECONDS):
                await self._init.failed(table, fields)
        except TimeoutError:
            return "the server does not answer"
        except BridgeError as error:
            return f"{error}; {error.advice}"
        return None

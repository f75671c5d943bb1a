"""Snapshots as the driver sees them: requests into the INIT stream, notices out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NoStreamResponseError, NotFoundError

from lake_consumer.loads import Meta, Notices
from schemas.codecs import CONTENT_TYPE, JSON, codec_for
from schemas.names import TableName
from schemas.streams import INIT_STREAM
from schemas.subjects import (
    snapshot_error_subject,
    snapshot_meta_subject,
    stored_snapshot_request_subject,
)

REQUESTS_CONSUMER = "snapshots"
"""The bridge's durable consumer of stored requests: what it has acknowledged is settled."""

OUTDATED = "its bridge does not say up to where a snapshot needs the stream (update the bridge)"
SIDE_BY_SIDE = 16

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


class Snapshots:
    """The INIT stream; `run` waits for a coroutine on the loop that the connection lives on."""

    def __init__(
        self, js: JetStreamContext, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._js = js
        self._run = run
        self._metas: dict[TableName, list[Meta]] = {}
        self._read: dict[TableName, int] = {}
        self._outdated: dict[TableName, tuple[int, str]] = {}

    def ask(self, table: TableName) -> int | None:
        """Store a request for the whole table; gives its sequence, None where INIT is not there."""
        request: int | None = self._run(self._ask(table))
        return request

    def look(self, tables: Iterable[TableName]) -> dict[TableName, Notices]:
        """What INIT holds of these tables."""
        found: dict[TableName, Notices] = self._run(self._look(list(tables)))
        return found

    def end(self) -> int:
        """The last sequence of INIT: it grows while a bridge takes a snapshot."""
        end: int = self._run(self._end())
        return end

    async def _ask(self, table: TableName) -> int | None:
        try:
            stored = await self._js.publish(
                stored_snapshot_request_subject(table), headers={CONTENT_TYPE: JSON.content_type}
            )
        except NoStreamResponseError:
            return None
        return int(stored.seq)

    async def _end(self) -> int:
        try:
            return int((await self._js.stream_info(INIT_STREAM.name)).state.last_seq)
        except NotFoundError:
            return 0

    async def _look(self, tables: list[TableName]) -> dict[TableName, Notices]:
        # Before the metas: a request is settled only after its meta is stored.
        settled = await self._settled()
        room = asyncio.Semaphore(SIDE_BY_SIDE)

        async def look(table: TableName) -> Notices:
            async with room:
                return await self._notices(table, settled)

        return dict(zip(tables, await asyncio.gather(*map(look, tables)), strict=True))

    async def _settled(self) -> int:
        """Every request up to this sequence has been served or refused."""
        try:
            info = await self._js.consumer_info(INIT_STREAM.name, REQUESTS_CONSUMER)
        except NotFoundError:
            return 0
        return int(info.ack_floor.stream_seq) if info.ack_floor else 0

    async def _notices(self, table: TableName, settled: int) -> Notices:
        request = await self._last(stored_snapshot_request_subject(table))
        error = await self._last(snapshot_error_subject(table))
        sequence = int(request.seq or 0) if request else None
        metas = await self._read_metas(table)
        return Notices(
            request=sequence,
            is_settled=sequence is not None and sequence <= settled,
            metas=metas,
            error=max(filter(None, (_said(error), self._outdated.get(table))), default=None),
        )

    async def _read_metas(self, table: TableName) -> list[Meta]:
        """Every complete snapshot; what was read once is not read again."""
        metas = self._metas.setdefault(table, [])
        subject = snapshot_meta_subject(table)
        while (notice := await self._next(subject, self._read.get(table, 0) + 1)) is not None:
            self._read[table] = int(notice.seq or 0)
            fields = _fields(notice)
            meta = Meta.of(self._read[table], fields)
            metas += [meta] if meta else []
            if "whole" not in fields:
                self._outdated[table] = (self._read[table], OUTDATED)
        return metas

    async def _next(self, subject: str, sequence: int) -> RawStreamMsg | None:
        try:
            return await self._js.get_msg(
                INIT_STREAM.name, seq=sequence, subject=subject, next=True
            )
        except NotFoundError:
            return None

    async def _last(self, subject: str) -> RawStreamMsg | None:
        try:
            return await self._js.get_last_msg(INIT_STREAM.name, subject)
        except NotFoundError:
            return None


def _fields(message: RawStreamMsg) -> dict[str, Any]:
    return codec_for(message.headers).decode(message.data or b"")


def _said(message: RawStreamMsg | None) -> tuple[int, str] | None:
    if message is None:
        return None
    fields = _fields(message)
    return int(message.seq or 0), f"{fields['error']} ({fields['advice']})"

"""The other side of a snapshot request: asks for one and follows it to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from bridge.config import NatsConfig
from bridge.errors import SinkLost
from bridge.jetstream import control
from schemas.codecs import codec_for
from schemas.names import TableName
from schemas.subjects import (
    snapshot_error_subject,
    snapshot_meta_subject,
    snapshot_progress_subject,
    snapshot_request_subject,
)

REPLY_SECONDS = 3_600
"""A reply waits for transactions that are open, for as long as they are."""

SILENT_SECONDS = 60
"""A bridge that takes a snapshot says every second how far it is."""

Notice = dict[str, Any]


async def follow_snapshot(
    config: NatsConfig, table: TableName, request: Mapping[str, Any]
) -> AsyncGenerator[Notice, None]:
    """Ask, then give the reply, every progress, and last the meta or the error."""
    async with AsyncExitStack() as stack:
        client = await control.connect(config)
        stack.push_async_callback(client.close)
        notices: asyncio.Queue[Msg] = asyncio.Queue()
        ends = (snapshot_meta_subject(table), snapshot_error_subject(table))
        for subject in (*ends, snapshot_progress_subject(table)):
            await client.subscribe(subject, cb=notices.put)
        body = json.dumps(request).encode() if request else b""
        with control.translated(config):
            asked = asyncio.create_task(
                client.request(snapshot_request_subject(table), body, timeout=REPLY_SECONDS)
            )
            stack.callback(asked.cancel)
            try:
                reply: Notice = json.loads((await asked).data)
            except nats.errors.NoRespondersError as error:
                raise SinkLost(
                    f"no bridge listens for snapshot requests on {config.where}",
                    advice="Start the bridge; `bridge --help` says how.",
                ) from error
        yield reply
        if reply["status"] != "accepted":
            return
        while True:
            message = await _next(notices)
            is_end = message.subject in ends
            notice = codec_for(message.headers).decode(message.data) if is_end else _json(message)
            if notice.get("snapshot_id") == reply["snapshot_id"]:
                yield notice
                if is_end:
                    return


def _json(message: Msg) -> Notice:
    notice: Notice = json.loads(message.data)
    return notice


async def _next(notices: asyncio.Queue[Msg]) -> Msg:
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            return await notices.get()
    except TimeoutError:
        raise SinkLost(
            f"the bridge has said nothing of the snapshot for {SILENT_SECONDS} s",
            advice="See the bridge's log and its /status, then ask again.",
        ) from None

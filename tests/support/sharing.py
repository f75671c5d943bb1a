"""Sessions that share the CDC stream with other writers, as far as the stream sees them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from nats.js import JetStreamContext

from bridge.config import NatsConfig, StreamOverrides
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.fence import Fence, Means
from bridge.jetstream.lane import Lane
from bridge.jetstream.oversize import OversizeStore
from bridge.jetstream.provision import oversize_spec
from bridge.jetstream.registry import Registry
from bridge.outbox import Outgoing
from examples.embedded import EmbeddedNats
from schemas.codecs import CODECS
from schemas.events import Place
from schemas.names import TableName
from schemas.streams import CDC_STREAM

SOURCE = "1/2/shop"
TABLE = TableName("public", "t")
FIRST = Place(lsn=4, commit_lsn=4, commit_ts="2026-01-01T00:00:00Z", xid=0, seq=0, last=True)


class Session:
    """A bridge's session as far as the stream sees it."""

    def __init__(self, server: EmbeddedNats, js: JetStreamContext, **means: Any) -> None:
        self.config = NatsConfig(host="127.0.0.1", port=server.port)
        self.js = js
        oversize = OversizeStore(js._nc, js, oversize_spec(StreamOverrides()))
        dictionaries = DictionaryStore(js, self.config)
        self.registry = Registry(js, CODECS["json"], oversize, dictionaries, SOURCE)
        standard: dict[str, Any] = {
            "tables": [TABLE],
            "first_place": FIRST,
            "demand_slot": lambda: asyncio.sleep(0),
            "meanwhile": lambda: None,
            "stop": asyncio.Event(),
        }
        self.fence = Fence(js, self.registry, Means(**{**standard, **means}))
        self.lane: Lane | None = None

    async def open(self, *, shared: bool = True) -> Session:
        assert await self.fence.take_over(shared=shared)
        self.lane = await Lane.open(self.config, timedelta(seconds=30))
        self.lane.fence(self.fence.header_lines)
        return self

    async def send(self, first: int, last: int, *, close: bool = True) -> None:
        assert self.lane
        await self.lane.send(
            [change(n) for n in range(first, last + 1)],
            "application/json",
            close=close,
            on_stored=lambda _: None,
        )

    async def close(self) -> None:
        if self.lane:
            await self.lane.close()


def change(number: int) -> Outgoing:
    place = {"lsn": number, "commit_lsn": number, "commit_ts": FIRST.commit_ts}
    body = {**place, "xid": 1, "seq": 0, "last": True}
    return Outgoing("cdc.t.insert", f"{number:x}-t-insert", json.dumps(body).encode())


async def messages(js: JetStreamContext) -> list[tuple[str, int]]:
    info = await js.stream_info(CDC_STREAM.name)
    found = [await js.get_msg(CDC_STREAM.name, n + 1) for n in range(info.state.last_seq)]
    return [(str(m.subject), json.loads(m.data or b"{}").get("commit_lsn", 0)) for m in found]


async def stored(js: JetStreamContext) -> list[int]:
    """Give the changes that the stream holds."""
    return [number for subject, number in await messages(js) if subject == "cdc.t.insert"]


async def until_stored(js: JetStreamContext, count: int) -> None:
    while len(await stored(js)) < count:
        await asyncio.sleep(0.02)

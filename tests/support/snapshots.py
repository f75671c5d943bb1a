"""Asks for snapshots and reads them the way any consumer would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import nats

from schemas.codecs import CONTENT_TYPE
from schemas.snapshots import Checksum
from schemas.streams import INIT_STREAM
from tests.support.bridge import wait_for
from tests.support.stream import StoredMessage, administer, read_stream


def ask(url: str, token: str, body: bytes | Mapping[str, Any] = b"") -> dict[str, Any]:
    """Ask over core NATS and give the reply."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(_request(url, f"snapshot.request.{token}", payload))


def cancel(url: str, token: str) -> dict[str, Any]:
    return asyncio.run(_request(url, f"snapshot.cancel.{token}", b""))


def ask_for_all(url: str, *asked: tuple[str, bytes]) -> list[dict[str, Any]]:
    """Ask for several at the same time."""

    async def run() -> list[dict[str, Any]]:
        requests = (_request(url, f"snapshot.request.{token}", body) for token, body in asked)
        return list(await asyncio.gather(*requests))

    return asyncio.run(run())


def store_request(url: str, token: str, body: bytes = b"") -> None:
    """Leave a request in the INIT stream."""

    async def run() -> None:
        async with administer(url) as js:
            headers = {CONTENT_TYPE: "application/json"}
            await js.publish(f"init.request.{token}", body, headers=headers)

    asyncio.run(run())


async def _request(url: str, subject: str, body: bytes) -> dict[str, Any]:
    async with await nats.connect(url) as client:
        reply: dict[str, Any] = json.loads((await client.request(subject, body, timeout=60)).data)
        return reply


@dataclass
class Snapshot:
    """Everything the INIT stream holds of one snapshot."""

    chunks: list[StoredMessage] = field(default_factory=list)
    start: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for chunk in self.chunks for row in chunk.fields["data"]]

    def assert_whole(self) -> None:
        """Hold chunks and meta against each other, as a careful consumer does."""
        assert self.meta is not None
        assert self.error is None
        assert [chunk.fields["chunk"] for chunk in self.chunks] == list(range(len(self.chunks)))
        assert self.meta["batch_count"] == len(self.chunks)
        assert self.meta["row_count"] == len(self.rows)
        checksum = Checksum(chunk.body for chunk in self.chunks)
        assert self.meta["checksum"] == str(checksum)
        assert self.meta["chunks_checksum"] == checksum.of_chunks
        assert self.start is not None
        assert self.start["lsn"] == self.meta["lsn"]


def read_snapshots(url: str) -> dict[str, Snapshot]:
    """Give all snapshots by id, in the order they began to appear."""
    found: dict[str, Snapshot] = {}
    for message in read_stream(url, INIT_STREAM.name):
        kind = message.subject.split(".")[1]
        if kind == "request":
            continue
        snapshot = found.setdefault(message.fields["snapshot_id"], Snapshot())
        if kind == "snap":
            assert snapshot.start, "a chunk before its start"
            assert not snapshot.meta, "a chunk behind its meta"
            snapshot.chunks.append(message)
        else:
            setattr(snapshot, kind, message.fields)
    return found


def wait_snapshot(url: str, snapshot_id: str) -> Snapshot:
    """Wait until a snapshot has ended, one way or the other."""

    def ended() -> Snapshot | None:
        snapshot = read_snapshots(url).get(snapshot_id)
        return snapshot if snapshot and (snapshot.meta or snapshot.error) else None

    return wait_for(ended, f"snapshot {snapshot_id} to end")


def take(url: str, token: str, body: bytes | Mapping[str, Any] = b"") -> Snapshot:
    """Ask, wait and check."""
    reply = ask(url, token, body)
    assert reply["status"] == "accepted", reply
    snapshot = wait_snapshot(url, reply["snapshot_id"])
    snapshot.assert_whole()
    assert snapshot.meta is not None
    assert snapshot.meta["lsn"] == reply["lsn"]
    return snapshot

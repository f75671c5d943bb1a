"""A CDC stream made without PostgreSQL: contract-true messages, as fast as JetStream stores them.

Transactions of 100 changes on tables of customers: 60 % inserts of new keys, 30 % updates and 10 %
deletes of any row that is there. `Truth` knows what the tables must hold in the end.
"""

from __future__ import annotations

import asyncio
import random
import socket
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgpack
import nats

from benchmarks.scenario import Wrong
from bridge.jetstream.provision import stream_config
from bridge.jetstream.tally import FLOW, OUTSTANDING_ACKS
from examples.embedded import EmbeddedNats
from schemas.codecs import MSGPACK
from schemas.events import Place, ShapeChange, iso_timestamp
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.streams import CDC_STREAM
from schemas.types import parse_type

PER_TRANSACTION = 100
FIRST_LSN = 0x1000000
_NOW = 818_000_000_000_000
_KINDS = {
    "id": "int64", "name": "text", "email": "text", "balance": "decimal(12,2)", "active": "bool",
    "created_at": "timestamptz", "note": "text",
}  # fmt: skip

_HELLO = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"lang":"python","version":"1"}\r\nSUB _INBOX.made.> 1\r\nPING\r\n'
)


def shape_of(table: str) -> TableShape:
    return TableShape(
        name=TableName.parse(table),
        relation_id=16_400,
        replica_identity="default",
        columns=tuple(
            Column(
                name=name,
                position=position,
                data_type=kind,
                type_oid=0,
                type_modifier=-1,
                type=parse_type(kind),
                key=0 if name == "id" else None,
            )
            for position, (name, kind) in enumerate(_KINDS.items(), start=1)
        ),
    )


def row(key: int, version: int) -> dict[str, object]:
    return {
        "id": key,
        "name": f"Customer number {key}",
        "email": f"customer{key}@example.test",
        "balance": f"{version}.25",
        "active": key % 2 == 0,
        "created_at": f"2025-01-01T00:{key // 60 % 60:02}:{key % 60:02}Z",
        "note": f"ordered {key % 97} pieces and wants them delivered by noon",
    }


@dataclass
class Truth:
    """What one table must hold: which rows, and the version of every row that was changed."""

    table: str
    rows: int
    versions: dict[int, int] = field(default_factory=dict)
    keys: array[int] = field(init=False)
    changes: int = 0

    def __post_init__(self) -> None:
        # Numbers side by side: lists and dicts of 10,000,000 rows took gigabytes and minutes.
        self.keys = array("q", range(1, self.rows + 1))
        self._next = self.rows + 1

    def change(self, dice: random.Random) -> tuple[str, dict[str, object]]:
        """Make one change of the mix."""
        self.changes += 1
        draw = dice.random()
        if draw < 0.6 or not self.keys:
            key, self._next = self._next, self._next + 1
            self.keys.append(key)
            return "INSERT", row(key, 0)
        at = int(dice.random() * len(self.keys))
        key = self.keys[at]
        if draw < 0.9:
            version = self.versions[key] = self.versions.get(key, 0) + 1
            return "UPDATE", row(key, version)
        # The last key takes the place of the one that goes.
        self.keys[at] = self.keys[-1]
        self.keys.pop()
        self.versions.pop(key, None)
        return "DELETE", {**dict.fromkeys(_KINDS), "id": key}

    @property
    def sums(self) -> tuple[int, int, int]:
        """Rows, the sum of their keys and the sum of their versions."""
        return len(self.keys), sum(self.keys), sum(self.versions.values())


class StreamMaker:
    """Writes transactions into the CDC stream of a NATS server of its own."""

    def __init__(self, server: EmbeddedNats, truths: list[Truth], seed: int = 7) -> None:
        self._server = server
        self._truths = truths
        self._dice = random.Random(seed)
        self._lsn = FIRST_LSN
        self._announced = False
        asyncio.run(self._make_stream())

    async def _make_stream(self) -> None:
        async with await nats.connect(self._server.url) as client:
            await client.jetstream().add_stream(stream_config(CDC_STREAM))

    def write(self, changes: int) -> int:
        """Store so many changes, over all tables in turn; gives how many messages that made."""
        frames = self._frames(self._messages(changes))
        with socket.create_connection(("127.0.0.1", self._server.port)) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.sendall(_HELLO)
            answers = wire.makefile("rb")
            await_line(answers, b"PONG")
            sent = 0
            for number, block in enumerate(frames):
                wire.sendall(b"".join(block))
                sent += len(block)
                if number >= OUTSTANDING_ACKS:
                    await_line(answers, b'{"type":"ack"')
            await_line(answers, b'{"stream"')
        return sent

    def _frames(self, messages: Iterator[tuple[bytes, bytes, bytes]]) -> Iterator[list[bytes]]:
        batch = self._dice.randbytes(4).hex()
        block: list[bytes] = []
        number = 0
        held = next(messages)
        for following in messages:
            number += 1
            block.append(_frame(batch, held, number, 0 if number == 1 else 1))
            held = following
            if len(block) == FLOW:
                yield block
                block = []
        yield [*block, _frame(batch, held, number + 1, 2)]

    def _messages(self, changes: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Give subject, message id and body of one message after the other."""
        if not self._announced:
            self._announced = True
            yield from self._announcements()
        pack = msgpack.Packer().pack
        for number in range(changes // PER_TRANSACTION):
            truth = self._truths[number % len(self._truths)]
            table = truth.table
            commit_lsn = self._lsn + PER_TRANSACTION * 8
            place = {"commit_lsn": commit_lsn, "commit_ts": iso_timestamp(_NOW + self._lsn),
                     "xid": self._lsn // 800}  # fmt: skip
            for seq in range(PER_TRANSACTION):
                self._lsn += 8
                operation, data = truth.change(self._dice)
                verb = operation.lower()
                subject, msg_id = f"cdc.{table}.{verb}", f"{self._lsn:x}-{table}-{verb}"
                yield subject.encode(), msg_id.encode(), pack({
                    "subject": subject, "msg_id": msg_id, "schema": "public", "table": table,
                    "operation": operation, "relation_id": 16_400, "lsn": self._lsn, **place,
                    "seq": seq, "schema_revision": 1, "data": data,
                    "last": seq == PER_TRANSACTION - 1,
                })  # fmt: skip

    def _announcements(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        place = Place(
            lsn=FIRST_LSN, commit_lsn=FIRST_LSN + PER_TRANSACTION * 8,
            commit_ts=iso_timestamp(_NOW + FIRST_LSN), xid=FIRST_LSN // 800, seq=0, last=False,
        )  # fmt: skip
        for truth in self._truths:
            event = ShapeChange(
                shape=shape_of(truth.table), place=place, schema_revision=1, source="7/1"
            )
            body = MSGPACK.encode(event.to_map())
            yield event.subject.encode(), f"shape-{truth.table}".encode(), body


def _frame(batch: str, message: tuple[bytes, bytes, bytes], number: int, operation: int) -> bytes:
    subject, msg_id, body = message
    headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\nContent-Type: application/msgpack\r\n\r\n" % msg_id
    reply = f"_INBOX.made.{batch}.{FLOW}.fail.{number}.{operation}.$FI".encode()
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject, reply, len(headers), len(headers) + len(body), headers, body,
    )  # fmt: skip


def await_line(answers: Iterator[bytes], start: bytes) -> None:
    for line in answers:
        if line.startswith(start):
            return
        if b'"error"' in line or line.startswith(b"-ERR"):
            raise Wrong(f"NATS refused what was made: {line.decode()}")
    raise Wrong("NATS hung up")

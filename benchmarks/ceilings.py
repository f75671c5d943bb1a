"""Ceilings: what nobody can beat on this machine, with this data, at this moment.

A bridge cannot read faster than `pg_recvlogical`, which throws away what PostgreSQL sends, and
cannot store faster than a writer that has nothing to do but to send messages it made beforehand.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import nats

from benchmarks.measure import CpuMeter, settle
from benchmarks.scenario import Figures, Wrong
from benchmarks.stack import PUBLICATION, Stack
from bridge.jetstream.frames import EXPECTED_ID
from bridge.jetstream.provision import stream_config
from bridge.jetstream.tally import FLOW, OUTSTANDING_ACKS
from examples.embedded import EmbeddedNats, temporary_folder
from schemas.codecs import CONTENT_TYPE, MESSAGE_ID, MSGPACK
from schemas.streams import CDC_STREAM, StreamSpec


def recvlogical(stack: Stack, changes: int, end_lsn: str) -> Figures:
    """The WAL's own pace: PostgreSQL's `pg_recvlogical` into /dev/null."""
    with stack.slot() as slot:
        settle()
        started = time.perf_counter()
        process = subprocess.Popen(
            [
                *(stack.postgres.binaries / "pg_recvlogical", "--start", "--no-loop"),
                *("--dbname", stack.postgres.superuser, "--slot", slot, "--endpos", end_lsn),
                *("--file", "/dev/null", "--fsync-interval", "0", "--option", "proto_version=1"),
                *("--option", f"publication_names={PUBLICATION}", "--option", "messages=true"),
            ],
            env={**os.environ, **stack.postgres.psql_env()},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Wrong(f"pg_recvlogical ended with {process.returncode}")
    return {
        "recvlogical_per_s": changes / seconds,
        "recvlogical_cpu_us": (usage.ru_utime + usage.ru_stime) / changes * 1e6,
    }


AT_MOST_BYTES = 100 << 20
"""What the raw writer holds ready; more would measure this machine's memory."""

_HELLO = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"lang":"python","version":"1"}\r\nSUB _INBOX.raw.> 1\r\nPING\r\n'
)


def raw_writer(
    body: bytes, count: int, *, with_ids: bool = True, compressed: bool = True
) -> Figures:
    """JetStream's own pace: ready-made messages down a socket, into a stream like the bridge's."""
    count = min(count, AT_MOST_BYTES // (len(body) + 200)) // FLOW * FLOW
    blocks = list(_blocks(body, count, with_ids=with_ids))
    with temporary_folder() as folder, EmbeddedNats(folder / "nats") as server:
        settle()
        asyncio.run(_make_stream(server.url, replace(CDC_STREAM, compressed=compressed)))
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.sendall(_HELLO)
            answers = wire.makefile("rb")
            _await_line(answers, b"PONG")
            meter = CpuMeter(writer_nats=_pid(server))
            started = time.perf_counter()
            for number, block in enumerate(blocks):
                wire.sendall(block)
                if number >= OUTSTANDING_ACKS:
                    _await_line(answers, b'{"stream"')
            for _ in blocks[:OUTSTANDING_ACKS]:
                _await_line(answers, b'{"stream"')
            seconds = time.perf_counter() - started
            return {"writer_per_s": count / seconds, **meter.microseconds_each(count)}


def _blocks(body: bytes, count: int, *, with_ids: bool) -> Iterator[bytes]:
    """Write `count` messages in blocks; the last of each asks for an answer."""
    for first in range(1, count + 1, FLOW):
        last = first + FLOW - 1
        numbers = range(first, last + 1)
        yield b"".join(_frame(body, n, asks=n == last, with_ids=with_ids) for n in numbers)


def _frame(body: bytes, number: int, *, asks: bool, with_ids: bool) -> bytes:
    """Write a message that follows the one before it, or one that nobody could know again."""
    ids = f"{MESSAGE_ID}: {_id(number)}\r\n" if with_ids else ""
    if with_ids and number > 1:
        ids += f"{EXPECTED_ID}: {_id(number - 1)}\r\n"
    headers = f"NATS/1.0\r\n{ids}{CONTENT_TYPE}: {MSGPACK.content_type}\r\n\r\n".encode()
    reply = f"_INBOX.raw.{number} " if asks else ""
    sizes = f"{len(headers)} {len(headers) + len(body)}"
    return b"HPUB cdc.customers.insert %b%b\r\n%b%b\r\n" % (
        reply.encode(), sizes.encode(), headers, body,
    )  # fmt: skip


def _id(number: int) -> str:
    return f"{number * 200:x}-customers-insert"


def _await_line(answers: Iterator[bytes], start: bytes) -> None:
    for line in answers:
        if line.startswith(start):
            return
        if b'"error"' in line or line.startswith(b"-ERR"):
            raise Wrong(f"NATS refused the raw writer: {line.decode()}")
    raise Wrong("NATS hung up on the raw writer")


async def _make_stream(url: str, spec: StreamSpec) -> None:
    async with await nats.connect(url) as client:
        await client.jetstream().add_stream(stream_config(spec))


def _pid(server: EmbeddedNats) -> int:
    if server.process is None:
        raise Wrong("NATS is gone")
    return server.process.pid

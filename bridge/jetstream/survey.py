"""Asks NATS what the doctor wants to know. Makes and changes nothing."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.api import StreamConfig

from bridge.config import NatsConfig, StreamOverrides
from bridge.errors import BridgeError
from bridge.facts import ClockReading, SinkFacts, StoreFinding, Unreachable, Verdict
from bridge.jetstream.control import REQUEST_TIMEOUT_SECONDS, stream_info, translated
from bridge.jetstream.provision import stream_specs
from bridge.jetstream.risks import Risk, bucket_risks, stream_risks, uncovered
from schemas.streams import BUCKETS, CDC_STREAM, BucketSpec, StreamSpec

_WHO_AM_I = "$SYS.REQ.USER.INFO"
_PATIENCE_SECONDS = 5


async def survey_sink(client: Client, config: NatsConfig, overrides: StreamOverrides) -> SinkFacts:
    """Find out everything about this account that the bridge depends on."""
    greeting = client._server_info
    version, encrypted = str(greeting.get("version", "")), bool(greeting.get("tls_required"))
    try:
        with translated(config):
            js = client.jetstream(timeout=REQUEST_TIMEOUT_SECONDS)
            limits = (await js.account_info()).limits
            streams = [await _stream(client, spec) for spec in stream_specs(overrides)]
            buckets = [await _bucket(client, spec) for spec in BUCKETS]
            used = (await js.account_info()).storage
    except BridgeError as error:
        refused = Unreachable(str(error), error.advice)
        return SinkFacts(version=version, encrypted=encrypted, jetstream=refused)
    return SinkFacts(
        version=version,
        encrypted=encrypted,
        jetstream=None,
        streams=tuple(streams),
        buckets=tuple(buckets),
        storage_free=limits.max_storage - used if limits.max_storage > 0 else None,
        clock=await _read_clock(client),
    )


async def _stream(client: Client, spec: StreamSpec) -> StoreFinding:
    info = await stream_info(client, spec.name)
    if info is None:
        return StoreFinding(name=spec.name, exists=False, reserves_bytes=spec.max_bytes)
    found = StreamConfig.from_response(info["config"])
    problems = [_problem(risk) for risk in stream_risks(spec, found)]
    if missing := uncovered(spec.subjects, found.subjects or []):
        mend = f"nats stream edit {spec.name} --subjects {','.join(spec.subjects)}"
        problems.append(("fail", f"does not cover {', '.join(missing)}", mend))
    return StoreFinding(name=spec.name, exists=True, problems=tuple(problems))


async def _bucket(client: Client, spec: BucketSpec) -> StoreFinding:
    info = await stream_info(client, f"KV_{spec.name}")
    if info is None:
        return StoreFinding(name=spec.name, exists=False)
    found = StreamConfig.from_response(info["config"])
    problems = tuple(_problem(risk) for risk in bucket_risks(spec, found))
    return StoreFinding(name=spec.name, exists=True, problems=problems)


def _problem(risk: Risk) -> tuple[Verdict, str, str]:
    return "fail" if risk.loses_changes else "warn", risk.what, risk.mend


async def _read_clock(client: Client) -> ClockReading | None:
    """Read the server's clock off an answer that carries one; some users get none."""
    before = time.time()
    moment = await _server_time(client)
    after = time.time()
    if moment is None:
        return None
    return ClockReading(moment - (before + after) / 2, (after - before) / 2)


async def _server_time(client: Client) -> float | None:
    try:
        info = await stream_info(client, CDC_STREAM.name)
        if info and "ts" in info:
            return _seconds(info["ts"])
        answer: dict[str, Any] = json.loads(
            (await client.request(_WHO_AM_I, timeout=_PATIENCE_SECONDS)).data
        )
        return _seconds(answer["server"]["time"])
    except (nats.errors.Error, TimeoutError, ValueError, KeyError):
        return None


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

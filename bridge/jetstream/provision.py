"""Streams and buckets: made where missing, never weakened, and told of where they are a risk."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import (
    DiscardPolicy,
    KeyValueConfig,
    StorageType,
    StoreCompression,
    StreamConfig,
)

from bridge.errors import SinkRefused
from schemas.streams import BUCKETS, STREAMS, BucketSpec, StreamSpec

_log = logging.getLogger("bridge.jetstream")


@dataclass(frozen=True, slots=True)
class Keep:
    """The stream is there; each warning names a setting, its risk and the command that mends it."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Create:
    """The stream is missing."""

    config: StreamConfig


@dataclass(frozen=True, slots=True)
class AllowBatches:
    """The stream lacks only what batches need; switching that on takes nothing away."""

    config: StreamConfig
    warnings: tuple[str, ...] = ()


def plan_stream(spec: StreamSpec, found: StreamConfig | None) -> Create | Keep | AllowBatches:
    """Decide what to do about a stream, or say why it cannot be used."""
    if found is None:
        return Create(stream_config(spec))
    missing = [subject for subject in spec.subjects if subject not in (found.subjects or [])]
    if missing:
        raise SinkRefused(
            f"stream {spec.name} exists and does not cover {', '.join(missing)}",
            advice=f"nats stream edit {spec.name} --subjects {','.join(spec.subjects)}",
        )
    warnings = tuple(_risks(spec, found))
    if found.allow_batched:
        return Keep(warnings)
    return AllowBatches(replace(found, allow_batched=True), warnings)


def _risks(spec: StreamSpec, found: StreamConfig) -> list[str]:
    """Name every setting of an existing stream that weakens a promise."""
    risks = []
    if spec.discard_new and found.discard != DiscardPolicy.NEW:
        risks.append(
            f"stream {spec.name} discards old messages when full, read or not:"
            f" nats stream edit {spec.name} --discard new"
        )
    if found.storage != StorageType.FILE:
        risks.append(
            f"stream {spec.name} is kept in memory and is gone when nats-server stops:"
            " make it anew with --storage file"
        )
    return risks


def stream_config(spec: StreamSpec) -> StreamConfig:
    """Write a specification as nats-py wants it."""
    return StreamConfig(
        name=spec.name,
        subjects=list(spec.subjects),
        storage=StorageType.FILE,
        max_age=spec.max_age.total_seconds(),
        max_bytes=spec.max_bytes,
        discard=DiscardPolicy.NEW if spec.discard_new else DiscardPolicy.OLD,
        duplicate_window=min(spec.duplicate_window, spec.max_age).total_seconds(),
        num_replicas=spec.replicas,
        compression=StoreCompression.S2,
        allow_direct=True,
        allow_batched=True,
    )


async def provision(js: JetStreamContext) -> StreamConfig:
    """Make or check every stream and bucket; give the CDC stream's settings."""
    for bucket in BUCKETS:
        await _ensure_bucket(js, bucket)
    configs = [await _ensure_stream(js, spec) for spec in STREAMS]
    return configs[0]


async def _ensure_stream(js: JetStreamContext, spec: StreamSpec) -> StreamConfig:
    try:
        found = (await js.stream_info(spec.name)).config
    except nats.js.errors.NotFoundError:
        found = None
    plan = plan_stream(spec, found)
    if isinstance(plan, Create):
        _log.info("making stream %s for %s", spec.name, ", ".join(spec.subjects))
        return (await js.add_stream(plan.config)).config
    for warning in plan.warnings:
        _log.warning(warning)
    if isinstance(plan, AllowBatches):
        _log.info("switching on batches for stream %s", spec.name)
        updated = (await js.update_stream(plan.config)).config
        if not updated.allow_batched:
            raise SinkRefused(
                f"this nats-server cannot take batches for stream {spec.name}",
                advice="Use nats-server 2.14 or newer.",
            )
        return updated
    assert found is not None  # noqa: S101 - Keep is only planned for a stream that was found
    return found


async def _ensure_bucket(js: JetStreamContext, spec: BucketSpec) -> None:
    try:
        await js.key_value(spec.name)
    except nats.js.errors.BucketNotFoundError:
        _log.info("making bucket %s", spec.name)
        await js.create_key_value(
            KeyValueConfig(bucket=spec.name, history=spec.history, replicas=spec.replicas)
        )

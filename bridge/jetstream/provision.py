"""Streams and buckets: made where missing, never weakened, and told of where they are a risk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
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

from bridge.config import StreamOverrides
from bridge.errors import SinkRefused
from bridge.jetstream.risks import Risk, bucket_risks, stream_risks, uncovered
from schemas.streams import (
    BUCKETS,
    CDC_STREAM,
    OVERSIZE_STORE,
    STREAMS,
    BucketSpec,
    ObjectStoreSpec,
    StreamSpec,
)

# By JetStream's own error codes: a reservation that does not fit, on a server or in an account, and
# replicas on a server that is alone or has too few beside it.
_NO_ROOM = "Raise max_file_store or the account's limit, or choose less with --stream-max-bytes."
_TOO_FEW = "Choose fewer with --stream-replicas, or use a cluster."
_ADVICE = {10_047: _NO_ROOM, 10_028: _NO_ROOM, 10_002: _NO_ROOM, 10_074: _TOO_FEW, 10_005: _TOO_FEW}

_log = logging.getLogger("bridge.jetstream")


@dataclass(frozen=True, slots=True)
class Keep:
    """The stream is there; each warning names a setting, its risk and the command that mends it."""

    warnings: tuple[Risk, ...] = ()


@dataclass(frozen=True, slots=True)
class Create:
    """The stream is missing."""

    config: StreamConfig


@dataclass(frozen=True, slots=True)
class AllowBatches:
    """The stream lacks only what batches need; switching that on takes nothing away."""

    config: StreamConfig
    warnings: tuple[Risk, ...] = ()


def plan_stream(spec: StreamSpec, found: StreamConfig | None) -> Create | Keep | AllowBatches:
    """Decide what to do about a stream, or say why it cannot be used."""
    if found is None:
        return Create(stream_config(spec))
    if missing := uncovered(spec.subjects, found.subjects or []):
        raise SinkRefused(
            f"stream {spec.name} exists and does not cover {', '.join(missing)}",
            advice=f"nats stream edit {spec.name} --subjects {','.join(spec.subjects)}",
        )
    risks = stream_risks(spec, found)
    for risk in risks:
        if risk.loses_changes:
            raise SinkRefused(
                f"{risk.where} {risk.what}; changes would be lost", advice=_sentence(risk.mend)
            )
    if found.allow_batched:
        return Keep(tuple(risks))
    return AllowBatches(replace(found, allow_batched=True), tuple(risks))


def _sentence(text: str) -> str:
    return text if text.startswith("nats ") else f"{text[:1].upper()}{text[1:]}."


def stream_config(spec: StreamSpec) -> StreamConfig:
    """Write a specification as nats-py wants it."""
    return StreamConfig(
        name=spec.name,
        subjects=list(spec.subjects),
        storage=StorageType.FILE,
        max_age=spec.max_age.total_seconds(),
        max_bytes=spec.max_bytes,
        discard=DiscardPolicy.NEW if spec.discard_new else DiscardPolicy.OLD,
        # The server refuses a window longer than the age, where there is one.
        duplicate_window=min(
            spec.duplicate_window, spec.max_age or spec.duplicate_window
        ).total_seconds(),
        num_replicas=spec.replicas,
        compression=StoreCompression.S2 if spec.compressed else StoreCompression.NONE,
        allow_direct=True,
        allow_batched=True,
    )


def stream_specs(overrides: StreamOverrides) -> tuple[StreamSpec, ...]:
    """Put an operator's wishes in place of the contract's defaults."""
    return tuple(_overridden(spec, overrides) for spec in STREAMS)


def _overridden(spec: StreamSpec, overrides: StreamOverrides) -> StreamSpec:
    # A snapshot is read once, soon after it was asked for: only changes are kept longer or shorter.
    max_age = overrides.max_age if spec.name == CDC_STREAM.name else None
    return replace(
        spec,
        max_age=spec.max_age if max_age is None else max_age,
        max_bytes=overrides.max_bytes or spec.max_bytes,
        replicas=overrides.replicas or spec.replicas,
    )


def oversize_spec(overrides: StreamOverrides) -> ObjectStoreSpec:
    """Let bodies live as long as the messages that name them."""
    return replace(
        OVERSIZE_STORE,
        max_age=max(overrides.max_age or OVERSIZE_STORE.max_age, OVERSIZE_STORE.max_age),
        replicas=overrides.replicas or OVERSIZE_STORE.replicas,
    )


async def provision(js: JetStreamContext, overrides: StreamOverrides | None = None) -> StreamConfig:
    """Make or check every stream and bucket; give the CDC stream's settings."""
    overrides = overrides or StreamOverrides()
    for bucket in BUCKETS:
        await _ensure_bucket(js, replace(bucket, replicas=overrides.replicas or bucket.replicas))
    configs = [await _ensure_stream(js, spec) for spec in stream_specs(overrides)]
    return configs[0]


async def _ensure_stream(js: JetStreamContext, spec: StreamSpec) -> StreamConfig:
    found = await find_config(js, spec.name)
    plan = plan_stream(spec, found)
    if isinstance(plan, Create):
        return await _create(js, spec, plan.config)
    for warning in plan.warnings:
        _log.warning("%s", warning)
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


async def find_config(js: JetStreamContext, name: str) -> StreamConfig | None:
    try:
        return (await js.stream_info(name)).config
    except nats.js.errors.NotFoundError:
        return None


async def _create(js: JetStreamContext, spec: StreamSpec, config: StreamConfig) -> StreamConfig:
    _log.info("making stream %s for %s", spec.name, ", ".join(spec.subjects))
    with _explained(f"stream {spec.name}"):
        return (await js.add_stream(config)).config


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say what to do where JetStream does not make something as asked."""
    try:
        yield
    except nats.js.errors.APIError as error:
        advice = _ADVICE.get(error.err_code or 0)
        if advice is None:
            raise
        raise SinkRefused(f"{what} cannot be made: {error.description}", advice=advice) from error


async def _ensure_bucket(js: JetStreamContext, spec: BucketSpec) -> None:
    found = await find_config(js, f"KV_{spec.name}")
    if found is None:
        _log.info("making bucket %s", spec.name)
        config = KeyValueConfig(bucket=spec.name, history=spec.history, replicas=spec.replicas)
        with _explained(f"bucket {spec.name}"):
            await js.create_key_value(config)
        return
    for risk in bucket_risks(spec, found):
        _log.warning("%s", risk)

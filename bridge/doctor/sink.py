"""Checks of NATS: its version, JetStream, the streams and buckets, and room for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from bridge.doctor.findings import Answer, Check, Said, mebibytes
from bridge.facts import Facts, SinkFacts, StoreFinding, Unreachable

OLDEST_NATS = (2, 14)
"""The first with fast-ingest batches."""

SYNCING_NATS = (2, 14, 7)
"""The first that syncs everything it should: 2.14.5 to 2.14.7 closed holes in its file store."""


def _of_sink(judge: Callable[[Facts, SinkFacts], Answer]) -> Callable[[Facts], Answer]:
    """Leave a check out where NATS could not be asked."""
    return lambda facts: judge(facts, facts.sink) if isinstance(facts.sink, SinkFacts) else ()


def _sink_reachable(facts: Facts) -> Said:
    if isinstance(facts.sink, Unreachable):
        return Said("fail", f"{facts.sink.why}; nothing else could be checked there",
                    facts.sink.advice)  # fmt: skip
    return Said("ok", f"connected {'over' if facts.sink.encrypted else 'without'} TLS")


def _sink_version(_: Facts, sink: SinkFacts) -> Said:
    parts = sink.version.split(".")
    numbers = tuple(int(found[0]) for part in parts[:3] if (found := re.match(r"\d+", part)))
    if numbers[:2] < OLDEST_NATS:
        return Said("fail", f"nats-server {sink.version} cannot keep a batch in order when one of"
                    " its messages is refused",
                    f"Use nats-server {'.'.join(map(str, OLDEST_NATS))} or newer.")  # fmt: skip
    if numbers < SYNCING_NATS:
        return Said("warn", f"nats-server {sink.version} may fail to sync acknowledged"
                    " messages to disk",
                    f"Use nats-server {'.'.join(map(str, SYNCING_NATS))} or newer; from 2.15 on"
                    " `sync_interval: always` costs little on replicated streams."
                    )  # fmt: skip
    return Said("ok", f"nats-server {sink.version}")


def _jetstream(_: Facts, sink: SinkFacts) -> Said:
    if sink.jetstream:
        return Said("fail", sink.jetstream.why, sink.jetstream.advice)
    return Said("ok", "enabled for this account")


def _streams(_: Facts, sink: SinkFacts) -> Iterator[Said]:
    return _stores(sink.streams)


def _buckets(_: Facts, sink: SinkFacts) -> Iterator[Said]:
    return _stores(sink.buckets)


def _stores(stores: Iterable[StoreFinding]) -> Iterator[Said]:
    for store in stores:
        if not store.exists:
            yield Said("ok", "does not exist; the bridge makes it at start", about=store.name)
        elif not store.problems:
            yield Said("ok", "its settings keep every promise", about=store.name)
        for verdict, what, remedy in store.problems:
            yield Said(verdict, what, remedy, store.name)


def _room(_: Facts, sink: SinkFacts) -> Answer:
    missing = sum(store.reserves_bytes for store in sink.streams if not store.exists)
    if sink.jetstream or not missing or sink.storage_free is None:
        return ()
    if missing > sink.storage_free:
        return Said("fail", f"streams to be made reserve {mebibytes(missing)}, and the account has"
                    f" {mebibytes(sink.storage_free)} left",
                    "Raise the account's disk storage, or choose less with"
                    " --stream-max-bytes.")  # fmt: skip
    return Said("ok", f"{mebibytes(sink.storage_free)} left for {mebibytes(missing)} of streams")


SINK_CHECKS = (
    Check("nats", _sink_reachable),
    Check("nats version", _of_sink(_sink_version)),
    Check("jetstream", _of_sink(_jetstream)),
    Check("stream", _of_sink(_streams)),
    Check("bucket", _of_sink(_buckets)),
    Check("room", _of_sink(_room)),
)

"""Streams and buckets as data: what the bridge creates where it is missing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A file-backed stream with limits; a full one refuses new messages or drops old ones."""

    name: str
    subjects: tuple[str, ...]
    max_age: timedelta
    max_bytes: int
    discard_new: bool
    compressed: bool
    duplicate_window: timedelta = timedelta(minutes=2)
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec:
    """A KV bucket; its history is what a reader of an older revision can still find."""

    name: str
    history: int
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreSpec:
    """An object store whose objects expire."""

    name: str
    max_age: timedelta
    replicas: int = 1


# A full CDC stream holds the bridge back and PostgreSQL keeps the WAL: unread changes never drop.
CDC_STREAM = StreamSpec(
    name="CDC",
    subjects=("cdc.>",),
    max_age=timedelta(hours=24),
    max_bytes=10 * GIB,
    discard_new=True,
    compressed=True,
)
# A snapshot is read once and soon: compressing it costs the server as much CPU as storing it.
INIT_STREAM = StreamSpec(
    name="INIT",
    subjects=("init.>",),
    max_age=timedelta(days=7),
    max_bytes=8 * GIB,
    discard_new=True,
    compressed=False,
)
SCHEMAS_BUCKET = BucketSpec(name="schemas", history=64)
# The bridge's own memory, apart from the schema history that consumers read: it changes far more
# often than any shape does.
STORAGE_BUCKET = BucketSpec(name="storage", history=1)
DICTIONARIES_BUCKET = BucketSpec(name="dictionaries", history=1)
SOURCES_BUCKET = BucketSpec(name="sources", history=1)
"""Which PostgreSQL history the stream holds: the bridge's own memory, of no use to consumers."""

# Changes and snapshot chunks both name objects: a body outlives whatever names it.
OVERSIZE_STORE = ObjectStoreSpec(
    name="oversize", max_age=max(CDC_STREAM.max_age, INIT_STREAM.max_age)
)

STREAMS = (CDC_STREAM, INIT_STREAM)
BUCKETS = (SCHEMAS_BUCKET, DICTIONARIES_BUCKET, SOURCES_BUCKET, STORAGE_BUCKET)

LAKE_CONSUMER = "lake"
"""The durable consumer whose position shows operators how far the lake is."""

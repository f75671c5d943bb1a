"""Streams and buckets: the contract's table, value by value."""

from __future__ import annotations

from datetime import timedelta

from schemas.streams import (
    BUCKETS,
    CDC_STREAM,
    DICTIONARIES_BUCKET,
    INIT_STREAM,
    LAKE_CONSUMER,
    OVERSIZE_STORE,
    SCHEMAS_BUCKET,
    SOURCES_BUCKET,
    STORAGE_BUCKET,
    STREAMS,
)


def test_the_cdc_stream_holds_back_rather_than_dropping() -> None:
    """Discard old would lose unread changes without a word."""
    assert CDC_STREAM.name == "CDC"
    assert CDC_STREAM.subjects == ("cdc.>",)
    assert CDC_STREAM.discard_new
    assert CDC_STREAM.max_age == timedelta(hours=24)
    assert CDC_STREAM.max_bytes == 10 * 1024**3
    assert CDC_STREAM.duplicate_window == timedelta(minutes=2)


def test_the_init_stream_keeps_snapshots_for_a_week() -> None:
    """A consumer may load a snapshot days after it was taken."""
    assert INIT_STREAM.name == "INIT"
    assert INIT_STREAM.subjects == ("init.>",)
    assert INIT_STREAM.max_age == timedelta(days=7)
    assert INIT_STREAM.max_bytes == 8 * 1024**3


def test_no_duplicate_window_outlives_its_stream() -> None:
    """The server refuses a window longer than the age."""
    assert all(stream.duplicate_window <= stream.max_age for stream in STREAMS)


def test_buckets_are_the_ones_the_contract_lists() -> None:
    """64 revisions of a shape are the schema history; a dictionary has one."""
    assert (SCHEMAS_BUCKET.name, SCHEMAS_BUCKET.history) == ("schemas", 64)
    assert (DICTIONARIES_BUCKET.name, DICTIONARIES_BUCKET.history) == ("dictionaries", 1)
    assert (SOURCES_BUCKET.name, SOURCES_BUCKET.history) == ("sources", 1)
    assert (STORAGE_BUCKET.name, STORAGE_BUCKET.history) == ("storage", 1)
    assert BUCKETS == (SCHEMAS_BUCKET, DICTIONARIES_BUCKET, SOURCES_BUCKET, STORAGE_BUCKET)


def test_oversize_bodies_live_as_long_as_the_messages_that_name_them() -> None:
    """An object gone before its message would be a change lost."""
    assert OVERSIZE_STORE.name == "oversize"
    assert OVERSIZE_STORE.max_age >= max(CDC_STREAM.max_age, INIT_STREAM.max_age)


def test_the_lake_shows_its_position_as_a_durable_of_that_name() -> None:
    """Operators look for it with `nats consumer info CDC lake`."""
    assert LAKE_CONSUMER == "lake"

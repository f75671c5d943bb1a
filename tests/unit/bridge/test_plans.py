"""Decisions before the first byte flows: the slot, the streams, the durability."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StreamConfig

from bridge.app import choose_durability
from bridge.config import StreamOverrides
from bridge.errors import BridgeError, SinkRefused, SlotBusy, SlotLost, SourceNotReady
from bridge.jetstream.provision import (
    AllowBatches,
    Create,
    Keep,
    plan_stream,
    stream_config,
    stream_specs,
)
from bridge.jetstream.risks import bucket_risks, covers, stream_risks
from bridge.options import Durability
from bridge.postgres.slot import CreateSlot, ResumeFrom, Slot, plan_drop, plan_slot
from schemas.positions import Lsn
from schemas.streams import CDC_STREAM, INIT_STREAM, SCHEMAS_BUCKET, STREAMS

SLOT = Slot(
    name="s",
    plugin="pgoutput",
    database="d",
    in_this_database=True,
    active_pid=None,
    wal_status="reserved",
    confirmed_lsn=Lsn(7),
    retained_bytes=0,
    lag_bytes=0,
    safe_wal_size=None,
)


def test_a_missing_slot_is_made() -> None:
    assert plan_slot("s", None) == CreateSlot()


def test_a_slot_is_resumed_where_postgresql_has_it() -> None:
    assert plan_slot("s", SLOT) == ResumeFrom(Lsn(7))


@pytest.mark.parametrize("other", [{"plugin": "test_decoding"}, {"in_this_database": False}])
def test_a_slot_of_somebody_else_is_left_alone(other: dict[str, object]) -> None:
    with pytest.raises(SourceNotReady, match="belongs to"):
        plan_slot("s", dataclasses.replace(SLOT, **other))  # type: ignore[arg-type]


def test_a_slot_that_is_being_made_is_waited_for() -> None:
    """It has no position yet, because a transaction is open; nothing is lost."""
    with pytest.raises(SlotBusy, match="being made by process 42"):
        plan_slot("s", dataclasses.replace(SLOT, confirmed_lsn=None, active_pid=42))


def test_a_lost_slot_stops_with_the_setting_to_raise() -> None:
    with pytest.raises(SlotLost) as raised:
        plan_slot("s", dataclasses.replace(SLOT, wal_status="lost"))
    assert "max_slot_wal_keep_size" in raised.value.advice


def test_a_lost_slot_is_made_anew_only_when_told_so() -> None:
    lost = dataclasses.replace(SLOT, wal_status="lost")

    assert plan_slot("s", lost, recreate=True) == CreateSlot(lost=lost)
    assert plan_slot("s", SLOT, recreate=True) == ResumeFrom(Lsn(7))


def test_a_slot_whose_wal_is_gone_is_recreated_though_postgresql_shows_it_as_sound() -> None:
    """Its WAL was lost with a disk, or left out of a copy: every session would end the same."""
    assert plan_slot("s", SLOT, recreate=True, lost_at=Lsn(7)) == CreateSlot(lost=SLOT)
    assert plan_slot("s", SLOT, recreate=True, lost_at=Lsn(9)) == CreateSlot(lost=SLOT)
    assert plan_slot("s", SLOT, lost_at=Lsn(7)) == ResumeFrom(Lsn(7))


def test_a_slot_that_another_bridge_has_recreated_since_is_kept() -> None:
    """A new slot begins beyond all that the lost one was told."""
    assert plan_slot("s", SLOT, recreate=True, lost_at=Lsn(6)) == ResumeFrom(Lsn(7))


def test_a_missing_stream_is_made_to_the_contract() -> None:
    plan = plan_stream(CDC_STREAM, None)
    assert isinstance(plan, Create)
    assert plan.config.discard == DiscardPolicy.NEW
    assert plan.config.allow_batched


def test_a_stream_as_we_make_it_is_kept() -> None:
    assert plan_stream(CDC_STREAM, stream_config(CDC_STREAM)) == Keep()


@pytest.mark.parametrize(
    ("settings", "mend"),
    [
        ({"discard": DiscardPolicy.OLD}, "nats stream edit CDC --discard new"),
        ({"storage": StorageType.MEMORY}, "nats stream rm CDC"),
        ({"retention": RetentionPolicy.INTEREST}, "nats stream edit CDC --retention limits"),
        ({"retention": RetentionPolicy.WORK_QUEUE}, "nats stream edit CDC --retention limits"),
        ({"no_ack": True}, "nats stream edit CDC --ack"),
        ({"persist_mode": PersistMode.ASYNC}, "nats stream rm CDC"),
        ({"sealed": True}, "nats stream rm CDC"),
        ({"max_msgs_per_subject": 1}, "nats stream edit CDC --max-msgs-per-subject=-1"),
        (
            {"max_msgs_per_subject": 9, "max_bytes": None, "discard": DiscardPolicy.OLD},
            "nats stream edit CDC --max-msgs-per-subject=-1",
        ),
        (
            {"max_msgs": 1, "max_bytes": None, "discard": DiscardPolicy.OLD},
            "nats stream edit CDC --discard new",
        ),
    ],
)
def test_a_setting_that_can_lose_changes_is_refused_with_its_remedy(
    settings: dict[str, Any], mend: str
) -> None:
    with pytest.raises(SinkRefused, match="changes would be lost") as raised:
        plan_stream(CDC_STREAM, dataclasses.replace(stream_config(CDC_STREAM), **settings))
    assert mend in raised.value.advice


@pytest.mark.parametrize(
    ("settings", "mend"),
    [
        ({"discard": DiscardPolicy.OLD, "max_bytes": -1}, "nats stream edit CDC --discard new"),
        ({"discard": DiscardPolicy.OLD, "max_bytes": None}, "nats stream edit CDC --discard new"),
        ({"duplicate_window": 2.0, "max_age": 1.0}, "nats stream edit CDC --dupe-window"),
        ({"duplicate_window": 9.0, "max_age": 5.0}, "nats stream edit CDC --dupe-window"),
    ],
)
def test_a_setting_that_only_weakens_a_promise_is_warned_of(
    settings: dict[str, Any], mend: str
) -> None:
    plan = plan_stream(CDC_STREAM, dataclasses.replace(stream_config(CDC_STREAM), **settings))
    assert isinstance(plan, Keep)
    (risk,) = plan.warnings
    assert mend in str(risk)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_msgs_per_subject": 9, "discard_new_per_subject": True},
        {"max_msgs_per_subject": -1},
        {"max_msgs_per_subject": None},
        {"duplicate_window": 9.0, "max_age": 0.0},
        {"duplicate_window": 9.0, "max_age": None},
    ],
)
def test_a_setting_that_refuses_loudly_or_limits_nothing_is_no_risk(
    settings: dict[str, Any],
) -> None:
    found = dataclasses.replace(stream_config(CDC_STREAM), **settings)
    assert plan_stream(CDC_STREAM, found) == Keep()


def test_a_snapshot_can_be_asked_for_again_so_its_stream_is_only_warned_of() -> None:
    found = dataclasses.replace(stream_config(INIT_STREAM), storage=StorageType.MEMORY)
    plan = plan_stream(INIT_STREAM, found)
    assert isinstance(plan, Keep)
    assert "memory" in str(plan.warnings[0])


def test_what_an_existing_bucket_takes_from_readers_is_named() -> None:
    found = StreamConfig(max_msgs_per_subject=1, storage=StorageType.MEMORY, max_age=60.0)
    named = " ".join(str(risk) for risk in bucket_risks(SCHEMAS_BUCKET, found))
    assert "1 revisions of 64" in named
    assert "memory" in named
    assert "--max-age 0" in named


@pytest.mark.parametrize("revisions", [SCHEMAS_BUCKET.history, 0, -1])
def test_a_bucket_that_keeps_enough_revisions_or_all_is_no_risk(revisions: int) -> None:
    found = StreamConfig(max_msgs_per_subject=revisions, storage=StorageType.FILE)
    assert bucket_risks(SCHEMAS_BUCKET, found) == []


def test_an_operators_wishes_take_the_place_of_the_contracts_defaults() -> None:
    wishes = StreamOverrides(max_age=timedelta(days=7), max_bytes=5, replicas=3)
    cdc, init = stream_specs(wishes)
    assert (cdc.max_age, cdc.max_bytes, cdc.replicas) == (timedelta(days=7), 5, 3)
    assert (init.max_age, init.max_bytes, init.replicas) == (INIT_STREAM.max_age, 5, 3)
    assert stream_specs(StreamOverrides()) == STREAMS


@pytest.mark.parametrize("age", [timedelta(0), timedelta(seconds=30), timedelta(days=7)])
def test_no_window_for_duplicates_is_longer_than_the_age(age: timedelta) -> None:
    (cdc, _) = stream_specs(StreamOverrides(max_age=age))
    assert stream_risks(cdc, stream_config(cdc)) == []


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("cdc.>", "cdc.>", True),
        (">", "cdc.>", True),
        ("*.>", "cdc.>", True),
        ("cdc.*.*", "cdc.users.insert", True),
        ("cdc.>", "cdc", False),
        ("cdc.*", "cdc.>", False),
        ("cdc.*", "cdc.users.insert", False),
        ("cdc.users.>", "cdc.>", False),
        ("init.>", "cdc.>", False),
        ("cdc.users", "cdc.*", False),
    ],
)
def test_a_pattern_covers_what_it_matches_and_no_more(
    wide: str, narrow: str, covered: bool
) -> None:
    assert covers(wide, narrow) is covered


def test_a_stream_with_more_subjects_than_ours_is_kept() -> None:
    found = stream_config(CDC_STREAM)
    found.subjects = ["other.>", ">"]
    assert plan_stream(CDC_STREAM, found) == Keep()


def test_only_what_takes_nothing_away_is_changed_in_an_existing_stream() -> None:
    found = stream_config(CDC_STREAM)
    found.allow_batched, found.max_age = False, 60
    plan = plan_stream(CDC_STREAM, found)
    assert isinstance(plan, AllowBatches)
    assert (plan.config.allow_batched, plan.config.max_age) == (True, 60)


def test_a_stream_that_does_not_cover_the_subjects_is_refused() -> None:
    found = stream_config(CDC_STREAM)
    found.subjects = ["cdc.users.*"]
    with pytest.raises(SinkRefused, match=r"does not cover cdc\.>"):
        plan_stream(CDC_STREAM, found)


def test_a_free_slot_of_ours_may_be_dropped() -> None:
    assert plan_drop("s", SLOT, force=False) == SLOT


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (None, SourceNotReady),
        (dataclasses.replace(SLOT, plugin="test_decoding"), SourceNotReady),
        (dataclasses.replace(SLOT, in_this_database=False), SourceNotReady),
        (dataclasses.replace(SLOT, active_pid=7), SlotBusy),
    ],
)
def test_any_other_slot_is_not_dropped(found: Slot | None, error: type[BridgeError]) -> None:
    with pytest.raises(error):
        plan_drop("s", found, force=False)


def test_a_slot_in_use_is_dropped_only_by_force() -> None:
    busy = dataclasses.replace(SLOT, active_pid=7)
    assert plan_drop("s", busy, force=True) == busy


@pytest.mark.parametrize(
    ("wanted", "chosen"), [("auto", "synced"), ("acked", "acked"), ("synced", "synced")]
)
def test_an_ack_counts_as_durable_only_where_the_operator_says_so(
    wanted: Durability, chosen: Durability
) -> None:
    """Replicas do not help: three of them with `acked` lost 2,581 of 75,923 changes."""
    assert choose_durability(wanted) == chosen

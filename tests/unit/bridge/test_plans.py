"""Decisions before the first byte flows: the slot, the streams, the durability."""

from __future__ import annotations

import dataclasses

import pytest
from nats.js.api import DiscardPolicy, StorageType

from bridge.app import choose_durability
from bridge.config import Durability
from bridge.errors import SinkRefused, SlotLost, SourceNotReady
from bridge.jetstream.provision import AllowBatches, Create, Keep, plan_stream, stream_config
from bridge.postgres.slot import CreateSlot, ResumeFrom, Slot, plan_slot
from schemas.positions import Lsn
from schemas.streams import CDC_STREAM

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


def test_a_lost_slot_stops_with_the_setting_to_raise() -> None:
    with pytest.raises(SlotLost) as raised:
        plan_slot("s", dataclasses.replace(SLOT, wal_status="lost"))
    assert "max_slot_wal_keep_size" in raised.value.advice


def test_a_missing_stream_is_made_to_the_contract() -> None:
    plan = plan_stream(CDC_STREAM, None)
    assert isinstance(plan, Create)
    assert plan.config.discard == DiscardPolicy.NEW
    assert plan.config.allow_batched


def test_a_stream_as_we_make_it_is_kept() -> None:
    assert plan_stream(CDC_STREAM, stream_config(CDC_STREAM)) == Keep()


def test_a_risky_setting_of_an_existing_stream_is_named_with_its_remedy() -> None:
    found = stream_config(CDC_STREAM)
    found.discard, found.storage = DiscardPolicy.OLD, StorageType.MEMORY
    plan = plan_stream(CDC_STREAM, found)
    assert isinstance(plan, Keep)
    assert "nats stream edit CDC --discard new" in plan.warnings[0]
    assert "memory" in plan.warnings[1]


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


@pytest.mark.parametrize(
    ("wanted", "replicas", "chosen"),
    [("auto", 1, "synced"), ("auto", 3, "acked"), ("acked", 1, "acked"), ("synced", 3, "synced")],
)
def test_an_ack_of_one_server_alone_is_not_taken_for_durable(
    wanted: Durability, replicas: int, chosen: Durability
) -> None:
    assert choose_durability(wanted, replicas) == chosen

"""What the command line does besides running: look, ask, and give a slot up."""

from __future__ import annotations

import asyncio

from bridge.config import BridgeConfig, NatsConfig, PostgresConfig, StreamOverrides
from bridge.doctor.findings import mebibytes
from bridge.errors import BadConfiguration, BridgeError
from bridge.facts import Facts, SinkFacts, SourceFacts, Unreachable
from bridge.jetstream import control
from bridge.jetstream.survey import survey_sink
from bridge.postgres import connection
from bridge.postgres.slot import Slot, drop_slot, find_slot, plan_drop
from bridge.postgres.survey import survey_source


async def gather_facts(config: BridgeConfig) -> Facts:
    """Ask both servers at once; one that cannot be asked is a fact as well."""
    source, sink = await asyncio.gather(
        _source_facts(config.postgres, config.slot, config.publication),
        _sink_facts(config.nats, config.streams),
    )
    return Facts(slot=config.slot, publication=config.publication, source=source, sink=sink)


async def _source_facts(
    config: PostgresConfig, slot: str, publication: str
) -> SourceFacts | Unreachable:
    try:
        async with await connection.connect(config) as source:
            with connection.translated(config):
                return await survey_source(source, slot=slot, publication=publication)
    except BridgeError as error:
        return Unreachable(str(error), error.advice)


async def _sink_facts(config: NatsConfig, overrides: StreamOverrides) -> SinkFacts | Unreachable:
    try:
        client = await control.connect(config)
        try:
            with control.translated(config):
                return await survey_sink(client, config, overrides)
        finally:
            await control.close(client)
    except BridgeError as error:
        return Unreachable(str(error), error.advice)


async def give_up_slot(config: PostgresConfig, name: str, *, sure: bool, force: bool) -> str:
    """Drop the slot and say so; without `sure` only say what that would mean."""
    async with await connection.connect(config) as source:
        with connection.translated(config):
            slot = plan_drop(name, await find_slot(source, name), force=force)
            if not sure:
                raise BadConfiguration(
                    f"dropping slot {name} is for good: {_consequence(slot)}",
                    advice="Say --yes to drop it.",
                )
            await drop_slot(source, slot)
    return f"dropped slot {name}; it had confirmed up to {slot.confirmed_lsn}"


def _consequence(slot: Slot) -> str:
    behind = mebibytes(slot.lag_bytes or 0)
    return (
        f"what was written after {slot.confirmed_lsn} ({behind} of WAL) is published by no bridge,"
        " and consumers need a new snapshot"
    )

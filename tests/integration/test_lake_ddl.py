"""DDL on live mirrors under load: each is equal, or visibly waits for a snapshot.

One PostgreSQL, one NATS, one bridge and one lake serve the statements of `ddlcases`, each on its
own table, and `verify` compares every mirror with PostgreSQL. A run takes every sixth statement
and loads a sample of the mirrors that wait; `DDL_CASES=all` takes all of both, as `make chaos`
does, and `DDL_CASES=add_` those whose ids begin so. `test_ddl_statements` runs all of them
against a model.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from lake_consumer.app import Follower
from lake_consumer.batches import BatchLimits
from lake_consumer.errors import LakeError
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.mirrorrows import MirrorAtCut
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.jetstream.stream import CdcStream
from lake_consumer.loader import Loader
from lake_consumer.pgoptions import PostgresOptions
from lake_consumer.postgres.source import Source
from lake_consumer.tablestates import TableState
from lake_consumer.verify.table import TableCheck
from schemas.names import TableName
from tests.conftest import Connection
from tests.support.ddlcases import KNOWN_GAPS, Expected
from tests.support.ddlpipeline import SEED, DdlPipeline, Placed, place
from tests.support.lake import LakeRig, reach_end
from tests.support.rig import Rig

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

CHOSEN = os.environ.get("DDL_CASES", "")
EVERY = 6
SAMPLE = 6
BATCH_MESSAGES = 3_000
KINDS: Mapping[Expected, set[str]] = {
    "equal": {"live"},
    "reloads": {"loading"},
    "either": {"live", "loading", "parked"},
    "no key": {"parked"},
    "gone": {"live", "loading", "parked", "gone"},
}

States = Mapping[TableName, TableState]


def choose() -> tuple[Placed, ...]:
    placed = tuple(one for one in place() if one.case.id not in KNOWN_GAPS)
    if CHOSEN == "all":
        return placed
    if CHOSEN:
        return tuple(one for one in placed if one.case.id.startswith(CHOSEN))
    return placed[::EVERY]


class SampleLoader(Loader):
    """Loads a sample of the mirrors that wait: what matters is that they say so."""

    @property
    def tables(self) -> States:
        waiting = super().tables
        if CHOSEN == "all":
            return waiting
        sample = random.Random(SEED).sample(sorted(waiting), min(SAMPLE, len(waiting)))
        return {table: waiting[table] for table in sorted(sample)}


def apply(rig: LakeRig, placed: Sequence[Placed], *, load: bool) -> tuple[States, States]:
    """Apply all that is stored, then load mirrors; give the states before and after the loads."""
    with closing(CdcStream(rig.nats)) as stream:
        stream.ensure_durable()
        lake = Lake(rig.spark, rig.nats, stream.shape, first_sight="stream", can_load=True)
        loader = SampleLoader(stream, lake)
        follower = Follower(BatchLimits(max_messages=BATCH_MESSAGES), stream, lake, loader)
        with closing(follower):
            while follower.step(None):
                pass
            applied = {one.table: lake.states.get(one.table) for one in placed}
            if load:
                reach_end(follower, rig.nats)
        return applied, {one.table: lake.states.get(one.table) for one in placed}


def test_no_statement_makes_a_mirror_differ_silently(
    connection: Connection,
    postgres: EmbeddedPostgres,
    nats: EmbeddedNats,
    rig: LakeRig,
    tmp_path: Path,
) -> None:
    """Equal without a snapshot if it can be, else by a snapshot that it visibly waits for."""
    placed = choose()
    with Rig(connection, postgres, nats, tmp_path) as bridge:
        pipeline = DdlPipeline(bridge, postgres.dsn(connection.info.dbname), placed)
        pipeline.begin()
        pipeline.settle()
        begun, _ = apply(rig, placed, load=False)
        assert all(state.is_live for state in begun.values())
        pipeline.alter()
        pipeline.settle()

        applied, loaded = apply(rig, placed, load=True)

    wrong = [
        f"{one.case.id}: expected {one.case.expected}, is {state.kind} ({state.reason})"
        for one in placed
        if (state := applied[one.table]).kind not in KINDS[one.case.expected]
    ]
    names = {one.table: one.case.id for one in placed if one.case.is_compared}
    live = [table for table in names if loaded[table].is_live]
    found = differences(rig, pipeline.dsn, live)
    wrong += [f"{names[table]}: SILENTLY DIFFERENT: {what}" for table, what in found.items()]
    assert not wrong, "\n".join(wrong)


def differences(rig: LakeRig, dsn: str, tables: Sequence[TableName]) -> dict[TableName, str]:
    """Say how mirrors differ from PostgreSQL; those that are equal are not named."""
    options = PostgresOptions(host="", port=0, database="", user="", dsn=dsn, publication="pub")
    found: dict[TableName, str] = {}
    with LakeReader(rig.catalog, rig.warehouse) as lake, Source.open(options, tables) as source:
        book = lake.cuts()
        cut = book.cuts()[-1]
        for table in tables:
            relation = source.relation(table)
            assert relation is not None, table
            try:
                mirror = MirrorAtCut(lake, book, cut, table)
                findings = TableCheck(source, relation, mirror, lambda *_: None).run(5)
            except LakeError as error:
                found[table] = str(error)
                continue
            # Columns that the publication leaves out are in no schema, and not in the mirror.
            told = {column.position for column in mirror.shape.columns}
            if findings.differences or told != set(mirror.columns):
                found[table] = f"{findings.differences[:3]}, lacks {findings.absent}"
    return found

"""A storm over everything at once: whatever happens, the lake is what PostgreSQL says.

All kinds of DDL and DML, transactions of every size, snapshots in the middle, kills of every
program. `STORM_SEED` repeats a storm and `STORM_STEPS` sets its length; with `STORM_MINUTES` storms
follow each other, each with the next seed, until the time is over.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.embedded import temporary_folder
from tests.storm.actions import ACTIONS
from tests.storm.driver import Plan, brewing

SEEDS = (2,)
"""The short form always runs these."""

STEPS = int(os.environ.get("STORM_STEPS", "40"))
MINUTES = float(os.environ.get("STORM_MINUTES", "0"))
CAPABILITIES = frozenset(action.needs for action in ACTIONS if action.needs)
"""Kinds of actions that can be left out by `STORM_OFF`, to narrow a failure down."""

OFF = frozenset(filter(None, os.environ.get("STORM_OFF", "").split(",")))


def plans() -> Iterator[Plan]:
    """The storms of this run: a few that are always the same, or as many as there is time for."""
    given = os.environ.get("STORM_SEED")
    if given is None and not MINUTES:
        yield from (plan(seed) for seed in SEEDS)
        return
    seed = int(given or random.SystemRandom().randrange(1_000_000))
    yield plan(seed)
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        seed += 1
        yield plan(seed)


def plan(seed: int) -> Plan:
    return Plan(
        seed=seed,
        steps=STEPS,
        pause_seconds=0.15,
        disturbances=max(5, STEPS // 18),
        sampled_cuts=12,
        capabilities=CAPABILITIES - OFF,
    )


def test_the_lake_is_what_postgresql_says(tmp_path: Path) -> None:
    """Mirrors, cuts and change logs; never silently different."""
    for chosen in plans():
        print(f"STORM_SEED={chosen.seed} STORM_STEPS={chosen.steps}")
        folder = tmp_path / str(chosen.seed)
        folder.mkdir()
        with temporary_folder() as servers, brewing(chosen, servers, folder) as storm:
            storm.rage()
            storm.quiesce()
            findings = storm.judge() + storm.verify()

            if findings:
                pytest.fail(storm.report(findings), pytrace=False)
            assert storm.succeeded() >= 0.7, "most statements failed: the storm is none"
            assert storm.lake.terminate() == 0, storm.lake.said()[-3000:]
            print(storm.report([]))

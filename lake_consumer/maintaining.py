"""Care of the lake as a command, and in rounds between the batches of `run`.

In `run` a round is due every so often, takes no longer than its budget, and a failure of it is told
and not fatal: following goes on, and the next round tries again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from lake_consumer.care import CareOptions
from lake_consumer.errors import LakeError, UnknownTable
from lake_consumer.iceberg.maintenance import ORPHANS, STEPS, Caretaker, Done
from lake_consumer.iceberg.names import CUTS, LakeName, log_of, mirror_of
from lake_consumer.logs import info, warn
from lake_consumer.metrics import Meter
from schemas.names import TableName

ORPHANS_EVERY_SECONDS = 86_400.0
FEW_SMALL_FILES = 5
"""Whoever asks for care by hand gets it sooner than `run` would give it."""


def maintain(
    spark: SparkSession, options: CareOptions, tables: Sequence[str], *, known: Sequence[LakeName]
) -> bool:
    """Care for some tables, or all; True when everything is done within the budget."""
    wanted = _wanted(tables, known)
    options = replace(options, small_files=min(options.small_files, FEW_SMALL_FILES))
    began = time.monotonic()
    finished = Caretaker(spark, options, tell).care(wanted, steps=(*STEPS, ORPHANS))
    info(
        "maintained" if finished else "out of time, the rest is left for the next time",
        tables=len(wanted or known),
        seconds=time.monotonic() - began,
    )
    return finished


def _wanted(tables: Sequence[str], known: Sequence[LakeName]) -> list[LakeName]:
    wanted = []
    for text in tables:
        name = TableName.parse(text)
        found = [place for place in (mirror_of(name), log_of(name)) if place in known]
        if not found:
            raise UnknownTable(f"the lake has no table {name}")
        wanted += found
    # Which snapshots a table may lose is decided by the cuts, so those are cared for as well.
    return [CUTS, *wanted] if wanted and CUTS in known else wanted


def tell(done: Done) -> None:
    info(
        done.step if done.is_finished else f"{done.step}: out of time, goes on next time",
        table=done.table,
        seconds=done.seconds,
        **done.figures,
    )


class Rounds:
    """Care between batches."""

    def __init__(self, caretaker: Caretaker, meter: Meter) -> None:
        self._caretaker = caretaker
        self._meter = meter
        self._due = time.monotonic() + caretaker.options.interval_seconds
        self._orphans_due = time.monotonic() + ORPHANS_EVERY_SECONDS

    @classmethod
    def begin(cls, options: CareOptions, meter: Meter) -> Rounds:
        """Begin on the session that is there."""
        spark = SparkSession.getActiveSession()
        if spark is None:
            raise LakeError("there is no Spark session to care for the lake with")
        return cls(Caretaker(spark, options, tell), meter)

    def between_batches(self) -> None:
        """Care for the lake if a round is due; what is left over is taken up by the next one."""
        interval = self._caretaker.options.interval_seconds
        now = time.monotonic()
        if not interval or now < self._due:
            return
        with_orphans = now >= self._orphans_due
        failed = False
        try:
            done = self._caretaker.care(steps=(*STEPS, ORPHANS) if with_orphans else STEPS)
            if done and with_orphans:
                self._orphans_due = now + ORPHANS_EVERY_SECONDS
        except LakeError as error:
            failed = True
            warn("care of the lake failed and is tried again", reason=error, remedy=error.advice)
        self._meter.cared(time.monotonic() - now, failed=failed)
        self._due = time.monotonic() + interval

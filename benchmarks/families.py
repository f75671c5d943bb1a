"""Every benchmark there is: one module per family, one line here."""

from __future__ import annotations

from benchmarks import (
    compression,
    drain,
    growth,
    lake,
    lakeload,
    maintain,
    snapshot,
    steady,
    storing,
)
from benchmarks.scenario import Family, Scenario

FAMILIES: tuple[Family, ...] = (
    drain.FAMILY,
    storing.FAMILY,
    steady.FAMILY,
    growth.OVER_CHANGES,
    growth.OVER_TABLES,
    snapshot.FAMILY,
    compression.FAMILY,
    lake.FAMILY,
    lakeload.FAMILY,
    maintain.FAMILY,
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for family in FAMILIES for scenario in family.scenarios
}

"""Every benchmark there is: one module per family, one line here."""

from __future__ import annotations

from benchmarks import drain, maintain
from benchmarks.scenario import Family, Scenario

FAMILIES: tuple[Family, ...] = (drain.FAMILY, maintain.FAMILY)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for family in FAMILIES for scenario in family.scenarios
}

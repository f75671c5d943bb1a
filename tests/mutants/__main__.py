"""`make mutants`: how many small faults in the deciding modules do their tests see?

Mutants are tried in an order that the seed decides, until all are tried or the time is up; what was
tried is the sample that the figure is of. Survivors that no test can see, because they change
nothing, are listed with the reason in `survivors.toml`. Everything else that survives is printed,
and below the wanted share the exit code is 1.

No tool of others: mutmut leaves out decorated functions, so every property of our value classes,
and cosmic-ray starts an interpreter per mutant, which costs more than most of these tests; neither
has a time budget, a sample or a limit.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.targets import TARGETS
from tests.mutants.trial import end, import_libraries, measure, source_of, start

WANTED = 0.9
SURVIVORS = Path(__file__).with_name("survivors.toml")
PATIENCE = 20
"""A machine that is busy takes its time: so much longer than a processor's seconds is hung."""


@dataclass
class Score:
    """What became of the mutants that were tried."""

    killed: Counter[str] = field(default_factory=Counter)
    survived: list[Mutant] = field(default_factory=list)

    def share(self) -> float:
        tried = self.killed.total() + len(self.survived)
        return self.killed.total() / tried if tried else 0.0


class Trials:
    """Runs trials concurrently and collects what came out."""

    def __init__(self, limits: dict[str, float], concurrent: int) -> None:
        self._limits = limits
        self._concurrent = concurrent
        self._running: dict[int, tuple[Mutant, float]] = {}
        self.score = Score()

    def start(self, mutant: Mutant) -> None:
        while len(self._running) >= self._concurrent:
            self._collect()
        limit = self._limits[mutant.module]
        child = start(TARGETS[mutant.module], mutant, math.ceil(limit))
        self._running[child] = (mutant, time.monotonic() + PATIENCE * limit)

    def finish(self) -> None:
        while self._running:
            self._collect()

    def _collect(self) -> None:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            mutant, _ = self._running.pop(child)
            if status:
                self.score.killed[mutant.module] += 1
            else:
                self.score.survived.append(mutant)
                print(f"survived  {mutant.module}  {mutant.name}", flush=True)
            return
        for late in [c for c, (_, limit) in self._running.items() if time.monotonic() > limit]:
            end(late)
        time.sleep(0.005)


def read_excused() -> set[tuple[str, str]]:
    """Survivors that change nothing, by module and name."""
    listed = tomllib.loads(SURVIVORS.read_text())
    return {(module, name) for module, names in listed.items() for name in names}


def choose(modules: list[str], excused: set[tuple[str, str]], seed: int) -> list[Mutant]:
    found = [mutant for module in modules for mutant in mutants_of(module, source_of(module))]
    unknown = {
        (module, name)
        for module, name in excused - {(mutant.module, mutant.name) for mutant in found}
        if module in modules
    }
    if unknown:
        raise SystemExit(f"{SURVIVORS.name} lists mutants that do not exist: {sorted(unknown)}")
    chosen = [mutant for mutant in found if (mutant.module, mutant.name) not in excused]
    random.Random(seed).shuffle(chosen)
    return chosen


def report(score: Score, left: int, excused: int) -> None:
    print()
    survived = Counter(mutant.module for mutant in score.survived)
    for module in sorted({*score.killed, *survived}):
        print(f"{module:40} killed {score.killed[module]:4}  survived {survived[module]:3}")
    print(
        f"\n{score.share():.1%} killed: {score.killed.total()} of"
        f" {score.killed.total() + len(score.survived)} mutants; {left} not tried,"
        f" {excused} listed as equivalent"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules to mutate (default: all)")
    parser.add_argument("--minutes", type=float, default=15.0, help="time budget (default: 15)")
    parser.add_argument("--seed", type=int, default=14, help="order of the mutants (default: 14)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    import_libraries()
    modules = options.modules or sorted(TARGETS)
    excused = read_excused()
    mutants = choose(modules, excused, options.seed)
    seconds = {tests: measure(tests) for tests in {TARGETS[module] for module in modules}}
    limits = {module: 2 + 5 * seconds[TARGETS[module]] for module in modules}
    # The budget is for mutants: a busy machine takes long to run all tests once without any.
    deadline = time.monotonic() + 60 * options.minutes
    trials = Trials(limits, options.jobs)
    tried = 0
    for mutant in mutants:
        if time.monotonic() > deadline:
            break
        trials.start(mutant)
        tried += 1
    trials.finish()
    report(trials.score, len(mutants) - tried, len(excused))
    return int(trials.score.share() < WANTED)


if __name__ == "__main__":
    raise SystemExit(main())

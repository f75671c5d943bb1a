"""The doctor: judges what was found on both servers. Pure; it neither asks nor changes anything.

Facts come from `postgres/survey.py` and `jetstream/survey.py`. Each row of `CHECKS` reads them and
gives findings: `ok`, `warn` (the bridge works, a promise is weaker than it could be) or `fail` (it
cannot start, or one of its tasks cannot be done), the latter two with what to do. A server that
could not be asked is one failure, and the rows about it are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridge.doctor.findings import Check, Finding, Said, passes, render, to_map
from bridge.doctor.sink import SINK_CHECKS
from bridge.doctor.source import SOURCE_CHECKS
from bridge.facts import ClockReading, Facts, SinkFacts, SourceFacts

__all__ = ["CHECKS", "Finding", "examine", "passes", "render", "to_map"]

CLOCK_TOLERANCE_SECONDS = 2.0


def _clocks(facts: Facts) -> Iterator[Said]:
    if isinstance(facts.source, SourceFacts):
        yield judge_clock("PostgreSQL", facts.source.clock)
    if isinstance(facts.sink, SinkFacts) and facts.sink.clock:
        yield judge_clock("NATS", facts.sink.clock)


def judge_clock(server: str, clock: ClockReading) -> Said:
    """Positions and order do not depend on clocks; ages, lags and expiry do."""
    off = abs(clock.ahead_seconds)
    if off - clock.uncertainty_seconds > CLOCK_TOLERANCE_SECONDS:
        way = "ahead of" if clock.ahead_seconds > 0 else "behind"
        return Said("warn", f"{server} is {off:.1f} s {way} this machine: ages and lags are wrong"
                    " by as much", "Let both follow an NTP server.", server)  # fmt: skip
    within = max(off, clock.uncertainty_seconds)
    return Said("ok", f"{server} and this machine agree within {within:.1g} s", about=server)


CHECKS = (*SOURCE_CHECKS, *SINK_CHECKS, Check("clock", _clocks))


def examine(facts: Facts) -> list[Finding]:
    """Let every row judge, in the table's order."""
    findings = []
    for check in CHECKS:
        answer = check.judge(facts)
        for said in [answer] if isinstance(answer, Said) else answer:
            name = f"{check.name} {said.about}".strip()
            findings.append(
                Finding(verdict=said.verdict, check=name, what=said.what, remedy=said.remedy)
            )
    return findings

"""What a check says, for people and for machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.facts import Facts, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says about one thing."""

    verdict: Verdict
    check: str
    what: str
    remedy: str = ""

    def to_map(self) -> dict[str, str]:
        return {
            "verdict": self.verdict,
            "check": self.check,
            "what": self.what,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Said:
    """A judgement before it is given its check's name."""

    verdict: Verdict
    what: str
    remedy: str = ""
    about: str = ""


Answer = Said | Iterable[Said]


@dataclass(frozen=True, slots=True)
class Check:
    """One row: its name, and the function that judges."""

    name: str
    judge: Callable[[Facts], Answer]


def passes(findings: Iterable[Finding]) -> bool:
    """Warnings do not keep the bridge from its work; a failure does."""
    return all(finding.verdict != "fail" for finding in findings)


def render(findings: Sequence[Finding]) -> str:
    """Write one line per finding, its remedy at the end, and a last line that counts."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = [
        f"{finding.verdict:<5} {finding.check:<{width}}  {finding.what}"
        + (f" -> {finding.remedy}" if finding.remedy else "")
        for finding in findings
    ]
    return "\n".join([*lines, summary(findings)])


def summary(findings: Sequence[Finding]) -> str:
    counts = dict.fromkeys(("ok", "warn", "fail"), 0)
    for finding in findings:
        counts[finding.verdict] += 1
    return f"{counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counts['fail']} failed"


def to_map(findings: Sequence[Finding]) -> dict[str, Any]:
    """Give the same for machines."""
    return {"passes": passes(findings), "findings": [finding.to_map() for finding in findings]}


def quoted(name: str) -> str:
    """Quote an SQL name."""
    return '"' + name.replace('"', '""') + '"'


def mebibytes(size: int) -> str:
    """Write a size for people."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return f"{size} B"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

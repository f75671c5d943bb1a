"""What `verify` says: a line per table, the rows that differ, and how far it is meanwhile."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TextIO

from lake_consumer import terminal
from lake_consumer.cuts import Cut
from lake_consumer.iceberg.mirrorrows import Layout, MirrorAtCut
from lake_consumer.verify.canonical import Row, shown
from lake_consumer.verify.rows import MEANINGS, Difference
from lake_consumer.verify.table import Findings, Told
from schemas.names import TableName

SHOWN_WIDTH = 120
TOLD_EVERY_SECONDS = {True: 0.2, False: 10.0}
"""How often progress is told: on a terminal, and anywhere else."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """The verdict on one table."""

    table: TableName
    cut: Cut
    findings: Findings | None = None
    at: MirrorAtCut | None = None
    seconds: float = 0.0
    skipped: str = ""
    matters: bool = True
    healed: bool = False
    lost: str = ""
    """Why the lake has no table to compare, although the database publishes it."""

    def skip(self, why: str, *, matters: bool) -> TableReport:
        return replace(self, skipped=why, matters=matters)

    def lose(self, why: str) -> TableReport:
        return replace(self, lost=why)

    def found(self, findings: Findings, mirror: MirrorAtCut, seconds: float) -> TableReport:
        return replace(self, findings=findings, at=mirror, seconds=seconds)

    def mark_healed(self) -> TableReport:
        return replace(self, healed=True)

    @property
    def differs(self) -> bool:
        return bool(self.lost) or self.can_heal

    @property
    def can_heal(self) -> bool:
        """Whether rows differ, which can be written anew one by one."""
        return self.findings is not None and bool(self.findings.differing)

    @property
    def differences(self) -> Sequence[Difference]:
        return self._findings.differences

    @property
    def layout(self) -> Layout:
        return self._findings.layout

    @property
    def mirror(self) -> MirrorAtCut:
        if self.at is None:
            raise ValueError(f"{self.table} was not compared")
        return self.at

    @property
    def _findings(self) -> Findings:
        if self.findings is None:
            raise ValueError(f"{self.table} was not compared")
        return self.findings

    @property
    def verdict(self) -> str:
        if self.skipped:
            return "skipped"
        return "differs" if self.differs else "equal"

    def document(self, limit: int) -> dict[str, Any]:
        """For programs."""
        head: dict[str, Any] = {
            "table": str(self.table), "verdict": self.verdict, "lsn": str(self.cut.commit_lsn),
            "commit_ts": self.cut.commit_ts.isoformat(),
        }  # fmt: skip
        if why := self.skipped or self.lost:
            return {**head, "reason": why}
        found = self._findings
        return {
            **head,
            "rows": found.rows,
            "lake_rows": found.lake_rows,
            "ranges": len(found.ranges),
            "differing_ranges": len(found.differing),
            "examined_ranges": found.examined,
            "replayed_changes": found.replayed,
            "columns_not_in_the_lake": list(found.absent),
            "seconds": round(self.seconds, 3),
            "differences": [self._document(item) for item in found.differences[:limit]],
            "differences_found": len(found.differences),
        }

    def _document(self, difference: Difference) -> dict[str, Any]:
        names = [column.name for column in self.layout.key_columns]
        return {
            "key": dict(zip(names, map(shown, difference.key), strict=True)),
            "kind": difference.kind,
            "columns": difference.columns(self.layout.names),
        }

    def lines(self, limit: int) -> list[str]:
        """For people."""
        if self.skipped:
            return [f"{self.table}  skipped: {self.skipped}"]
        if self.lost:
            return [f"{self.table}  DIFFERS: {self.lost}"]
        found = self._findings
        head = (
            f"{self.table}  {self.verdict.upper() if self.differs else 'equal'}: {found.rows:,} "
            f"rows in {len(found.ranges):,} key ranges at {self.cut.commit_lsn}"
            f" ({self.seconds:.1f} s, {found.replayed:,} changes replayed)"
        )
        lines = [head]
        if found.absent:
            names = ", ".join(found.absent)
            lines.append(f"  not in the lake yet, as no row changed since: {names}")
        if self.differs:
            lines.append(
                f"  {len(found.differing):,} ranges differ; the lake has {found.lake_rows:,} rows"
            )
            lines += [self._line(difference) for difference in found.differences[:limit]]
            lines += self._rest(found, limit)
        return lines

    def _line(self, difference: Difference) -> str:
        names = [column.name for column in self.layout.key_columns]
        key = _row(names, difference.key)
        columns = difference.columns(self.layout.names)
        values = "; ".join(
            f"{name}: PostgreSQL {_short(both['postgres'])}, lake {_short(both['lake'])}"
            for name, both in columns.items()
        )
        return f"  {key}  {MEANINGS[difference.kind]}{': ' + values if values else ''}"

    def _rest(self, found: Findings, limit: int) -> list[str]:
        more = max(0, len(found.differences) - limit)
        left = len(found.differing) - found.examined
        parts = [f"{more:,} more rows"] if more else []
        parts += [f"{left:,} more ranges that were not looked into"] if left else []
        return [f"  and {' and '.join(parts)}"] if parts else []


def _row(names: Sequence[str], key: Row) -> str:
    return ", ".join(f"{n}={_short(shown(value))}" for n, value in zip(names, key, strict=True))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_WIDTH else text[: SHOWN_WIDTH - 1] + "…"


class Output(Protocol):
    """Where verdicts go: a file, or the module `terminal`, which tells what keeps them from it."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class Printer:
    """Writes verdicts to standard output, and progress to standard error."""

    def __init__(self, limit: int, *, as_json: bool, out: Output, err: TextIO) -> None:
        self._limit = limit
        self._as_json = as_json
        self._out = out
        self._err = err
        self._told = time.monotonic()
        self._is_line_open = False

    def table(self, report: TableReport) -> None:
        self._close_line()
        if self._as_json:
            lines = [json.dumps(report.document(self._limit), ensure_ascii=False)]
        else:
            lines = report.lines(self._limit)
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()

    def healed(self, report: TableReport) -> None:
        rows = len(report.differences)
        if self._as_json:
            line = json.dumps({"table": str(report.table), "verdict": "healed", "rows": rows})
        else:
            line = f"{report.table}  healed: {rows:,} rows are as PostgreSQL has them"
        self._out.write(line + "\n")
        self._out.flush()

    def progress(self, table: str) -> Told:
        is_terminal = self._err.isatty()

        def tell(side: str, rows: int, about: int) -> None:
            if time.monotonic() - self._told < TOLD_EVERY_SECONDS[is_terminal]:
                return
            self._told = time.monotonic()
            share = f" of about {about:,}" if about > rows else ""
            text = f"{table}: {rows:,}{share} rows read from {side}"
            self._err.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
            self._err.flush()
            self._is_line_open = is_terminal

        return tell

    def _close_line(self) -> None:
        if self._is_line_open:
            self._err.write("\r\x1b[K")
            self._is_line_open = False


def terminal_printer(limit: int, *, as_json: bool) -> Printer:
    return Printer(limit, as_json=as_json, out=terminal, err=sys.stderr)

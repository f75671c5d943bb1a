"""`lake-consumer verify`: is the lake what the database is, and if not, where.

All tables are compared at one cut. PostgreSQL keeps one snapshot open for as long as that takes,
which holds back its vacuum; name a few tables where that matters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lake_consumer.app import session_options
from lake_consumer.config import LakeConfig
from lake_consumer.cuts import Cut, CutBook
from lake_consumer.errors import (
    HealRefused,
    LakeDiffers,
    LakeError,
    LakeNotThere,
    UnknownTable,
    WrongDatabase,
)
from lake_consumer.iceberg.healing import Healer
from lake_consumer.iceberg.mirrorrows import MirrorAtCut
from lake_consumer.iceberg.names import (
    VERIFICATIONS,
    log_of,
    mirror_of,
    table_of_mirror,
)
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.jetstream.owners import read_owners
from lake_consumer.jetstream.quiet import is_quiet_up_to
from lake_consumer.natsoptions import NatsOptions
from lake_consumer.postgres.source import Source
from lake_consumer.session import open_session
from lake_consumer.tablestates import TableState, describe_gone
from lake_consumer.verifications import Verification, verification_properties
from lake_consumer.verify.report import Printer, TableReport, terminal_printer
from lake_consumer.verify.table import TableCheck
from schemas.names import TableName
from schemas.positions import Lsn

SHOWN = 20
HEALED_AT_ONCE = 100_000
ATTEMPTS = 3
LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What to compare, and what to do about differences."""

    tables: tuple[str, ...] = ()
    heal: bool = False
    shown: int = SHOWN
    patience_seconds: float = 120


def verify(
    config: LakeConfig,
    tables: Sequence[str],
    *,
    heal: bool,
    shown: int,
    patience: float,
    as_json: bool,
) -> None:
    options = VerifyOptions(tables=tuple(tables), heal=heal, shown=shown, patience_seconds=patience)
    printer = terminal_printer(shown, as_json=as_json)
    Verifier(
        config, options, printer, lambda: open_session(session_options(config, short=True))
    ).run()


class Verifier:
    """Compares a lake with its database."""

    def __init__(
        self,
        config: LakeConfig,
        options: VerifyOptions,
        printer: Printer,
        open_spark: Callable[[], SparkSession],
    ) -> None:
        self._config = config
        self._options = options
        self._printer = printer
        self._open_spark = open_spark
        self._lake = LakeReader(config.catalog, config.warehouse)

    def run(self) -> None:
        """Compare every table asked for; raises `LakeDiffers` where one is not equal."""
        try:
            self._run()
        finally:
            self._lake.close()

    def _run(self) -> None:
        wanted = choose(self._options.tables, mirrored(self._lake))
        named = bool(self._options.tables)
        gone = {t: s for t, s in self._gone().items() if t in wanted or not named}
        lost = self._await_back([t for t, s in gone.items() if named or not s.is_forgotten])
        gone = {t: s for t, s in self._gone().items() if t in gone}
        tables = [table for table in wanted if table not in gone]
        # One that is gone since its first load has no mirror.
        listed = [*wanted, *(table for table in sorted(lost) if table not in wanted)]
        reports = [*self._tell_gone(listed, gone, lost), *(self._compare(tables) if tables else [])]
        if self._options.heal:
            reports = [self._heal(report) if report.can_heal else report for report in reports]
        self._keep(reports)
        wrong = [str(report.table) for report in reports if report.differs and not report.healed]
        if wrong:
            raise LakeDiffers(f"{len(wrong)} of {len(reports)} tables differ: {', '.join(wrong)}")
        unknown = [str(report.table) for report in reports if report.skipped and report.matters]
        if unknown:
            raise LakeNotThere(
                f"{', '.join(unknown)} cannot be compared", advice="See the reasons above."
            )

    def _keep(self, reports: Sequence[TableReport]) -> None:
        """Leave the verdicts in the lake, for `status` and for the metrics of `run`."""
        now = datetime.now(UTC)
        found = [
            (report.table, Verification(now, verdict, str(report.cut.commit_lsn)))
            for report in reports
            if (verdict := "healed" if report.healed else report.verdict) != "skipped"
        ]
        if not found:
            return
        try:
            self._lake.set_properties(VERIFICATIONS, verification_properties(found))
        except Exception as error:
            # A reader of the lake may compare it, and need not be able to write to it.
            sys.stderr.write(f"the verdicts cannot be kept in the lake: {error}\n")

    def _gone(self) -> dict[TableName, TableState]:
        return {t: s for t, s in self._lake.states().items() if s.is_gone}

    def _await_back(self, gone: Sequence[TableName]) -> set[TableName]:
        """Give those of the tables that PostgreSQL publishes, and that stay gone in the lake.

        One may just have come back: the lake has as long to follow as it has to reach a cut.
        """
        if not gone:
            return set()
        with Source.open(self._config.postgres, ()) as source:
            lost = source.published().intersection(gone)
            self._check_database(source, sorted(lost))
        deadline = time.monotonic() + self._options.patience_seconds
        while (lost := lost.intersection(self._gone())) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_SECONDS)
        return lost

    def _tell_gone(
        self,
        wanted: Sequence[TableName],
        gone: Mapping[TableName, TableState],
        lost: Collection[TableName],
    ) -> list[TableReport]:
        """Report tables that are gone; that is a failure if they were named, or are published."""
        named = bool(self._options.tables)
        listed = [t for t in wanted if t in gone and (named or not gone[t].is_forgotten)]
        if not listed:
            return []
        cut = self._lake.cuts().at(None)
        reports = [
            TableReport(t, cut).lose(
                f"PostgreSQL publishes it; here it is {describe_gone(gone[t])}"
            )
            if t in lost
            else TableReport(t, cut).skip(describe_gone(gone[t]), matters=named)
            for t in listed
        ]
        for report in reports:
            self._printer.table(report)
        return reports

    def _compare(self, tables: Sequence[TableName]) -> list[TableReport]:
        with Source.open(self._config.postgres, tables) as source:
            self._check_database(source, tables)
            book, cut = await_cut(
                self._lake, self._config.nats, source.mark(), self._options.patience_seconds
            )
            reports = []
            for table in tables:
                reports.append(self._check(source, book, cut, table))
                self._printer.table(reports[-1])
            return reports

    def _check_database(self, source: Source, tables: Sequence[TableName]) -> None:
        """Make sure that these tables come from this database: only then can positions be told."""
        asked, owners = source.identity(), {}
        # Without NATS nobody can say; the rows will.
        with suppress(LakeError):
            owners = read_owners(self._config.nats, tables)
        for table, owner in owners.items():
            if not owner.startswith(f"{asked}/"):
                raise WrongDatabase(
                    f"{table} came into the stream from database {owner}, and not from {asked}, "
                    f"which is {self._config.postgres.database} at {self._config.postgres.host}"
                )

    def _check(self, source: Source, book: CutBook, cut: Cut, table: TableName) -> TableReport:
        began = time.monotonic()
        report = TableReport(table, cut)
        try:
            relation = source.relation(table)
            mirror = MirrorAtCut(self._lake, book, cut, table)
        except LakeError as error:
            return report.skip(str(error), matters=True)
        if relation is None:
            return report.skip("the database has no such table", matters=True)
        if not mirror.shape.key:
            return report.skip("it has no key, so it has no mirror", matters=False)
        check = TableCheck(source, relation, mirror, self._printer.progress(str(table)))
        findings = check.run(None if self._options.heal else self._options.shown)
        return report.found(findings, mirror, time.monotonic() - began)

    def _heal(self, report: TableReport) -> TableReport:
        """Write the rows that differ anew; look again where the table moved on meanwhile."""
        healer = Healer(self._open_spark())
        table = report.table
        for attempt in range(ATTEMPTS):
            if not report.differs:
                return report
            differences = report.differences
            if len(differences) > HEALED_AT_ONCE:
                raise HealRefused(
                    f"{len(differences):,} rows of {table} differ, more than are healed by row",
                    advice=f"Rebuild the table: `lake-consumer resync {table}`.",
                )
            with suppress(HealRefused):
                healer.heal(table, report.mirror, report.layout, differences, report.cut)
                healed = report.mark_healed()
                self._printer.healed(healed)
                return healed
            if attempt < ATTEMPTS - 1:
                self._lake.close()
                self._lake = LakeReader(self._config.catalog, self._config.warehouse)
                (report,) = self._compare([table])
        raise HealRefused(f"{table} was written by others each time it was to be healed")


def mirrored(lake: LakeReader) -> list[TableName]:
    """The tables that have a mirror."""
    tables = map(table_of_mirror, lake.names())
    return [table for table in tables if table is not None]


def choose(wanted: Sequence[str], known: Sequence[TableName]) -> list[TableName]:
    """The tables that were named, or all."""
    chosen = [TableName.parse(text) for text in wanted]
    for table in chosen:
        if table not in known:
            raise UnknownTable(f"the lake has no mirror {mirror_of(table)} (log {log_of(table)})")
    return chosen or list(known)


def await_cut(
    lake: LakeReader, nats: NatsOptions, mark: Lsn, patience: float
) -> tuple[CutBook, Cut]:
    """Wait for a cut that has everything up to the mark."""
    deadline = time.monotonic() + patience
    while True:
        book = lake.cuts()
        cuts = book.cuts()
        if found := next((cut for cut in cuts if cut.commit_lsn >= mark), None):
            return book, found
        if cuts and _is_quiet(nats, cuts[-1].stream_seq, mark):
            return book, cuts[-1]
        if time.monotonic() > deadline:
            newest = cuts[-1] if cuts else "none"
            raise LakeNotThere(
                f"the lake has no cut at {mark} or behind it after {patience:.0f} s; "
                f"its newest is {newest}"
            )
        time.sleep(0.5)


def _is_quiet(nats: NatsOptions, applied: int, mark: Lsn) -> bool:
    # Without NATS a cut may still come; then nothing needs to be asked of the stream.
    with suppress(LakeError):
        return is_quiet_up_to(nats, applied, mark)
    return False

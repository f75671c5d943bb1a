"""Options of maintenance, as rows of the option table."""

from __future__ import annotations

from datetime import timedelta

from lake_consumer.care import CareOptions
from lake_consumer.errors import BadOption
from lake_consumer.options import Numbers, Option, Values

OFF = "off"

CARE_OPTIONS = (
    Option(name="maintain_interval", flag="--maintain-interval", env="LAKE_MAINTAIN_INTERVAL",
           default="600",
           help="seconds between two rounds of maintenance in `run`, or off"),
    Option(name="maintain_budget", flag="--maintain-budget", env="LAKE_MAINTAIN_BUDGET",
           default="30", help="seconds that one such round may take, at most"),
    Option(name="small_files", flag="--small-files", env="LAKE_SMALL_FILES", default="20",
           help="small files of a table that make it due for compaction in `run`"),
    Option(name="delete_ratio", flag="--delete-ratio", env="LAKE_DELETE_RATIO", default="0.1",
           help="share of deleted rows in a table's files that makes it due"),
    Option(name="keep_days", flag="--keep-days", env="LAKE_KEEP_DAYS", default="7",
           help="days for which cuts stay readable, one an hour"),
    Option(name="keep_cuts", flag="--keep-cuts", env="LAKE_KEEP_CUTS", default="500",
           help="newest cuts that all stay readable"),
    Option(name="orphan_days", flag="--orphan-days", env="LAKE_ORPHAN_DAYS", default="3",
           help="age of a file that no snapshot knows before it is removed; at least 1"),
)  # fmt: skip


def care_options(values: Values, number: Numbers) -> CareOptions:
    days = number("orphan_days", float)
    if days < 1:
        raise BadOption(
            f"files may not be taken for orphans after {days} days",
            advice="Set LAKE_ORPHAN_DAYS to 1 or more: a writer may still be about to use them.",
        )
    interval = 0.0
    if values["maintain_interval"] != OFF:
        interval = number("maintain_interval", float)
    return CareOptions(
        interval_seconds=interval,
        budget_seconds=number("maintain_budget", float),
        small_files=number("small_files", int),
        delete_ratio=number("delete_ratio", float),
        keep=timedelta(days=number("keep_days", float)),
        keep_cuts=number("keep_cuts", int),
        orphan_age=timedelta(days=days),
    )

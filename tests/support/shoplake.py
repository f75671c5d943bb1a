"""The lake of a shop: what its tables hold after a fork, and what they should."""

from __future__ import annotations

from lake_consumer.iceberg.reading import open_catalog
from tests.support.lakeprocess import LakeProcess
from tests.support.shop import FORK, alive
from tests.support.stream import StoredMessage


def run_lake(lake: LakeProcess, *command: str) -> None:
    done = lake.command(*command)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


def mirrored_rows(lake: LakeProcess) -> list[tuple[object, ...]]:
    """The mirror as PostgreSQL would give the table, by id; without the lake's own columns."""
    mirror = open_catalog(lake.catalog, lake.warehouse).load_table("public.users")
    rows = mirror.scan().to_arrow()
    rows = rows.select([name for name in rows.column_names if not name.startswith("_")])
    return [tuple(row.values()) for row in rows.sort_by("id").to_pylist()]


def logged_forks(lake: LakeProcess) -> dict[int, int | None]:
    """By stream sequence: the fork that made the change invalid, as the change log says."""
    log = open_catalog(lake.catalog, lake.warehouse).load_table("public__changes.users")
    rows = log.scan().to_arrow().select(["stream_seq", "fork_seq"]).to_pylist()
    assert len(rows) == len({row["stream_seq"] for row in rows})
    return {row["stream_seq"]: row["fork_seq"] for row in rows}


def expected_forks(messages: list[StoredMessage]) -> dict[int, int | None]:
    [mark] = [m.sequence for m in messages if m.subject == FORK]
    left = {m.sequence for m in alive(messages)}
    changes = [m.sequence for m in messages if m.is_change]
    return {sequence: None if sequence in left else mark for sequence in changes}

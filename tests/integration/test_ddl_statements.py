"""Every kind of DDL, as the stream tells it: a mirror by the contract is equal or knows it is not.

All statements of `ddlcases` run on one bridge, each on its own table, while a writer changes rows.
A model of a consumer follows the stream; PostgreSQL judges what it shows. `test_lake_ddl` does the
same with the lake itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.values import SESSION_SETTINGS
from tests.conftest import Connection
from tests.support.ddlcases import CASES, KNOWN_GAPS, Expected
from tests.support.ddlpipeline import DdlPipeline, Placed, place
from tests.support.modelmirror import ModelMirror, Row, expected_rows, follow
from tests.support.rig import Rig
from tests.support.stream import read_stream

KINDS: Mapping[Expected, set[str]] = {
    "equal": {"live"},
    "reloads": {"loading"},
    "either": {"live", "loading", "parked"},
    "no key": {"parked"},
    "gone": {"live", "loading", "parked", "gone"},
}


def test_the_stream_says_all_that_a_mirror_must_know(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> None:
    """Equal without a snapshot if it can be; if not, `rewritten` or the schema says so."""
    assert len(CASES) > 200
    placed = place()
    with Rig(connection, postgres, nats, tmp_path) as bridge:
        pipeline = DdlPipeline(bridge, postgres.dsn(connection.info.dbname), placed)
        pipeline.begin()
        pipeline.settle()
        pipeline.alter()
        pipeline.settle()
        stored = read_stream(nats.url)
    for name, value in SESSION_SETTINGS.items():
        connection.execute("SELECT set_config(%s, %s, false)", [name, value])

    mirrors = follow(stored)
    wrong = [
        said
        for one in placed
        if one.case.id not in KNOWN_GAPS
        if (said := judge(connection, one, mirrors[one.table]))
    ]

    assert not wrong, "\n".join(wrong)


def judge(connection: Connection, placed: Placed, mirror: ModelMirror) -> str:
    """Say what is not as it must be; empty if nothing is."""
    case, state = placed.case, mirror.state
    if state.kind not in KINDS[case.expected]:
        return f"{case.id}: expected {case.expected}, is {state.kind} ({state.reason})"
    if not case.is_compared or not state.is_live:
        return ""
    expected, shown = _sorted(_published(connection, placed, mirror)), _sorted(mirror.shown())
    if expected == shown:
        return ""
    lacking = [row for row in expected if row not in shown][:3]
    extra = [row for row in shown if row not in expected][:3]
    return f"{case.id}: SILENTLY DIFFERENT: lacks {lacking}, has {extra}"


def _published(connection: Connection, placed: Placed, mirror: ModelMirror) -> list[Row]:
    """The rows that are published, by a row filter if there is one."""
    name = placed.table
    found = connection.execute(
        "SELECT coalesce(rowfilter, 'true') FROM pg_publication_tables"
        " WHERE (schemaname, tablename) = (%s, %s)",
        [name.schema, name.table],
    ).fetchone()
    only = str(found[0]) if found else "true"
    return expected_rows(connection, name, mirror.shape, only)


def _sorted(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)

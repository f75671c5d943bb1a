"""A value is the same by snapshot and by change, in both codecs, for every hard type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from tests.conftest import Connection
from tests.property.cases import CASES
from tests.property.oracle import MORE_TYPES, array_literal
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.snapshots import take
from tests.support.stream import count_messages, read_changes

CONTROLS = "".join(map(chr, range(1, 128)))
MORE_TEXT = (
    CONTROLS,
    "\\N",
    "\\\\N",
    "a\\tb",
    "\\.",
    "\\\\",
    "tab\there",
    "line\nbreak\r\n",
    "\x7f",
)


def _hard_values() -> list[tuple[str, list[str]]]:
    """Give every type, and every array of it, with inputs."""
    hard: list[tuple[str, list[str]]] = []
    for case in CASES.values():
        edges = [*case.edges, *(MORE_TEXT if case.type_name == "text" else ())]
        arrays = [array_literal([edge, None], delimiter=case.delimiter) for edge in edges]
        hard += [(case.type_name, edges), (case.array, [*arrays, "{}"])]
    return hard


HARD_VALUES = _hard_values()


@pytest.fixture
def values(connection: Connection) -> Connection:
    """A table with a column per type."""
    for statement in MORE_TYPES:
        connection.execute(statement)
    columns = ", ".join(f"c{n} {name}" for n, (name, _) in enumerate(HARD_VALUES))
    connection.execute(sql.SQL(f"CREATE TABLE hard (id serial PRIMARY KEY, {columns})"))
    connection.execute("CREATE PUBLICATION pub FOR TABLE hard")
    return connection


def fill(connection: Connection) -> int:
    """Insert every hard value in a row of its own; count the rows."""
    rows = 0
    for n, (name, inputs) in enumerate(HARD_VALUES):
        query = sql.SQL(f"INSERT INTO hard (c{n}) VALUES (%s::{name})")
        for text in inputs:
            try:
                connection.execute(query, [text])
            except psycopg.errors.FeatureNotSupported:
                continue  # a server built without libxml
            rows += 1
    return rows


@pytest.fixture
def environ(postgres: EmbeddedPostgres, database: str, nats: EmbeddedNats) -> dict[str, str]:
    return {**postgres.env(database), **nats.env(), "BRIDGE_SLOT": f"slot_{database}"}


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_row_is_the_same_by_snapshot_and_by_change(
    environ: dict[str, str], nats: EmbeddedNats, values: Connection, tmp_path: Path, codec: str
) -> None:
    """One rule for both: a consumer that loads one and applies the other must not see a change."""
    flags = ["--pub", "pub", *(["--json"] if codec == "json" else [])]
    with BridgeProcess(environ, *flags, log=tmp_path / "bridge.log") as bridge:
        bridge.wait_serving()
        rows = fill(values)
        wait_for(lambda: count_messages(nats.url) == rows + 1, "the changes")
        snapshot = take(nats.url, "hard")

    changes = {change.fields["data"]["id"]: change.fields for change in read_changes(nats.url)}

    assert len(changes) == len(snapshot.rows) == rows > 300
    for chunk in snapshot.chunks:
        texts: dict[str, Any] = chunk.fields.get("text", {})
        for ordinal, row in enumerate(chunk.fields["data"]):
            change = changes[row["id"]]
            # By its representation: NaN is not equal to itself, and -0.0 is to 0.0.
            assert repr(row) == repr(change["data"])
            assert texts.get(str(ordinal), []) == change.get("text", [])

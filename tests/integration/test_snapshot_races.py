"""A table that changes its files between the export of a snapshot and the first COPY."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bridge.config import read_config
from bridge.snapshot.requests import parse_request
from bridge.snapshot.taking import Helpers, SnapshotMeans, Taking
from bridge.status import SnapshotProgress
from examples.embedded import EmbeddedPostgres
from schemas.codecs import MSGPACK
from tests.conftest import Connection


class Interrupted(Taking):
    """A snapshot whose first export is followed by a statement of somebody else's."""

    statement = ""
    exports = 0
    meddler: Connection

    async def _add_reader(self, snapshot: str) -> None:
        await super()._add_reader(snapshot)
        self.exports += 1
        if self.statement and self.exports == 1:
            self.meddler.execute(self.statement)


@pytest.fixture
def taking(postgres: EmbeddedPostgres, database: str, connection: Connection) -> Interrupted:
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    connection.execute("INSERT INTO users SELECT n, n::text FROM generate_series(1, 9) n")
    connection.execute("CREATE PUBLICATION pub FOR TABLE users")
    config = read_config({"slot": "s", "publication": "pub"}, postgres.env(database), None)
    means = SnapshotMeans(
        postgres=config.postgres, nats=config.nats, publication="pub", source_id="1/2/s",
        codec=MSGPACK, publish=config.limits, limits=config.snapshots, zstd=False,
        oversize=cast("Any", None),
    )  # fmt: skip

    async def zero(*_: object) -> int:
        return 0

    helpers = Helpers(
        oversize=cast("Any", None), dictionaries=cast("Any", None), register=zero, cdc_end=zero
    )
    made = Interrupted(parse_request("users", b""), SnapshotProgress("users", "1"), means, helpers)
    made.meddler = connection
    return made


@pytest.mark.parametrize(
    ("statement", "exports"),
    [
        ("", 1),
        ("INSERT INTO users VALUES (10, 'x')", 1),
        ("TRUNCATE users; INSERT INTO users VALUES (1, 'new')", 2),
        ("VACUUM FULL users", 2),
        ("ALTER TABLE users ALTER name TYPE int USING name::int", 2),
        ("ALTER TABLE users ADD COLUMN more int", 2),
        ("ALTER PUBLICATION pub SET TABLE users WHERE (id > 4)", 2),
    ],
    ids=["nothing", "a change", "truncate", "rewrite", "new type", "new column", "row filter"],
)
async def test_a_snapshot_is_exported_again_where_the_table_changed_under_it(
    taking: Interrupted, statement: str, exports: int
) -> None:
    """New files look empty to an older snapshot, which would be taken for an empty table."""
    taking.statement = statement
    try:
        await taking.open()

        assert taking.exports == exports
    finally:
        await taking.close()

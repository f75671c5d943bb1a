"""DDL that changes values without sending changes, and tables that come and go.

PostgreSQL judges: each statement runs against a live bridge, and the stream must say `rewritten`,
or carry what existing rows hold, exactly where their values changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.ddl import DdlEvent, format_ddl, parse_ddl
from schemas.names import TableName
from schemas.shapes import NO_FILL, TableShape
from tests.conftest import Connection
from tests.support.bridge import wait_for
from tests.support.rig import Rig, changes_of
from tests.support.stream import StoredMessage, administer, read_shapes, read_storage, read_stream

POLL = ("--catalog-poll", "0.2")


class DdlRig(Rig):
    """A rig that reads what the stream says of DDL."""

    def messages(self) -> list[StoredMessage]:
        return read_stream(self.nats.url)

    def announced(self, table: str) -> list[TableShape]:
        subject = f"cdc.{TableName.parse(table).token}.schema"
        return [TableShape.from_map(m.fields) for m in self.messages() if m.subject == subject]

    def marks(self, table: str) -> int:
        """How often the stream said that a table's values may have changed."""
        return sum(shape.rewritten for shape in self.announced(table))

    def __enter__(self) -> DdlRig:
        return self

    def events(self) -> list[DdlEvent]:
        found = [m for m in self.messages() if m.subject == "cdc._message.bridge-ddl"]
        return [event for m in found for event in parse_ddl(m.fields["content"])]

    def has_change(self, table: str) -> bool:
        return bool(changes_of(self.messages(), table))

    def wait_marks(self, table: str, count: int) -> None:
        wait_for(lambda: self.marks(table) >= count, f"mark {count} of {table}")

    def wait_announced(self, table: str) -> None:
        wait_for(lambda: self.announced(table), f"table {table} to be announced")

    def settled(self) -> None:
        """Wait until the watch has looked at all that happened, by a table that joins now."""
        self._marks += 1
        name = f"probe{self._marks}"
        self.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        self.wait_announced(name)

    def storage(self, table: str) -> dict[str, Any] | None:
        return read_storage(self.nats.url, TableName.parse(table).token)

    def revisions(self, table: str) -> int:
        return len(read_shapes(self.nats.url)[TableName.parse(table).token])

    def is_remembered(self, table: str) -> bool:
        """Whether KV has what the catalog says of the table's file now."""
        row = self.connection.execute(
            "SELECT relfilenode FROM pg_class WHERE oid = %s::regclass", [table]
        ).fetchone()
        storage = self.storage(table)
        return row is not None and storage is not None and storage["filenode"] == row[0]


@pytest.fixture
def rig(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[DdlRig]:
    connection.execute(
        "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    with DdlRig(connection, postgres, nats, tmp_path, *POLL) as rig:
        yield rig


MAKE = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE TABLE t (id int PRIMARY KEY, n int, v text, c char(5), i inet, s timestamptz, m mood)",
    "INSERT INTO t SELECT g, g, 'x', 'c', '10.0.0.1', now(), 'sad' FROM generate_series(1, 9) g",
)


def of_its_own(at: int, statements: Iterable[str]) -> list[str]:
    """Rewrite statements to use a table and a type that only one case touches."""
    return [re.sub(r"\b(t|mood)(_pkey)?\b", rf"\g<1>{at}\2", s) for s in statements]


REWRITES = (
    "ALTER TABLE t ALTER n TYPE bigint USING n * 10",
    "ALTER TABLE t ALTER v TYPE text USING upper(v)",
    "ALTER TABLE t ALTER v TYPE varchar(3) USING left(v, 3)",
    "ALTER TABLE t ALTER c TYPE text",
    "ALTER TABLE t ALTER i TYPE text",
    "ALTER TABLE t ALTER s TYPE timestamptz(0)",
    "ALTER TABLE t ADD u uuid DEFAULT gen_random_uuid()",
    "ALTER TABLE t ADD q serial",
    r"ALTER TABLE t ADD b bytea DEFAULT '\x00'",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
)

# What makes a new file stands apart: with an altered column it would look like a rewrite.
CLEARED = 0  # The case that clears the stored missing value of a column w.
HARMLESS = (
    ("VACUUM FULL t", "ANALYZE t", "REINDEX TABLE t"),
    ("CLUSTER t USING t_pkey",),
    ("TRUNCATE t", "INSERT INTO t (id, v) VALUES (1, 'y')"),
    ("ALTER TABLE t ALTER v TYPE varchar", "ALTER TABLE t ADD w int DEFAULT 5"),
    (
        "ALTER TABLE t ALTER v SET NOT NULL",
        "ALTER TABLE t RENAME v TO vv",
        "ALTER TABLE t DROP vv",
        "ALTER TYPE mood ADD VALUE 'bored'",
        "ALTER TABLE t SET (fillfactor = 50)",
    ),
)

FILLS = (
    ("int", 5),
    ("text DEFAULT 'a,\"b\\c{}'", 'a,"b\\c{}'),
    ("timestamptz DEFAULT '2020-01-01 00:00+02'", "2019-12-31T22:00:00Z"),
    ("int[] DEFAULT '{1,NULL}'", [1, None]),
    ("jsonb DEFAULT '{\"a\": [1]}'", {"a": [1]}),
    ("numeric DEFAULT 1.50", "1.50"),
    ("bool DEFAULT false", False),
)


def test_each_rewrite_of_a_quiet_table_is_announced(rig: DdlRig) -> None:
    """Nobody changes a row afterwards: only the catalog shows it."""
    for at, _ in enumerate(REWRITES):
        rig.execute(*of_its_own(at, MAKE))
    rig.start()

    for at, statement in enumerate(REWRITES):
        rig.execute(*of_its_own(at, [statement]))
    for at, _ in enumerate(REWRITES):
        rig.wait_marks(f"t{at}", 1)
    rig.execute(*of_its_own(0, REWRITES[:1]))  # the same type once more
    rig.wait_marks("t0", 2)

    assert [rig.marks(f"t{at}") for at, _ in enumerate(REWRITES)] == [2] + [1] * (len(REWRITES) - 1)
    revisions = [
        m.fields["schema_revision"] for m in rig.messages() if m.subject.endswith("t0.schema")
    ]
    assert revisions == sorted(set(revisions))


def test_vacuum_full_and_other_harmless_statements_reload_nothing(rig: DdlRig) -> None:
    """A table that is vacuumed every night must not be loaded every night."""
    for at, _ in enumerate(HARMLESS):
        rig.execute(*of_its_own(at, MAKE))
    rig.execute(*of_its_own(CLEARED, ["ALTER TABLE t ADD w int DEFAULT 5"]))
    rig.start()

    for at, statements in enumerate(HARMLESS):
        rig.execute(*of_its_own(at, statements))
    rig.settled()

    assert {at: rig.marks(f"t{at}") for at, _ in enumerate(HARMLESS)} == dict.fromkeys(
        range(len(HARMLESS)), 0
    )


def test_storage_that_changes_leaves_the_schema_history_alone(rig: DdlRig) -> None:
    """The bucket keeps 64 revisions: a nightly VACUUM FULL pushed real schemas out of it."""
    rig.execute(*MAKE)
    rig.start()
    rig.settled()
    before = rig.revisions("t")

    for _ in range(3):
        rig.execute("VACUUM FULL t")
        wait_for(lambda: rig.is_remembered("t"), "the storage of t in KV")

    assert rig.revisions("t") == before


def test_what_an_earlier_bridge_remembered_in_its_entries_still_counts(rig: DdlRig) -> None:
    """It kept the storage in KV `schemas` and knew no other bucket."""
    rig.execute(*MAKE)
    rig.start()
    rig.settled()
    wait_for(lambda: rig.is_remembered("t"), "the storage of t in KV")
    rig.stop()
    move_storage_into_entry(rig, "t")

    rig.execute("ALTER TABLE t ALTER n TYPE int USING n * 10")
    rig.start()

    rig.wait_marks("t", 1)
    wait_for(lambda: rig.is_remembered("t"), "the storage of t in KV")


def move_storage_into_entry(rig: DdlRig, table: str) -> None:
    """Leave KV as an earlier bridge did."""
    _, entry = read_shapes(rig.nats.url)[table][-1]
    body = json.dumps({**entry, "storage": rig.storage(table)}).encode()

    async def move() -> None:
        async with administer(rig.nats.url) as js:
            await (await js.key_value("schemas")).put(table, body)
            await js.delete_stream("KV_storage")

    asyncio.run(move())


def test_an_added_column_carries_what_existing_rows_hold(rig: DdlRig) -> None:
    """Also where the default is dropped in the same transaction, as Django does."""
    rig.execute(*MAKE)
    rig.start()

    rig.together("ALTER TABLE t ADD f0 int DEFAULT 5", "ALTER TABLE t ALTER f0 DROP DEFAULT")
    for at, (definition, _) in enumerate(FILLS[1:], start=1):
        rig.execute(f"ALTER TABLE t ADD f{at} {definition}")
    rig.execute("ALTER TABLE t ADD nothing int", "INSERT INTO t (id) VALUES (100)")
    rig.settled()
    rig.execute("VACUUM FULL t")
    rig.settled()
    rig.execute("ALTER TABLE t RENAME v TO vv")
    rig.settled()

    last = {column.name: column for column in rig.announced("t")[-1].columns}
    assert {f"f{at}": last[f"f{at}"].fill for at in range(len(FILLS))} == {
        f"f{at}": fill for at, (_, fill) in enumerate(FILLS)
    }
    assert last["nothing"].fill is None
    assert last["n"].fill is NO_FILL
    assert rig.marks("t") == 0


def test_ddl_and_changes_in_one_transaction_carry_the_fill(rig: DdlRig) -> None:
    """The commit is decoded before others see it; the catalog must not be read too early."""
    rig.execute(*MAKE)
    rig.start()

    for at in range(5):
        rig.together(
            f"ALTER TABLE t ADD f{at} int DEFAULT {at}", f"INSERT INTO t (id) VALUES ({100 + at})"
        )
    rig.stream()

    shapes = rig.announced("t")
    assert [c.fill for c in shapes[-1].columns if c.name.startswith("f")] == [0, 1, 2, 3, 4]
    assert rig.marks("t") == 0


def test_partitions_that_come_and_go_mark_their_root(rig: DdlRig) -> None:
    """Their rows come and go with them, and no change says so."""
    rig.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "INSERT INTO r SELECT g, 'x' FROM generate_series(1, 19) g",
        "CREATE TABLE loose (id int PRIMARY KEY, v text)",
        "INSERT INTO loose VALUES (25, 'x')",
    )
    rig.start()

    for count, statement in enumerate(
        (
            "ALTER TABLE r ATTACH PARTITION loose FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE r DETACH PARTITION loose",
            "TRUNCATE r1",
            "DROP TABLE r2",
        ),
        start=1,
    ):
        rig.execute(statement)
        rig.wait_marks("r", count)
    rig.execute("INSERT INTO r VALUES (1, 'y')", "ANALYZE r1", "VACUUM FULL r1")
    rig.settled()

    assert rig.marks("r") == 4
    assert "loose" in {event.name.table for event in rig.events() if event.kind == "publish"}


def test_an_empty_partition_reloads_nothing(rig: DdlRig) -> None:
    """Time-partitioned tables get one every day."""
    rig.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r VALUES (1)",
    )
    rig.start()
    rig.execute("CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)")
    rig.settled()
    assert rig.marks("r") == 0
    rig.execute("INSERT INTO r VALUES (11)")
    rig.stream()
    rig.settled()
    assert rig.marks("r") == 0

    rig.execute(
        "CREATE TABLE loose (id int PRIMARY KEY)",
        "INSERT INTO loose VALUES (21)",
        "ALTER TABLE r ATTACH PARTITION loose FOR VALUES FROM (20) TO (30)",
    )
    rig.wait_marks("r", 1)


def test_truncate_of_a_root_is_a_change_and_marks_nothing(rig: DdlRig) -> None:
    """It is sent as one; TRUNCATE of a partition is not, be it the only one."""
    rig.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r VALUES (1)",
    )
    rig.start()
    rig.execute("TRUNCATE r", "INSERT INTO r VALUES (2)")
    rig.settled()
    assert rig.marks("r") == 0

    rig.execute("TRUNCATE r1")
    rig.wait_marks("r", 1)


def test_ddl_while_the_bridge_was_down_is_found(rig: DdlRig) -> None:
    """What KV remembers is all that is left of before."""
    rig.execute(*MAKE, "CREATE TABLE gone (id int)", "CREATE TABLE old (id int)")
    rig.start()
    rig.settled()
    wait_for(lambda: rig.is_remembered("t"), "the storage of t in KV")
    rig.kill()

    rig.execute(
        "ALTER TABLE t ALTER v TYPE text USING upper(v)",
        "INSERT INTO t (id) VALUES (20)",
        "CREATE TABLE joined (id int)",
        "DROP TABLE gone",
        "ALTER TABLE old RENAME TO new",
    )
    rig.start()
    rig.wait_marks("t", 1)
    wait_for(lambda: rig.announced("joined"), "the table that joined")
    wait_for(lambda: {"drop", "rename"} <= {e.kind for e in rig.events()}, "drop and rename")
    wait_for(lambda: rig.is_remembered("t"), "the new storage of t in KV")
    rig.stop()

    rig.start()
    rig.settled()
    assert rig.marks("t") == 1


def test_a_vacuum_full_while_the_bridge_was_down_reloads_nothing(rig: DdlRig) -> None:
    """It leaves a new file and cleared missing values, like a rewrite."""
    rig.execute(*MAKE)
    rig.start()
    rig.execute("ALTER TABLE t ADD w int DEFAULT 5")
    rig.settled()
    rig.stop()

    rig.execute("VACUUM FULL t")
    rig.start()
    rig.settled()

    assert rig.marks("t") == 0
    assert rig.announced("t")[-1].columns[-1].fill == 5


def test_a_mark_survives_kills(rig: DdlRig) -> None:
    """However often the bridge dies around it, the mark is stored in the end."""
    rig.execute(*MAKE)
    rig.start()
    rig.settled()
    wait_for(lambda: rig.is_remembered("t"), "the storage of t in KV")
    for count in range(1, 4):
        rig.execute("ALTER TABLE t ALTER n TYPE int USING n * 10")
        rig.kill()
        before = rig.marks("t")
        rig.start()
        rig.wait_marks("t", count)
        assert rig.marks("t") <= before + 1
        wait_for(lambda: rig.is_remembered("t"), "the storage of t in KV")
    rig.execute("INSERT INTO t (id) VALUES (50)")
    rig.stream()


def test_tables_come_and_go(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> None:
    """A quiet table that joins is announced, one that leaves is reported and leaves KV."""
    for table in ("a", "b", "c", "d"):
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    connection.execute("CREATE PUBLICATION pub FOR TABLE a, b, c")
    with DdlRig(connection, postgres, nats, tmp_path, *POLL) as rig:
        rig.start()
        rig.execute("INSERT INTO a VALUES (1)")
        rig.stream()

        rig.execute("ALTER PUBLICATION pub ADD TABLE d")
        wait_for(lambda: rig.announced("d"), "d")
        assert rig.marks("d") == 0
        rig.execute("DROP TABLE b")
        rig.execute("ALTER TABLE c RENAME TO cc")
        rig.execute("ALTER PUBLICATION pub DROP TABLE d")
        wait_for(lambda: {"drop", "rename", "unpublish"} <= {e.kind for e in rig.events()}, "all")
        wait_for(lambda: not {"b", "c", "d"} & live_keys(rig), "keys to be deleted")
        rig.execute("ALTER PUBLICATION pub ADD TABLE d")
        rig.wait_marks("d", 1)

        rig.execute("ALTER PUBLICATION pub DROP TABLE a")
        rig.execute("ALTER PUBLICATION pub ADD TABLE a")
        rig.wait_marks("a", 1)
        rig.execute("ALTER PUBLICATION pub SET TABLE a WHERE (id > 5), cc, d")
        rig.wait_marks("a", 2)
        events = {(e.kind, e.name.table, e.new_name and e.new_name.table) for e in rig.events()}
        assert {
            ("publish", "d", None),
            ("drop", "b", None),
            ("rename", "c", "cc"),
            ("unpublish", "d", None),
        } <= events
        assert rig.marks("cc") == 0
        rig.execute("INSERT INTO a VALUES (9)", "INSERT INTO cc VALUES (1)")
        rig.stream()
        rig.stop()
        rig.start()
        rig.execute("INSERT INTO d VALUES (1)")
        rig.stream()


def live_keys(rig: DdlRig) -> set[str]:
    """The keys of KV `schemas` that are not deleted."""

    async def keys() -> set[str]:
        async with administer(rig.nats.url) as js:
            prefix = "$KV.schemas."
            info = await js.stream_info("KV_schemas", subjects_filter=f"{prefix}>")
            found = set()
            for subject in info.state.subjects or {}:
                message = await js.get_last_msg("KV_schemas", subject)
                if "KV-Operation" not in (message.headers or {}):
                    found.add(subject.removeprefix(prefix))
            return found

    return asyncio.run(keys())


def test_messages_between_transactions_keep_the_order(rig: DdlRig) -> None:
    """Under load they take places that no transaction has, and positions only rise."""
    rig.execute(*MAKE)
    rig.start()
    for at in range(5):
        rig.execute(
            "ALTER TABLE t ALTER n TYPE int USING n + 1",
            "INSERT INTO t (id)"
            f" SELECT g FROM generate_series({at * 1000 + 100}, {at * 1000 + 900}) g",
            f"CREATE TABLE q{at} (id int)",
            "SELECT pg_logical_emit_message(false, 'lone', '')",
        )
        rig.wait_announced(f"q{at}")
    rig.stream()

    stored = rig.messages()
    places = [
        (m.fields["commit_lsn"], m.fields["seq"], not m.subject.endswith("schema")) for m in stored
    ]
    assert places == sorted(places)
    alone = [m for m in stored if m.subject.endswith(".schema") and m.fields["last"]]
    assert alone
    ids = [m.fields["msg_id"] for m in stored]
    assert len(ids) == len(set(ids))


def test_rolled_back_ddl_leaves_nothing(rig: DdlRig) -> None:
    """Neither the catalog nor the WAL shows it to others."""
    rig.execute(*MAKE)
    rig.start()

    rig.execute(
        "BEGIN; ALTER TABLE t ALTER n TYPE bigint USING n * 10; ROLLBACK",
        "BEGIN; SAVEPOINT s; DROP TABLE t; ROLLBACK TO s; INSERT INTO t (id) VALUES (50); COMMIT",
    )
    rig.settled()

    assert rig.marks("t") == 0
    assert {event.kind for event in rig.events()} <= {"publish"}


def test_a_table_that_only_its_changes_show_is_reported_as_gone(rig: DdlRig) -> None:
    """It came and went before the catalog was looked at; consumers have it from its changes."""
    rig.start()
    rig.settled()
    rig.stop()
    rig.execute("CREATE TABLE brief (id int PRIMARY KEY)", "INSERT INTO brief VALUES (1)")
    rig.execute("DROP TABLE brief")

    rig.start()

    wait_for(lambda: ("drop", "brief") in {(e.kind, e.name.table) for e in rig.events()}, "drop")
    assert "cdc.brief.insert" in {message.subject for message in rig.messages()}
    wait_for(lambda: "brief" not in live_keys(rig), "its key to be deleted")


def test_what_two_statements_hide_from_each_other_is_marked(rig: DdlRig) -> None:
    """Each pair leaves the catalog as it was at first sight, while the bridge does not look."""
    rig.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r SELECT g, 'x' FROM generate_series(1, 9) g",
        "CREATE TABLE f (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE f1 PARTITION OF f FOR VALUES FROM (0) TO (10)",
        "INSERT INTO f SELECT generate_series(1, 9)",
        *MAKE,
        "CREATE TABLE fixed (id int PRIMARY KEY)",
        "CREATE TABLE g (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO g VALUES (1)",
    )
    rig.start()
    rig.settled()
    expected = {
        "r": ("TRUNCATE r1", "INSERT INTO r VALUES (1, 'y')", "ANALYZE r1"),
        "f": ("TRUNCATE f1", "INSERT INTO f VALUES (1)", "ANALYZE f1"),
        "t": ("ALTER TABLE t SET UNLOGGED", "DELETE FROM t", "ALTER TABLE t SET LOGGED"),
        "fixed": ("ALTER TABLE fixed SET UNLOGGED", "ALTER TABLE fixed SET LOGGED"),
        "g": ("ALTER TABLE g ALTER d DROP EXPRESSION",),
    }
    back = (
        "ALTER TABLE r DETACH PARTITION r1",
        "UPDATE r1 SET v = 'unseen'",
        "ALTER TABLE r ATTACH PARTITION r1 FOR VALUES FROM (0) TO (10)",
    )

    for statements in (*expected.values(), back):
        rig.bridge.process.send_signal(signal.SIGSTOP)
        rig.execute(*statements)
        rig.bridge.process.send_signal(signal.SIGCONT)
        rig.settled()

    assert {table: rig.marks(table) for table in expected} == {
        **dict.fromkeys(expected, 1),
        "r": 2,
    }


def test_vacuum_full_analyze_and_freeze_of_a_partition_reload_nothing(rig: DdlRig) -> None:
    """They write new files, statistics and transaction ids, and no value."""
    rig.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r SELECT g, 'x' FROM generate_series(1, 9) g",
        "CREATE TABLE f (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE f1 PARTITION OF f FOR VALUES FROM (0) TO (10)",
        "INSERT INTO f SELECT generate_series(1, 9)",
    )
    rig.start()

    for statement in (
        "VACUUM FULL r1",
        "VACUUM FULL f1",
        "VACUUM (FULL, ANALYZE) r1",
        "ANALYZE r",
        "CLUSTER r1 USING r1_pkey",
        "CLUSTER f1 USING f1_pkey",
        "VACUUM FREEZE pg_inherits",
        "VACUUM FULL pg_inherits",
        "VACUUM FULL pg_class",
        "VACUUM FREEZE",
    ):
        rig.execute(statement)
        rig.settled()

    assert (rig.marks("r"), rig.marks("f")) == (0, 0)


def test_a_locked_table_does_not_hide_what_existing_rows_hold(
    rig: DdlRig, postgres: EmbeddedPostgres
) -> None:
    """The table is locked when the bridge reads the first change of the column."""
    rig.execute(*MAKE)
    rig.start()
    rig.settled()
    rig.bridge.process.send_signal(signal.SIGSTOP)
    rig.together("ALTER TABLE t ADD f int DEFAULT 5", "INSERT INTO t (id, f) VALUES (50, NULL)")
    with psycopg.connect(postgres.dsn(rig.connection.info.dbname)) as locker:
        locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        rig.bridge.process.send_signal(signal.SIGCONT)
        wait_for(lambda: rig.has_change("t"), "the change behind the announcement")
        assert rig.announced("t")[-1].columns[-1].fill == 5

    rig.settled()
    assert rig.marks("t") == 0
    assert rig.announced("t")[-1].columns[-1].fill == 5


def test_claims_about_a_locked_table_cost_no_snapshots(
    triggered: DdlRig, postgres: EmbeddedPostgres
) -> None:
    """Any role can write them, one in every transaction; only what was altered is marked, once."""
    rig = triggered
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()
    row = rig.connection.execute("SELECT 't'::regclass::oid::int").fetchone()
    assert row is not None
    claim = format_ddl([DdlEvent("rewrite", int(str(row[0])), TableName("public", "t"))])
    forge = f"SELECT pg_logical_emit_message(true, 'bridge-ddl', '{claim}')"

    with psycopg.connect(postgres.dsn(rig.connection.info.dbname)) as locker:
        locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        rig.execute(*[forge] * 20)
        rig.stream()
        assert rig.marks("t") == 0
    rig.bridge.process.send_signal(signal.SIGSTOP)
    rig.execute("ALTER TABLE t ALTER n TYPE int USING n * 10")
    with psycopg.connect(postgres.dsn(rig.connection.info.dbname)) as locker:
        locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        rig.bridge.process.send_signal(signal.SIGCONT)
        rig.execute(*[forge] * 20)
        rig.stream()
        assert rig.marks("t") == 1


def test_a_column_added_while_the_bridge_was_down_is_announced_of_a_quiet_table(
    rig: DdlRig,
) -> None:
    """No change will ever need the new shape, and existing rows have a new value."""
    rig.execute(*MAKE)
    rig.start()
    rig.settled()
    rig.stop()

    rig.execute("ALTER TABLE t ADD f int DEFAULT 5")
    rig.start()

    wait_for(lambda: rig.announced("t") and rig.announced("t")[-1].columns[-1].fill == 5, "fill")
    assert rig.marks("t") == 0


def test_ddl_behind_a_kill_in_the_first_moments_of_a_table_is_found(rig: DdlRig) -> None:
    """What KV remembers of a table begins with its first entry."""
    rig.start()
    rig.execute(*MAKE)
    wait_for(lambda: "t" in live_keys(rig), "the first entry of t")
    assert rig.storage("t")
    rig.kill()

    rig.execute("ALTER TABLE t ALTER n TYPE int USING n * 10")
    rig.start()

    rig.wait_marks("t", 1)


NO_POLL = ("--catalog-poll", "3600")


@pytest.fixture
def triggered(
    connection: Connection, postgres: EmbeddedPostgres, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[DdlRig]:
    """A rig whose bridge looks at the catalog at its start only, and has the event triggers."""
    env = {"BRIDGE_PUBLICATION": "pub", "POSTGRES_BRIDGE_PASSWORD": "secret"}
    role = {"POSTGRES_BRIDGE_USER": f"bridge_{connection.info.dbname}"}
    done = subprocess.run(
        ["sh", "init.sh"],
        env={**os.environ, **postgres.psql_env(connection.info.dbname), **env, **role},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with DdlRig(connection, postgres, nats, tmp_path, *NO_POLL) as rig:
        yield rig


def test_the_event_trigger_tells_at_its_place(triggered: DdlRig) -> None:
    """Inside the transaction of the statement, between the changes around it."""
    rig = triggered
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()

    for statement in REWRITES:
        rig.execute(statement)
    rig.stream()
    rig.together(
        "INSERT INTO t (id) VALUES (50)",
        "ALTER TABLE t ADD f int DEFAULT 7",
        "ALTER TABLE t ALTER f DROP DEFAULT",
    )
    rig.stream()
    # Of several statements that the bridge reads at one go, one mark may stand for all.
    assert 1 <= rig.marks("t") <= len(REWRITES)
    assert rig.announced("t")[-1].columns[-1].fill == 7

    rig.execute("DROP TABLE IF EXISTS nothing", "CREATE TEMP TABLE temporary (id int)")
    rig.execute("DROP TABLE t")
    rig.stream()

    events = rig.events()
    assert [e.kind for e in events if e.kind == "rewrite"]
    assert ("drop", "t") in {(e.kind, e.name.table) for e in events}
    assert "temporary" not in {e.name.table for e in events}

    rig.stop()
    rig.execute("CREATE TABLE brief (id int PRIMARY KEY)", "INSERT INTO brief VALUES (1)")
    rig.execute("DROP TABLE brief")
    rig.start()
    rig.stream()
    assert ("drop", "brief") in {(e.kind, e.name.table) for e in rig.events()}
    stored = rig.messages()
    places = [
        (m.fields["commit_lsn"], m.fields["seq"], not m.subject.endswith("schema")) for m in stored
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "again", ["ALTER TABLE t ADD z int", "ALTER TABLE t RENAME TO u", "DROP TABLE t"]
)
def test_ddl_that_other_ddl_overtakes_is_told_at_its_own_place(
    triggered: DdlRig, again: str
) -> None:
    """Consumers stop between the two as well, and there the table is not what it was before."""
    rig = triggered
    rig.execute(*MAKE, "CREATE TABLE other (id int PRIMARY KEY)")
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()
    rig.stop()

    rig.execute("ALTER TABLE t ALTER n TYPE bigint USING n * 10")
    rig.execute("INSERT INTO other VALUES (1)")
    rig.execute(again)
    rig.start()
    rig.stream()

    subjects = [
        f"{m.subject} {m.fields.get('rewritten', False)}"
        for m in rig.messages()
        if m.subject in ("cdc.t.schema", "cdc.other.insert")
    ]
    assert "cdc.t.schema True" in subjects[: subjects.index("cdc.other.insert False")]


def test_the_last_shape_of_a_transaction_is_the_last_that_is_announced(
    triggered: DdlRig,
) -> None:
    """The trigger's message has the LSN of the change after it, and so had both announcements."""
    rig = triggered
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()

    rig.together(
        "ALTER TABLE t ADD f int DEFAULT 7",
        "INSERT INTO t (id) VALUES (50)",
        "ALTER TABLE t ADD g int",
    )
    rig.stream()

    assert [column.name for column in rig.announced("t")[-1].columns][-2:] == ["f", "g"]


def test_a_column_that_comes_from_above_is_announced_at_its_place(triggered: DdlRig) -> None:
    """ALTER TABLE names the root; what is published are its partition and a child that inherits."""
    rig = triggered
    rig.execute(
        "DROP PUBLICATION pub",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE parent (id int)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "CREATE PUBLICATION pub FOR TABLE leaf, child",
    )
    rig.start()
    rig.execute("INSERT INTO leaf VALUES (1)", "INSERT INTO child VALUES (1)")
    rig.stream()

    rig.execute("ALTER TABLE root ADD w int DEFAULT 5", "ALTER TABLE parent ADD w int DEFAULT 5")
    rig.stream()

    for table in ("leaf", "child"):
        assert [column.name for column in rig.announced(table)[-1].columns] == ["id", "w"]


def test_rows_that_came_while_a_table_was_unlogged_are_marked(triggered: DdlRig) -> None:
    """They are not in the WAL, and a publication of all tables has the table as before."""
    rig = triggered
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()

    rig.together(
        "ALTER TABLE t SET UNLOGGED",
        "INSERT INTO t (id) VALUES (41)",
        "ALTER TABLE t SET LOGGED",
    )
    rig.stream()

    assert rig.marks("t") == 1


def test_rows_that_came_while_a_table_was_unlogged_and_the_bridge_down_are_marked(
    triggered: DdlRig,
) -> None:
    """At the start the new file looks like that of VACUUM FULL; the WAL tells of it afterwards."""
    rig = triggered
    rig.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE vacuumed (id int PRIMARY KEY)")
    rig.start()
    rig.execute("INSERT INTO t VALUES (40)", "INSERT INTO vacuumed VALUES (40)")
    rig.stream()
    rig.stop()
    assert rig.is_remembered("t")
    assert rig.is_remembered("vacuumed")

    rig.together(
        "ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (41)", "ALTER TABLE t SET LOGGED"
    )
    rig.execute("VACUUM FULL vacuumed")
    rig.start()
    rig.stream()

    assert (rig.marks("t"), rig.marks("vacuumed")) == (1, 0)


def test_rolled_back_ddl_with_the_event_trigger_leaves_nothing(triggered: DdlRig) -> None:
    """The message belongs to the transaction, or to the savepoint."""
    rig = triggered
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()
    before = rig.events()

    rig.execute(
        "BEGIN; ALTER TABLE t ALTER n TYPE bigint USING n * 10; ROLLBACK",
        "BEGIN; SAVEPOINT s; DROP TABLE t; ROLLBACK TO s; INSERT INTO t (id) VALUES (50); COMMIT",
    )
    rig.stream()

    assert rig.events() == before
    assert rig.marks("t") == 0


RENAMED_AND_DROPPED = (
    "ALTER TABLE t RENAME TO u",
    "INSERT INTO u (id) VALUES (60)",
    "ALTER TABLE u ADD w int DEFAULT 5",
    "DROP TABLE u",
)


def test_a_table_that_is_renamed_and_dropped_between_two_looks_is_dropped_at_its_place(
    triggered: DdlRig,
) -> None:
    """Its changes announced the new name; the watch knows only the one that it had before."""
    rig = triggered
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.stream()

    rig.execute(*RENAMED_AND_DROPPED)
    rig.stream()

    assert [(e.kind, e.name.table) for e in rig.events()][-1] == ("drop", "u")
    assert "does not confirm" not in rig.bridge.said()


def test_a_table_that_was_renamed_and_dropped_leaves_no_key(rig: DdlRig) -> None:
    """Neither under the name that it had nor under the one that only its changes showed."""
    rig.execute(*MAKE)
    rig.start()
    rig.execute("INSERT INTO t (id) VALUES (40)")
    rig.settled()
    rig.stop()

    rig.execute(*RENAMED_AND_DROPPED)
    rig.start()
    wait_for(lambda: "drop" in {event.kind for event in rig.events()}, "the drop")
    rig.settled()

    found = [(event.kind, event.name.table) for event in rig.events() if event.kind != "publish"]
    assert found == [("rename", "t"), ("drop", "u")]
    wait_for(lambda: not {"t", "u"} & live_keys(rig), "the keys to be deleted")


def test_a_forged_message_is_passed_on_and_believed_in_nothing(
    rig: DdlRig, connection: Connection
) -> None:
    """Any role can write under the bridge's prefixes: the catalog has the facts."""
    rig.execute(*MAKE)
    rig.start()
    oid = int(str(connection.execute("SELECT 't'::regclass::oid::bigint").fetchone()[0]))  # type: ignore[index]
    t, other = TableName("public", "t"), TableName("public", "other")
    forged = [
        "no json",
        '{"version":1,"events":[{"kind":"drop"}]}',
        format_ddl([DdlEvent("drop", oid, t)]),
        format_ddl([DdlEvent("unpublish", oid, t), DdlEvent("rename", oid, t, other)]),
        format_ddl([DdlEvent("publish", oid, other)]),
        format_ddl([DdlEvent("drop", 4_000_000_000, t), DdlEvent("unpublish", 4_000_000_000, t)]),
        format_ddl([DdlEvent("rewrite", oid, other), DdlEvent("alter", 4_000_000_000, t)]),
        format_ddl([DdlEvent("drop", 7, t)] * 20_000),
    ]
    role = f"nobody_{connection.info.dbname}"
    rig.execute(f"CREATE ROLE {role}", f"SET ROLE {role}")
    for transactional in (True, False):
        for prefix, content in [*(("bridge-ddl", one) for one in forged), ("bridge-gap", "{}")]:
            connection.execute(
                "SELECT pg_logical_emit_message(%s, %s, %s::text)", [transactional, prefix, content]
            )
    harmless = format_ddl([DdlEvent("rewrite", oid, t)])
    mixed = format_ddl([DdlEvent("drop", oid, t), DdlEvent("rewrite", oid, t)])
    lax = harmless.replace("[", f'[{{"kind":"drop","relation_id":"{oid}","table":"t"}},')
    for content in (harmless, mixed, lax):
        connection.execute(
            "SELECT pg_logical_emit_message(true, 'bridge-ddl', %s::text)", [content]
        )
    rig.execute("RESET ROLE", f"DROP ROLE {role}", "INSERT INTO t (id) VALUES (50)")
    rig.stream()

    found: dict[str, list[str]] = {}
    for message in rig.messages():
        if "bridge-" in message.subject:
            found.setdefault(message.subject, []).append(message.fields["content"].decode())
    assert found == {
        "cdc._message.bridge-ddl": [harmless] * 3,
        "cdc._message.sql-bridge-ddl": forged + forged,
        "cdc._message.sql-bridge-gap": ["{}", "{}"],
    }
    assert "does not confirm it" in rig.bridge.said()
    assert rig.marks("t") == 0
    assert "t" in live_keys(rig)

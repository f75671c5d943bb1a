"""Tables of every kind, as a consumer sees them: identities, keys, partitions, names, publications.

Everything is written at once, for one bridge per publication; each test then reads its own table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from schemas.names import TableName
from schemas.shapes import TableShape
from tests.support.rig import Rig, announced, changes_of, read_revisions, story_of
from tests.support.stream import StoredMessage

BIG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)"
# Short enough for an index and too long for a page: the heap keeps it apart.
BIG_KEY = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 80) i)"

ODD_NAMES = (
    '"we.ird na""me ü"',
    '"*"',
    '">"',
    '"new\nline\ttab"',
    '"_message"',
    '"sales/orders"',
    '"=41"',
    '"ALL CAPS"',
    '"' + "ü" * 31 + '"',
    '"' + "x" * 63 + '"',
    '"schema"',
)
QUALIFIED = ("orders", "sales.orders", '"a.b".c', 'a."b.c"', '"_message".t')

IDENTITIES = """
CREATE TABLE by_default (id int PRIMARY KEY, a text, big text);
CREATE TABLE by_full (LIKE by_default INCLUDING ALL);
CREATE TABLE by_index (id int PRIMARY KEY, a text, k int NOT NULL, big text);
CREATE UNIQUE INDEX k_with_a ON by_index (k) INCLUDE (a);
CREATE TABLE by_nothing (LIKE by_default INCLUDING ALL);
ALTER TABLE by_full REPLICA IDENTITY FULL;
ALTER TABLE by_index REPLICA IDENTITY USING INDEX k_with_a;
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE keyless (a text);
CREATE TABLE keyless_full (a text, b text);
ALTER TABLE keyless_full REPLICA IDENTITY FULL;
CREATE TABLE deferrable_full (id int PRIMARY KEY DEFERRABLE, a text);
ALTER TABLE deferrable_full REPLICA IDENTITY FULL;
CREATE TABLE big_key (k text PRIMARY KEY, a int);
ALTER TABLE big_key ALTER k SET STORAGE EXTERNAL;
CREATE TABLE two_keys (a int, b int, c int, PRIMARY KEY (c, a));
"""
OTHERS = """
CREATE TABLE generated (id int PRIMARY KEY, a int, s int GENERATED ALWAYS AS (a * 2) STORED, z int);
CREATE TABLE listed (id int PRIMARY KEY, a text, b text, c text);
CREATE TABLE filtered (id int PRIMARY KEY, a text);
CREATE TABLE parted (id int, region text, a text, PRIMARY KEY (id, region))
    PARTITION BY LIST (region);
CREATE TABLE parted_eu PARTITION OF parted FOR VALUES IN ('eu');
CREATE TABLE parted_us (gone int, a text, region text NOT NULL, id int NOT NULL);
ALTER TABLE parted_us DROP gone;
ALTER TABLE parted ATTACH PARTITION parted_us FOR VALUES IN ('us');
"""
WRITES = f"""
INSERT INTO by_default VALUES (1, 'a', {BIG});
UPDATE by_default SET a = 'b';
UPDATE by_default SET id = 2;
DELETE FROM by_default;
INSERT INTO by_full VALUES (1, 'a', {BIG});
UPDATE by_full SET a = 'b';
UPDATE by_full SET id = 2;
DELETE FROM by_full;
INSERT INTO by_index VALUES (1, 'a', 10, {BIG});
UPDATE by_index SET a = 'b';
UPDATE by_index SET id = 2;
UPDATE by_index SET k = 20;
DELETE FROM by_index;
INSERT INTO by_nothing VALUES (1, 'a', 'b');
TRUNCATE by_nothing;
INSERT INTO keyless VALUES ('a');
INSERT INTO keyless_full VALUES ('a', NULL), ('a', NULL);
UPDATE keyless_full SET b = 'c' WHERE ctid = '(0,1)';
DELETE FROM keyless_full;
INSERT INTO deferrable_full VALUES (1, 'a'), (2, 'b');
UPDATE deferrable_full SET id = id + 1;
INSERT INTO big_key VALUES ({BIG_KEY}, 1);
UPDATE big_key SET a = 2;
UPDATE big_key SET k = k || 'x';
DELETE FROM big_key;
INSERT INTO two_keys VALUES (1, 2, 3);
UPDATE two_keys SET a = 4;
TRUNCATE by_default, two_keys;
INSERT INTO generated VALUES (1, 2, DEFAULT, 3);
UPDATE generated SET a = 5;
INSERT INTO listed VALUES (1, 'a', 'b', 'c');
UPDATE listed SET a = 'x';
UPDATE listed SET id = 2;
DELETE FROM listed;
INSERT INTO filtered VALUES (1, 'in'), (300, 'out');
UPDATE filtered SET a = 'still in' WHERE id = 1;
UPDATE filtered SET id = 200 WHERE id = 1;
UPDATE filtered SET a = 'still out';
UPDATE filtered SET id = 2 WHERE id = 200;
DELETE FROM filtered;
INSERT INTO parted VALUES (1, 'eu', 'x'), (2, 'us', 'y');
UPDATE parted SET region = 'us', a = 'moved' WHERE id = 1;
DELETE FROM parted WHERE id = 1;
TRUNCATE parted_eu;
TRUNCATE parted;
"""


@dataclass(frozen=True)
class Told:
    """What one bridge told of its publication."""

    stored: list[StoredMessage]
    log: str
    shapes: dict[str, list[TableShape]]
    """Every revision in KV, by token."""

    def changes(self, table: str) -> list[dict[str, Any]]:
        return changes_of(self.stored, table)

    def story(self, table: str) -> list[str]:
        return story_of(self.stored, table)

    def shape(self, table: str) -> TableShape:
        (shape,) = announced(self.stored, table)
        return shape

    def key(self, table: str) -> list[str]:
        return [column.name for column in self.shape(table).key]


@contextmanager
def _rig(postgres: EmbeddedPostgres, name: str, folder: Path) -> Iterator[Rig]:
    database = postgres.create_database(name)
    with (
        temporary_folder() as servers,
        EmbeddedNats(servers) as nats,
        psycopg.connect(postgres.dsn(database), autocommit=True) as connection,
        Rig(connection, postgres, nats, folder) as rig,
    ):
        yield rig
        rig.stop()
    postgres.drop_database(database)


def _tell(rig: Rig) -> Told:
    stored = rig.stream()
    revisions = read_revisions(rig.nats.url)
    shapes = {token: list(found.values()) for token, found in revisions.items()}
    return Told(stored, rig.bridge.said(), shapes)


def _each(statements: str) -> list[str]:
    return [statement for statement in statements.split(";\n") if statement.strip()]


@pytest.fixture(scope="module")
def told(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """One run over all tables, with a plain publication."""
    with _rig(postgres, "tables_plain", tmp_path_factory.mktemp("plain")) as rig:
        rig.execute(*_each(IDENTITIES), *_each(OTHERS))
        for table in ("by_default", "by_full", "by_index"):
            rig.execute(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
        if rig.connection.info.server_version >= 180000:
            rig.execute("ALTER TABLE generated ADD v int GENERATED ALWAYS AS (a * 3) VIRTUAL")
        rig.execute(
            'CREATE SCHEMA sales; CREATE SCHEMA "a.b"; CREATE SCHEMA a; CREATE SCHEMA "_message"'
        )
        columns = ", ".join(f"c{number} int" for number in range(1, 1600))
        rig.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
        for name in (*ODD_NAMES, *QUALIFIED):
            rig.execute(f'CREATE TABLE {name} ("na.me ""ü" text PRIMARY KEY)')
        tables = [
            table
            for (table,) in rig.connection.execute(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
                " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
                "   AND tablename NOT IN ('listed', 'filtered', 'parted_eu', 'parted_us')"
            )
        ]
        rig.execute(
            f"CREATE PUBLICATION pub FOR TABLE {', '.join(map(str, tables))},"
            " listed (id, c), filtered WHERE (id < 100)"
        )
        rig.start()
        rig.execute(*_each(WRITES))
        rig.execute(f"INSERT INTO wide SELECT {', '.join(map(str, range(1600)))}")
        rig.execute("UPDATE wide SET c1599 = NULL")
        for name in (*ODD_NAMES, *QUALIFIED):
            rig.execute(f"INSERT INTO {name} VALUES ('x')", f"DELETE FROM {name}")
        for table in ("by_nothing", "keyless"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                rig.execute(f"UPDATE {table} SET a = 'b'")
        rig.execute("CREATE TABLE added (a text)", "ALTER PUBLICATION pub ADD TABLE added")
        rig.execute("INSERT INTO added VALUES ('x')")
        yield _tell(rig)


@pytest.fixture(scope="module")
def told_by_root(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    """One run with publish_via_partition_root and, where PostgreSQL can, generated columns."""
    with _rig(postgres, "tables_by_root", tmp_path_factory.mktemp("by_root")) as rig:
        rig.execute(*_each(OTHERS))
        options = "publish_via_partition_root = true"
        if rig.connection.info.server_version >= 180000:
            rig.execute("ALTER TABLE generated ADD v int GENERATED ALWAYS AS (a * 3) VIRTUAL")
            options += ", publish_generated_columns = stored"
        rig.execute(f"CREATE PUBLICATION pub FOR ALL TABLES WITH ({options})")
        rig.start()
        rig.execute(*(s for s in _each(WRITES) if " parted" in s or " generated" in s))
        yield _tell(rig)


def test_the_default_identity_tells_the_key(told: Told) -> None:
    """What PostgreSQL did not send is named, and is not null."""
    insert, update, move, delete, truncate = told.changes("by_default")

    assert len(insert["data"]["big"]) == 64_000
    assert (update["data"], update["unchanged"]) == ({"id": 1, "a": "b"}, ["big"])
    assert (move["data"], move["key"], move["unchanged"]) == (
        {"id": 2, "a": "b"},
        {"id": 1},
        ["big"],
    )
    assert delete["data"] == {"id": 2, "a": None, "big": None}
    assert truncate["operation"] == "TRUNCATE"
    assert "key" not in update
    assert told.key("by_default") == ["id"]


def test_full_identity_tells_the_whole_old_row(told: Told) -> None:
    """The old row has what did not change, so nothing is left out."""
    insert, update, move, delete = told.changes("by_full")

    assert update["old"] == insert["data"]
    assert update["data"] == {**insert["data"], "a": "b"}
    assert (move["key"], move["data"]["id"], move["old"]["id"]) == ({"id": 1}, 2, 1)
    assert delete["data"] == delete["old"] == move["data"]
    assert not any("unchanged" in change for change in (insert, update, move, delete))
    assert ("key" in update, "key" in delete) == (False, False)
    assert told.key("by_full") == ["id"]


def test_an_index_identity_is_the_key(told: Told) -> None:
    """Not the primary key, and not what the index only includes."""
    _, update, other, move, delete = told.changes("by_index")

    assert (update["unchanged"], "key" in update, "key" in other) == (["big"], False, False)
    assert move["key"] == {"k": 10}
    assert delete["data"] == {"id": None, "a": None, "k": 20, "big": None}
    assert told.key("by_index") == ["k"]


def test_no_identity_has_inserts_and_truncates(told: Told) -> None:
    """PostgreSQL itself refuses the rest."""
    assert told.story("by_nothing") == ["schema", "insert", "truncate"]
    assert told.shape("by_nothing").replica_identity == "nothing"


def test_a_table_without_a_key_is_published_and_warned_of(told: Told) -> None:
    """Also one that joins the publication later."""
    assert [c["data"] for c in told.changes("keyless")] == [{"a": "a"}]
    assert told.key("keyless") == told.key("keyless_full") == []
    assert told.story("keyless_full") == ["schema", *["insert"] * 2, "update", *["delete"] * 2]
    update = told.changes("keyless_full")[2]
    assert (update["data"], update["old"]) == ({"a": "a", "b": "c"}, {"a": "a", "b": None})
    assert "key" not in update
    for table in ("keyless", "keyless_full", "added"):
        assert told.log.count(f"table public.{table} has no key") == 1
    assert "by_default has no key" not in told.log


def test_a_deferrable_primary_key_is_no_key(told: Told) -> None:
    """Row 1 becomes 2 while row 2 is still there: no key tells which of them the next one moves."""
    assert told.key("deferrable_full") == []
    assert told.story("deferrable_full") == ["schema", *["insert"] * 2, *["update"] * 2]
    assert [(u["old"]["id"], u["data"]["id"]) for u in told.changes("deferrable_full")[2:]] == [
        (1, 2),
        (2, 3),
    ]


def test_a_key_kept_apart_is_still_the_key(told: Told) -> None:
    """PostgreSQL does not send it again; it is in the old key, and a row without key is no use."""
    insert, update, move, delete = told.changes("big_key")

    key = insert["data"]["k"]
    assert len(key) > 2_500
    assert update["data"] == {"k": key, "a": 2}
    assert ("key" in update, "unchanged" in update) == (False, False)
    assert (move["key"], move["data"]["k"]) == ({"k": key}, key + "x")
    assert delete["data"] == {"k": key + "x", "a": None}


def test_a_key_of_several_columns_has_their_order(told: Told) -> None:
    """The key is (c, a), whatever the table's order is."""
    assert told.key("two_keys") == ["c", "a"]
    assert told.changes("two_keys")[1]["key"] == {"c": 3, "a": 1}


def test_generated_columns_come_where_they_are_published(told: Told, told_by_root: Told) -> None:
    """A column that the WAL leaves out is not in the shape; a virtual one never comes."""
    assert [c["data"] for c in told.changes("generated")] == [
        {"id": 1, "a": 2, "z": 3},
        {"id": 1, "a": 5, "z": 3},
    ]
    assert [c.position for c in told.shape("generated").columns] == [1, 2, 4]
    published = told_by_root.changes("generated")
    if "s" in published[0]["data"]:
        assert [c["data"]["s"] for c in published] == [4, 10]
        assert list(published[0]["data"]) == ["id", "a", "s", "z"]


def test_partitions_are_tables_of_their_own(told: Told) -> None:
    """A row that moves leaves one and enters the other, each in its own order of columns."""
    assert told.story("parted") == []
    assert told.story("parted_eu") == ["schema", "insert", "delete", "truncate", "truncate"]
    assert told.story("parted_us") == ["schema", "insert", "insert", "delete", "truncate"]
    assert told.changes("parted_us")[1]["data"] == {"a": "moved", "region": "us", "id": 1}
    assert [c.position for c in told.shape("parted_us").columns] == [2, 3, 4]


def test_partitions_are_one_table_where_the_root_publishes(told_by_root: Told) -> None:
    """Truncating one partition is not told of: PostgreSQL has no way to say it of the root."""
    assert told_by_root.story("parted_eu") == told_by_root.story("parted_us") == []
    assert told_by_root.story("parted") == [
        *("schema", "insert", "insert", "delete", "insert", "delete", "truncate")
    ]
    changes = told_by_root.changes("parted")
    assert [c["data"] for c in changes[:4]] == [
        {"id": 1, "region": "eu", "a": "x"},
        {"id": 2, "region": "us", "a": "y"},
        {"id": 1, "region": "eu", "a": None},
        {"id": 1, "region": "us", "a": "moved"},
    ]
    assert len({c["relation_id"] for c in changes}) == 1
    assert told_by_root.key("parted") == ["id", "region"]


def test_every_name_has_its_own_subject(told: Told) -> None:
    """Dots, spaces, quotes, wildcards, reserved words, 63 bytes, one name in two schemas."""
    names = [
        *(TableName("public", name[1:-1].replace('""', '"')) for name in ODD_NAMES),
        TableName("public", "orders"),
        TableName("sales", "orders"),
        TableName("a.b", "c"),
        TableName("a", "b.c"),
        TableName("_message", "t"),
    ]
    told_of = {
        name: [
            (m.subject.rpartition(".")[2], m.fields.get("data"))
            for m in told.stored
            if m.subject.startswith(f"cdc.{name.token}.")
        ]
        for name in names
    }

    row = {'na.me "ü': "x"}
    assert len({name.token for name in names}) == len(names)
    assert told_of == {name: [("schema", None), ("insert", row), ("delete", row)] for name in names}
    assert {name.token for name in names} <= told.shapes.keys()


def test_a_table_of_1600_columns_is_told_whole(told: Told) -> None:
    """PostgreSQL allows no more."""
    insert, update = told.changes("wide")

    assert list(insert["data"].values()) == list(range(1600))
    assert update["data"] == {**insert["data"], "c1599": None}
    assert len(told.shape("wide").columns) == 1600


def test_a_column_list_is_all_there_is(told: Told) -> None:
    """An update of columns that are not published still comes, and shows nothing of them."""
    assert [(c["operation"], c["data"]) for c in told.changes("listed")] == [
        ("INSERT", {"id": 1, "c": "c"}),
        ("UPDATE", {"id": 1, "c": "c"}),
        ("UPDATE", {"id": 2, "c": "c"}),
        ("DELETE", {"id": 2, "c": None}),
    ]
    assert told.changes("listed")[2]["key"] == {"id": 1}
    assert [c.position for c in told.shape("listed").columns] == [1, 4]


def test_a_row_that_leaves_a_filter_is_deleted_and_one_that_enters_is_inserted(told: Told) -> None:
    """A consumer holds exactly the rows that the filter lets through."""
    assert [(c["operation"], c["data"]) for c in told.changes("filtered")] == [
        ("INSERT", {"id": 1, "a": "in"}),
        ("UPDATE", {"id": 1, "a": "still in"}),
        ("DELETE", {"id": 1, "a": None}),
        ("INSERT", {"id": 2, "a": "still out"}),
        ("DELETE", {"id": 2, "a": None}),
    ]


def test_the_catalog_and_the_wal_describe_a_table_alike(told: Told, told_by_root: Told) -> None:
    """Else every start would announce a change of shape that never happened."""
    for run in (told, told_by_root):
        # An entry is also written again when the table's file is a new one, as after TRUNCATE.
        kinds = {token: {s.fingerprint for s in found} for token, found in run.shapes.items()}
        assert {token: len(found) for token, found in kinds.items() if len(found) > 1} == {}

"""`verify` against a real database that moves on, through a real bridge, into a real lake."""

from __future__ import annotations

import gc
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from lake_consumer.cli import main
from lake_consumer.config import LakeConfig, read_config
from lake_consumer.errors import HealRefused, LakeDiffers, WrongDatabase
from lake_consumer.iceberg.healing import Healer
from lake_consumer.verify import command
from lake_consumer.verify.report import terminal_printer
from tests.support.lake import LakeRig
from tests.support.rig import PUBLICATION, Rig

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

TABLES = (
    "CREATE TABLE accounts (id int8 PRIMARY KEY, owner text, balance numeric(12,2), until date,"
    " ratio float8, body text)",
    "ALTER TABLE accounts ALTER body SET STORAGE EXTERNAL",
    'CREATE TABLE "Tags" ("Name" text PRIMARY KEY, n int)',
    "CREATE TABLE marks (id uuid PRIMARY KEY, seen timestamptz, doc jsonb, list int[])",
    "CREATE SCHEMA sales",
    "CREATE TABLE sales.orders (region text, id int, day date, note bytea,"
    " PRIMARY KEY (region, id, day))",
    "CREATE TABLE hidden (id int PRIMARY KEY, shown bool)",
    f'CREATE PUBLICATION {PUBLICATION} FOR TABLE accounts, "Tags", marks, sales.orders,'
    " hidden WHERE (shown)",
    "ALTER TABLE hidden REPLICA IDENTITY FULL",
)
ROWS = (
    "INSERT INTO accounts SELECT n, 'owner ' || n, n / 7.0,"
    " CASE WHEN n % 50 = 0 THEN 'infinity' ELSE date '2025-01-01' + n END,"
    " CASE WHEN n % 60 = 0 THEN 'NaN' ELSE n / 3.0 END, repeat(md5(n::text), 200)"
    " FROM generate_series(1, 400) n",
    """INSERT INTO "Tags" SELECT chr(64 + n % 58) || 'é' || n, n FROM generate_series(1, 200) n""",
    "INSERT INTO marks SELECT md5(n::text)::uuid, '2025-12-08 13:45:21.719719+02',"
    " jsonb_build_object('a', n, 'b', n / 3.0), ARRAY[n, NULL] FROM generate_series(1, 200) n",
    "INSERT INTO marks VALUES ('00000000-0000-0000-0000-000000000001', '-infinity',"
    " '12345678901234567890123', '{{1,2},{3,4}}')",
    "INSERT INTO sales.orders SELECT r, n, '2025-01-01', '\\x00ff' FROM generate_series(1, 90) n,"
    " unnest(ARRAY['eu', 'us']) r",
    "INSERT INTO hidden SELECT n, n % 2 = 0 FROM generate_series(1, 20) n",
)


@dataclass
class Pipeline:
    """Database, bridge and lake; `verify` as the command line runs it."""

    rig: Rig
    lake: LakeRig
    config: LakeConfig
    capture: pytest.CaptureFixture[str]

    def catch_up(self) -> None:
        self.rig.stream()
        self.lake.drain()

    def verify(
        self, *tables: str, heal: bool = False, patience: float = 600
    ) -> tuple[list[dict[str, Any]], bool]:
        """Give what it says, and whether it says that all is well."""
        options = command.VerifyOptions(tables=tables, heal=heal, patience_seconds=patience)
        self.capture.readouterr()
        printer = terminal_printer(20, as_json=True)
        verifier = command.Verifier(self.config, options, printer, lambda: self.lake.spark)
        try:
            verifier.run()
            is_well = True
        except LakeDiffers:
            is_well = False
        out = self.capture.readouterr().out
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")], is_well


@pytest.fixture(scope="module")
def running(
    spark: SparkSession, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Rig, LakeRig, LakeConfig]]:
    """One pipeline for all tests here; each leaves lake and database equal."""
    folder = tmp_path_factory.mktemp("verify")
    database = postgres.create_database("verify")
    environ = {**postgres.env(database), "LAKE_WAREHOUSE": str(folder / "lake")}
    (folder / "lake").mkdir()
    with (
        temporary_folder() as place,
        EmbeddedNats(place) as nats,
        psycopg.connect(postgres.dsn(database), autocommit=True) as connection,
        Rig(connection, postgres, nats, folder) as rig,
    ):
        lake = LakeRig(spark, folder / "lake", nats.url)
        rig.execute(*TABLES)
        rig.start()
        rig.execute(*ROWS)
        environ |= {"NATS_URL": nats.url, "BRIDGE_PUBLICATION": PUBLICATION}
        yield rig, lake, read_config({}, environ, {})
    postgres.drop_database(database)


@pytest.fixture
def pipeline(
    running: tuple[Rig, LakeRig, LakeConfig],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pipeline]:
    # Small ranges, so that a few hundred rows are many ranges.
    monkeypatch.setattr("lake_consumer.verify.table.TableCheck.__init__.__defaults__", (20,))
    pipeline = Pipeline(*running, capsys)
    pipeline.catch_up()
    yield pipeline
    gc.collect()


MOVES = (
    "UPDATE accounts SET owner = 'moved' WHERE id % 10 = 3",  # body is unchanged TOAST
    "UPDATE accounts SET id = id + 1000 WHERE id % 10 = 4 AND id < 1000",
    "DELETE FROM accounts WHERE id % 10 = 5",
    "INSERT INTO accounts (id, owner) VALUES (5, 'again'), (9999, 'new')"
    " ON CONFLICT (id) DO UPDATE SET owner = 'more'",
    "UPDATE accounts SET balance = NULL, body = 'short' WHERE id = 13",
    'UPDATE "Tags" SET n = -n WHERE n < 5',
    'DELETE FROM "Tags" WHERE n > 190',
    "UPDATE sales.orders SET region = 'ap' || id WHERE id < 5 AND region <> 'us'",
    "UPDATE hidden SET shown = NOT shown WHERE id < 7",
)


def _moving(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *also: str) -> None:
    """Let the database and the lake move on after PostgreSQL was read and before the cut is."""
    wait = command.await_cut

    def move_and_wait(*arguments: Any) -> Any:
        pipeline.rig.execute(*MOVES)
        pipeline.catch_up()
        for statement in also:
            pipeline.lake.spark.sql(statement)
        return wait(*arguments)

    monkeypatch.setattr(command, "await_cut", move_and_wait)


def test_equal_tables_are_equal_although_the_database_moves_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes that PostgreSQL's snapshot does not see and the cut has are accounted for."""
    quiet, is_well = pipeline.verify()

    assert is_well, quiet
    assert {report["table"]: report["rows"] for report in quiet} == {
        "public.Tags": 200, "public.accounts": 400, "public.hidden": 10, "public.marks": 201,
        "sales.orders": 180,
    }  # fmt: skip
    assert all(report["ranges"] > 1 for report in quiet if report["rows"] > 100)
    assert all(report["replayed_changes"] == 0 for report in quiet)

    with monkeypatch.context() as moving:
        _moving(pipeline, moving)
        moved, is_well = pipeline.verify()

    assert is_well, moved
    assert {report["table"] for report in moved if report["replayed_changes"]} == {
        "public.Tags", "public.accounts", "public.hidden", "sales.orders",
    }  # fmt: skip
    assert len(moved) == 5


PLANTED = (
    "UPDATE lake.public.accounts SET balance = 11.11, until = NULL WHERE id = 7",
    "UPDATE lake.public.accounts SET owner = 'wrong' WHERE id = 13",
    "DELETE FROM lake.public.accounts WHERE id = 1014",
    "INSERT INTO lake.public.accounts (id, owner) VALUES (5000, 'extra')",
    "INSERT INTO lake.public.accounts SELECT * FROM lake.public.accounts WHERE id = 100",
    "UPDATE lake.public.marks SET list = array(1) WHERE doc = '12345678901234567890123'",
    "DELETE FROM lake.sales.orders WHERE region = 'us' AND id = 3",
)


def test_planted_differences_are_named_and_healed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in rows that moved while they were compared; healing leaves the table's place alone."""
    with monkeypatch.context() as moving:
        _moving(pipeline, moving, *PLANTED)
        found, is_well = pipeline.verify()

    assert not is_well
    by_table = {report["table"]: report for report in found}
    told = {
        (d["key"]["id"], d["kind"]): d["columns"]
        for d in by_table["public.accounts"]["differences"]
    }
    assert told == {
        (7, "differs"): {
            "balance": {"postgres": "1.00", "lake": "11.11"},
            "until": {"postgres": "2025-01-08", "lake": None},
        },
        (13, "differs"): {"owner": {"postgres": "moved", "lake": "wrong"}},
        (1014, "missing"): {},
        (5000, "extra"): {},
        (100, "repeated"): {},
    }
    (mark,) = by_table["public.marks"]["differences"]
    assert mark["columns"] == {
        "list": {"postgres": [[1, 2], [3, 4]], "lake": ["{{1,2},{3,4}}", [1]]}
    }
    assert by_table["sales.orders"]["differences"] == [
        {"key": {"region": "us", "id": 3, "day": "2025-01-01"}, "kind": "missing", "columns": {}}
    ]
    assert by_table["public.Tags"]["verdict"] == "equal"
    mirrored = [row["snapshot_id"] for row in pipeline.lake.cuts()]

    healed, is_well = pipeline.verify(heal=True)

    assert is_well, healed
    assert {report["table"] for report in healed if report["verdict"] == "healed"} == {
        "public.accounts", "public.marks", "sales.orders",
    }  # fmt: skip
    again, is_well = pipeline.verify()
    assert is_well, again
    assert [row["snapshot_id"] for row in pipeline.lake.cuts()] != mirrored
    pipeline.rig.execute("UPDATE accounts SET owner = 'later' WHERE id IN (7, 13)")
    pipeline.catch_up()
    assert pipeline.lake.drain() == 0
    last, is_well = pipeline.verify("accounts")
    assert is_well, last


def test_a_table_that_moved_on_is_not_healed_to_an_older_state(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that came after the comparison has the last word, and healing says so."""
    pipeline.lake.spark.sql("UPDATE lake.public.accounts SET owner = 'wrong' WHERE id = 7")
    heal = Healer.heal
    turns = iter(range(100))

    def move_first(*arguments: Any) -> None:
        pipeline.rig.execute(f"UPDATE accounts SET ratio = {next(turns)} WHERE id = 8")
        pipeline.catch_up()
        heal(*arguments)

    with monkeypatch.context() as moving:
        moving.setattr(Healer, "heal", move_first)
        with pytest.raises(HealRefused, match="written by others"):
            pipeline.verify("accounts", heal=True)

    assert next(turns) > 1
    assert not pipeline.verify("accounts")[1]
    assert pipeline.verify("accounts", heal=True)[1]
    assert pipeline.verify("accounts")[1]


def test_the_command_speaks_to_people_and_to_scripts(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 is a difference; a table nobody knows is a wrong question."""
    environ = {
        "LAKE_WAREHOUSE": pipeline.config.warehouse.removeprefix("file://"),
        "NATS_URL": pipeline.config.nats.url,
        "PG_HOST": pipeline.config.postgres.host,
        "PG_PORT": str(pipeline.config.postgres.port),
        "PG_DB": pipeline.config.postgres.database,
        "POSTGRES_BRIDGE_USER": pipeline.config.postgres.user,
        "POSTGRES_BRIDGE_PASSWORD": pipeline.config.postgres.password or "",
    }
    pipeline.lake.spark.sql("UPDATE lake.public.`Tags` SET n = 0 WHERE n = 7")

    assert main(["verify", "accounts", "Tags"], environ) == 4
    out, err = capsys.readouterr()
    assert "public.accounts  equal: " in out
    assert 'Name="Gé7"  not the same in both: n: PostgreSQL 7, lake 0' in out
    assert "1 of 2 tables differ: public.Tags" in err
    assert "--heal" in err
    assert pipeline.verify("Tags", heal=True)[1]
    assert main(["verify", "nobody"], environ) == 1
    assert main(["verify", "accounts"], {**environ, "PG_PORT": "1"}) == 3
    assert "PostgreSQL at" in capsys.readouterr().err


def test_another_database_is_called_by_its_name_and_not_compared(
    pipeline: Pipeline, postgres: EmbeddedPostgres
) -> None:
    """Its rows would all differ, and its positions in the WAL mean nothing to this lake."""
    name = postgres.create_database("verify_another")
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute("CREATE TABLE accounts (id int8 PRIMARY KEY)")
    elsewhere = replace(pipeline.config.postgres, database=name)
    other = replace(pipeline, config=replace(pipeline.config, postgres=elsewhere))

    with pytest.raises(WrongDatabase, match=rf"public\.accounts came .* which is {name} at"):
        other.verify("accounts", heal=True)

    postgres.drop_database(name)
    assert pipeline.verify("accounts")[1]


class Load:
    """A writer and a follower that go on, each in its thread, until told to stop."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.lake_moves = threading.Lock()
        """Held, the lake stands still."""

        self._pipeline = pipeline
        self._stop = threading.Event()
        self._turns = threading.Semaphore(0)
        self._threads = [threading.Thread(target=run) for run in (self._write, self._follow)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def let_the_database_move_on(self) -> None:
        while self._turns.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have been under way already
            assert self._turns.acquire(timeout=60)

    def _write(self) -> None:
        dsn = self._pipeline.rig.connection.info.dsn
        password = self._pipeline.config.postgres.password
        with psycopg.connect(dsn, password=password, autocommit=True) as connection:
            for turn in itertools.count():
                if self._stop.wait(0.1):
                    return
                key = [turn % 300 + 1]
                connection.execute("UPDATE accounts SET owner = owner || '!' WHERE id = %s", key)
                connection.execute("UPDATE accounts SET id = id + 20000 WHERE id = %s", key)
                connection.execute("UPDATE accounts SET id = id - 20000 WHERE id > 20010")
                connection.execute("DELETE FROM accounts WHERE id = 20001")
                self._turns.release()

    def _follow(self) -> None:
        while not self._stop.wait(0.05):
            if self.lake_moves.acquire(timeout=0.1):
                try:
                    self._pipeline.lake.drain(batches=1)
                finally:
                    self.lake_moves.release()


def test_under_load_nothing_is_called_different(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers and the follower go on while the tables are compared, freely and at the worst time.

    The second time the lake stands still until the database has moved on behind the snapshot, so
    that the cut is sure to have changes which the snapshot does not see.
    """
    wait = command.await_cut

    with Load(pipeline) as load:

        def move_and_wait(*arguments: Any) -> Any:
            load.let_the_database_move_on()
            pipeline.rig.stream()
            load.lake_moves.release()
            return wait(*arguments)

        freely = pipeline.verify("accounts")
        load.lake_moves.acquire()
        load.let_the_database_move_on()
        monkeypatch.setattr(command, "await_cut", move_and_wait)
        behind = pipeline.verify("accounts")

    assert freely[1], freely
    assert behind[1], behind
    assert behind[0][0]["replayed_changes"]


def test_a_table_that_is_gone_only_in_the_lake_is_a_difference(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be passed over in silence; one that nobody publishes may be."""
    properties = "ALTER TABLE lake.public__changes.marks SET TBLPROPERTIES ('bridge.state' = '%s')"
    pipeline.lake.spark.sql(properties % "gone")
    try:
        found, is_well = pipeline.verify(patience=1)
        assert not is_well
        [marks] = [one for one in found if one["table"] == "public.marks"]
        assert marks["verdict"] == "differs"
        assert marks["reason"].startswith("PostgreSQL publishes it; here it is gone since")
        assert not pipeline.verify("marks", heal=True, patience=1)[1]

        monkeypatch.setattr("lake_consumer.postgres.source.Source.published", lambda _: set())
        found, is_well = pipeline.verify()
        assert is_well
        assert [one["verdict"] for one in found if one["table"] == "public.marks"] == ["skipped"]
    finally:
        pipeline.lake.spark.sql(properties % "live")
    assert pipeline.verify("marks")[1]

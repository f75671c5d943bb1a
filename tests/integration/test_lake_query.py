"""The lake from a terminal: SQL over its tables, now and at every cut, without Spark.

A small bank moves money between two tables. At every cut the sum is what it always was, while each
table alone holds another sum than the cut before: so a reader who mixes two cuts is found out.
"""

from __future__ import annotations

import gc
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.embedded import EmbeddedNats, temporary_folder
from lake_consumer.cli import main
from lake_consumer.iceberg.datasets import LakeDataset
from lake_consumer.iceberg.names import RESYNCS
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.query.engine import answer
from lake_consumer.reading.relations import (
    ArrowRelation,
    ParquetRelation,
    Relation,
    open_relation,
)
from schemas.events import Change
from schemas.positions import Lsn
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

ACCOUNT = {"id": "int64", "owner": "text", "balance": "decimal(12,2)"}
TABLES = ("giro", "bank.savings")
OWNERS = 8
TOTAL = Decimal(2 * OWNERS * 100)
README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True)
class Bank:
    """A lake with a past, and how to ask it."""

    rig: LakeRig
    capture: pytest.CaptureFixture[str]
    transfers: dict[int, list[tuple[str, int]]]
    """What each transaction changed, in order: table and key, by its commit LSN."""

    def ask(self, *arguments: str) -> tuple[int, str, str]:
        folder = self.rig.warehouse.removeprefix("file://")
        code = main([*arguments, "--warehouse", folder], {})
        out, err = self.capture.readouterr()
        return code, out, err

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        code, out, err = self.ask(arguments[0], "--json", *arguments[1:])
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@dataclass
class Ledger:
    """Balances as PostgreSQL would hold them, and the changes that make them."""

    stream: HandMadeStream
    balances: dict[tuple[str, int], Decimal]
    transfers: dict[int, list[tuple[str, int]]]

    def open(self) -> None:
        for revision, table in enumerate(TABLES, start=1):
            shape = make_shape(table, ACCOUNT)
            self.stream.commit(
                announce(shape, revision),
                *[self._change("INSERT", table, number) for number in range(OWNERS)],
            )

    def move(self, random: random.Random) -> None:
        """Move money, mostly between the tables, sometimes within one of them."""
        (one, other) = random.sample(sorted(self.balances), 2)
        amount = Decimal(random.randrange(1, 5_000)) / 100
        self.balances[one] -= amount
        self.balances[other] += amount
        lsn = self.stream.commit(self._change("UPDATE", *one), self._change("UPDATE", *other))
        self.transfers[lsn] = [one, other]

    def _change(self, operation: Any, table: str, number: int) -> Change:
        balance = str(self.balances[table, number].quantize(Decimal("0.01")))
        data = {"id": number, "owner": f"owner {number}", "balance": balance}
        return change(table, operation, data, revision=1 + TABLES.index(table))


@pytest.fixture(scope="module")
def history(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LakeRig, dict[int, list[tuple[str, int]]]]]:
    with temporary_folder() as folder, EmbeddedNats(folder) as nats:
        rig = LakeRig(spark, tmp_path_factory.mktemp("bank"), nats.url)
        stream = HandMadeStream(nats.url)
        balances = {(table, n): Decimal(100) for table in TABLES for n in range(OWNERS)}
        ledger = Ledger(stream, balances, {})
        ledger.open()
        _write_note(stream, 0, "2025-12-08")
        stream.send()
        rig.drain()
        chance = random.Random(7)
        for _ in range(12):
            ledger.move(chance)
        _write_note(stream, 1, "infinity", text=("until",))
        stream.send()
        rig.drain(max_messages=5)
        _spoil_notes(rig)
        yield rig, ledger.transfers
    gc.collect()


NOTES = make_shape("notes", {"id": "int32", "until": "date", "Text": "text"})


def _write_note(stream: HandMadeStream, number: int, until: str, **more: Any) -> None:
    """A third table, with a value that its column cannot hold."""
    data = {"id": number, "until": until, "Text": "a\nb"}
    stream.commit(announce(NOTES, 3), change("notes", "INSERT", data, 3, **more))


def _spoil_notes(rig: LakeRig) -> None:
    """Let maintenance expire the first snapshot, and let the mirror be unreadable at the end."""
    first, last = (cut for cut in rig.cuts() if cut["table_name"] == "public.notes")
    rig.spark.sql(
        "CALL lake.system.expire_snapshots(table => 'public.notes', "
        f"snapshot_ids => ARRAY({first['snapshot_id']}))"
    )
    rig.spark.sql(
        "INSERT INTO lake._bridge.cuts SELECT table_name, commit_lsn + 1, commit_ts, "
        "stream_seq + 1, NULL, changes_snapshot_id, NULL, NULL FROM lake._bridge.cuts "
        f"WHERE table_name = 'public.notes' AND stream_seq = {last['stream_seq']}"
    )


@pytest.fixture
def bank(
    history: tuple[LakeRig, dict[int, list[tuple[str, int]]]], capsys: pytest.CaptureFixture[str]
) -> Bank:
    return Bank(history[0], capsys, history[1])


SUM = " UNION ALL ".join(f"SELECT balance, '{table}' AS t FROM {table}" for table in TABLES)
SUM = f"SELECT sum(balance) AS total, sum(balance) FILTER (t = 'giro') AS giro FROM ({SUM})"


def test_the_sum_is_right_at_every_cut(bank: Bank) -> None:
    """All tables are read at one state of the database, whichever way it is named."""
    cuts = bank.rows("cuts")
    halves = set()
    for cut in cuts:
        for when in (cut["lsn"], str(cut["commit_lsn"]), cut["commit_ts"]):
            (found,) = bank.rows("query", "--at", when, SUM)
            assert Decimal(found["total"]) == TOTAL, when
            halves.add(found["giro"])

    assert len(cuts) > 5
    assert len(halves) > 5
    assert bank.rows("query", "--at", "latest-cut", SUM) == bank.rows("query", SUM)


def test_the_sum_is_right_at_every_cut_for_spark_too(bank: Bank) -> None:
    """The cuts are plain data: any engine can travel by them."""
    rows = bank.rig.cuts()
    for end in {row["stream_seq"] for row in rows}:
        total = Decimal(0)
        for table in ("public.giro", "bank.savings"):
            past = [r for r in rows if r["table_name"] == table and r["stream_seq"] <= end]
            snapshot = max(past, key=lambda row: row["stream_seq"])["snapshot_id"]
            query = f"SELECT sum(balance) FROM lake.{table} VERSION AS OF {snapshot}"
            total += bank.rig.spark.sql(query).collect()[0][0]
        assert total == TOTAL, end


def test_changes_of_one_transaction_come_in_order(bank: Bank) -> None:
    """The query of the README, over the logs of two tables."""
    queries = re.findall(r"```sql\n(.*?)```", README.read_text(), re.DOTALL)
    text = next(query for query in queries if "xid = 758" in query)
    query = text.replace("sales__changes.orders", "bank__changes.savings").replace(
        "public__changes.customers", "public__changes.giro"
    )
    for lsn, transfers in bank.transfers.items():
        found = bank.rows("query", query.replace("758", str(lsn // 10)))

        assert [row["seq"] for row in found] == [0, 1]
        assert [row["operation"] for row in found] == ["UPDATE", "UPDATE"]
        tables = [{"giro": "public.giro"}.get(table, table) for table, _ in transfers]
        spelled = {"customers": "public.giro", "orders": "bank.savings"}
        assert [spelled[row["table"]] for row in found] == tables
        assert [json.loads(row["new"])["id"] for row in found] == [key for _, key in transfers]


def test_tables_logs_and_cuts_are_all_just_tables(bank: Bank) -> None:
    """Under the names they have in PostgreSQL and in Spark."""
    (found,) = bank.rows(
        "query",
        "SELECT (SELECT count(*) FROM giro) AS a, (SELECT count(*) FROM lake.bank.savings) AS b, "
        "(SELECT count(*) FROM public__changes.giro WHERE new.id >= 0) AS c, "
        "(SELECT max(stream_seq) FROM _bridge.cuts) AS d",
    )

    assert (found["a"], found["b"]) == (OWNERS, OWNERS)
    assert found["c"] == bank.rig.spark.table("lake.public__changes.giro").count()
    assert found["d"] == max(row["stream_seq"] for row in bank.rig.cuts())


def test_duckdb_reads_the_files_as_pyiceberg_does(bank: Bank) -> None:
    """Mirrors with deletion vectors, change logs and cuts, all at every snapshot they have."""
    with LakeReader(bank.rig.catalog, bank.rig.warehouse) as lake:
        tables = {name: lake.load(name) for name in lake.names() if name != RESYNCS}
        deleted = 0
        for name, table in tables.items():
            for snapshot in table.snapshots():
                native = open_relation(table, snapshot.snapshot_id)
                assert isinstance(native, ParquetRelation), name
                deleted += any(bitmap is not None for bitmap in native.bitmaps)
                arrow = ArrowRelation(LakeDataset(table, snapshot.snapshot_id))

                assert _all_rows(native) == _all_rows(arrow), (name, snapshot)

    assert deleted > 3


def _all_rows(relation: Relation) -> list[str]:
    with answer("SELECT * FROM t", lambda _: ("public", "t"), lambda _: relation) as reader:
        return sorted(map(str, reader.read_all().to_pylist()))


def test_pyiceberg_opens_the_lake_as_the_readme_says(bank: Bank) -> None:
    """With nothing of ours."""
    (code,) = re.findall(r"```python\n(from pyiceberg.*?)```", README.read_text(), re.DOTALL)
    file = str(bank.rig.catalog.sqlite_file)
    here = code.replace("/lake/catalog.db", file).replace("public.users", "public.giro")
    found: dict[str, Any] = {}

    exec(here, found)
    found["lake"].close()

    assert found["rows"].num_rows == OWNERS


@pytest.mark.parametrize("when", ["7FFFFFFF/0", "2999-01-01"])
def test_a_moment_after_the_newest_cut_is_an_error(bank: Bank, when: str) -> None:
    """With the newest state that there is, and after the wait that was asked for."""
    newest = bank.rows("cuts")[0]["lsn"]

    code, out, err = bank.ask("query", "--at", when, "--wait", "0.1", "SELECT 1")

    assert (code, out) == (1, "")
    assert f"its newest cut is {newest}" in err


def test_cuts_end_at_the_cut_that_is_read(bank: Bank) -> None:
    """What was not known at that state is not shown in it."""
    oldest = bank.rows("cuts")[-1]

    (found,) = bank.rows(
        "query", "--at", oldest["lsn"], "SELECT max(commit_lsn) AS m FROM _bridge.cuts"
    )

    assert found["m"] == oldest["commit_lsn"]


def test_a_key_is_looked_up_with_few_columns(bank: Bank) -> None:
    """Filters on columns that are not shown work, too."""
    (found,) = bank.rows("query", "SELECT owner FROM giro WHERE id = 3 AND balance IS NOT NULL")

    assert found == {"owner": "owner 3"}


def test_values_without_a_native_form_are_in_the_text_map(bank: Bank) -> None:
    """PostgreSQL's text of an infinite date is exact; its column is null."""
    _, out, _ = bank.ask(
        "query", 'SELECT id, coalesce(_bridge_text[\'until\'], CAST(until AS TEXT)) AS u, "Text" '
        "FROM notes ORDER BY id", "--csv"
    )  # fmt: skip

    assert out == 'id,u,Text\n0,2025-12-08,"a\nb"\n1,infinity,"a\nb"\n'


def test_a_table_is_printed_for_people(bank: Bank) -> None:
    """Aligned, with the number of rows."""
    _, out, _ = bank.ask("query", "SELECT id, owner FROM giro ORDER BY id LIMIT 2")

    assert out == "id | owner\n---+--------\n 0 | owner 0\n 1 | owner 1\n(2 rows)\n"


def test_cuts_are_listed_for_people(bank: Bank) -> None:
    """Newest first, with positions as PostgreSQL writes them."""
    _, out, _ = bank.ask("cuts", "--limit", "3")

    lines = out.splitlines()
    newest = max(row["commit_lsn"] for row in bank.rig.cuts())
    assert len(lines) == 2 + 3
    assert lines[2].startswith(str(Lsn(newest)))
    assert "public.notes" in lines[2]


def test_a_snapshot_that_was_expired_is_said_to_be(bank: Bank) -> None:
    """The state is known and its data are gone; an older or newer one would be another state."""
    first = next(row for row in bank.rig.cuts() if row["table_name"] == "public.notes")

    code, out, err = bank.ask("query", "--at", str(first["commit_lsn"]), "SELECT * FROM notes")

    assert (code, out) == (1, "")
    assert "maintenance has expired it" in err


def test_a_mirror_that_cannot_be_read_at_a_cut_is_not_shown(bank: Bank) -> None:
    """It would be a stale table; its change log can still be read."""
    code, out, err = bank.ask("query", "--at", "latest-cut", "SELECT * FROM notes")

    assert (code, out) == (1, "")
    assert "the mirror of public.notes cannot be read from cut" in err
    (found,) = bank.rows(
        "query", "--at", "latest-cut", "SELECT count(*) AS n FROM public__changes.notes"
    )
    assert found["n"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("SELECT * FROM savings",), "no table savings; it has bank.savings"),
        (("SELECT * FROM gyro",), "no table gyro; it has public.giro"),
        (("SELECT ownr FROM giro",), 'Candidate bindings: "owner"'),
        (("SELECT * FORM giro",), "LINE 1: SELECT * FORM giro"),
        (("--at", "0/1", "SELECT 1"), "no cut at or before 0/1; its first is"),
        (("--at", "soon", "SELECT 1"), "neither a WAL position nor a time"),
        (("DROP TABLE giro",), "DROP is not a query"),
    ],
)
def test_a_wrong_question_gets_a_clear_answer(
    bank: Bank, arguments: tuple[str, ...], words: str
) -> None:
    """On standard error, so that a pipe behind it gets nothing wrong."""
    code, out, err = bank.ask("query", *arguments)

    assert code in (1, 2)
    assert out == ""
    assert words in err


def test_no_lake_is_said_and_none_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading must not leave an empty lake behind."""
    code = main(["query", "SELECT 1 FROM t", "--warehouse", str(tmp_path / "lake")], {})

    assert code == 1
    assert "there is no lake yet" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()

"""Tables that come, go and get other names: the lake follows DDL messages of a hand-made stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake_consumer.cli import main
from lake_consumer.errors import LakeError, NotGone, NotReadable, UnknownTable
from lake_consumer.forget import ask_forget
from lake_consumer.iceberg.lake import Lake
from lake_consumer.iceberg.moments import LakeAt, LakeNow
from lake_consumer.iceberg.names import LakeName
from lake_consumer.iceberg.reading import LakeReader, read_statuses
from lake_consumer.iceberg.table_ddl import TableDdl
from lake_consumer.query.engine import answer
from schemas.ddl import DdlEvent
from schemas.events import Change
from schemas.names import TableName
from schemas.positions import Lsn
from tests.support.lake import HandMadeStream, LakeRig, announce, change, ddl, make_shape

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

COLUMNS = {"id": "int64", "v": "text"}


def shape(table: str, relation: int, **columns: str) -> Any:
    return make_shape(table, columns or COLUMNS, relation=relation)


def put(table: str, relation: int, id: int, v: str, revision: int = 1) -> Change:
    return change(table, "INSERT", {"id": id, "v": v}, revision, relation)


def edit(table: str, relation: int, id: int, v: str, revision: int = 1) -> Change:
    return change(table, "UPDATE", {"id": id, "v": v}, revision, relation)


def drop(relation: int, table: str) -> DdlEvent:
    return DdlEvent("drop", relation, TableName.parse(table))


def rename(relation: int, before: str, after: str) -> DdlEvent:
    return DdlEvent("rename", relation, TableName.parse(before), TableName.parse(after))


def rows(rig: LakeRig, table: str) -> list[tuple[Any, Any]]:
    return [(row["id"], row["v"]) for row in rig.mirror(table)]


def logged(rig: LakeRig, table: str) -> list[str]:
    return [row["operation"] for row in rig.log(table)]


def at(rig: LakeRig, lsn: int, table: str) -> list[tuple[Any, Any]]:
    """What `query --at` shows."""
    namespace, name = table.split(".")
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        opened = LakeAt.choose(lake, Lsn(lsn)).open(LakeName(namespace, name))
    with answer("SELECT * FROM t", lambda _: ("public", "t"), lambda _: opened) as reader:
        return sorted((row["id"], row["v"]) for row in reader.read_all().to_pylist())


def now(rig: LakeRig, table: str) -> None:
    namespace, name = table.split(".")
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        LakeNow(lake).open(LakeName(namespace, name))


def state(rig: LakeRig, table: str) -> str:
    found = {status.name: status for status in read_statuses(rig.catalog, rig.warehouse)}
    namespace, name = table.split(".")
    return found[f"{namespace}__changes.{name}"].kind


def begin(stream: HandMadeStream, rig: LakeRig, **tables: int) -> int:
    """Bring tables into the lake, each with one row of its name."""
    lsn = 0
    for name, relation in tables.items():
        lsn = stream.commit(announce(shape(name, relation), 1), put(name, relation, 1, name))
    stream.send()
    rig.drain()
    return lsn


def test_a_dropped_table_is_gone_and_older_cuts_show_it(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """The newest cut is the database as it is now; an older one is as it was."""
    before = begin(stream, rig, a=1, b=2)
    since = stream.commit(edit("a", 1, 1, "late"), ddl(drop(1, "a")), put("b", 2, 2, "more"))
    stream.send()
    rig.drain()

    with pytest.raises(NotReadable, match=f"public.a is gone since {Lsn(since)}"):
        at(rig, since, "public.a")
    with pytest.raises(NotReadable, match="is gone since"):
        now(rig, "public.a")
    assert at(rig, before, "public.a") == [(1, "a")]
    assert at(rig, since, "public.b") == [(1, "b"), (2, "more")]
    assert logged(rig, "a") == ["INSERT", "UPDATE"]
    assert state(rig, "public.a") == "gone"
    assert rig.notes()["public__changes.a"] == f"gone since {Lsn(since)}: the table was dropped"

    assert rig.drain() == 0, "a consumer that starts anew says it again, and nothing else"


def test_dropped_and_created_again_with_other_columns_reloads(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Only a snapshot tells the new table's rows; its history goes on in the same log."""
    begin(stream, rig, a=1)
    made = shape("a", 7, id="int64", v="text", n="int64")
    stream.commit(
        ddl(drop(1, "a")),
        announce(made, 2),
        change("a", "INSERT", {"id": 5, "v": "new", "n": 1}, 2, 7),
    )
    stream.send()
    rig.drain()

    # This rig takes no snapshots: a consumer that can would load one.
    assert state(rig, "public.a") in ("loading", "parked")
    assert logged(rig, "a") == ["INSERT", "INSERT"]


def test_created_changed_and_dropped_in_one_batch_keeps_its_log(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    begin(stream, rig, b=2)
    stream.commit(announce(shape("a", 1), 1), put("a", 1, 1, "short"))
    stream.commit(ddl(drop(1, "a")))
    stream.send()
    rig.drain()

    assert state(rig, "public.a") == "gone"
    assert logged(rig, "a") == ["INSERT"]


def test_a_rename_keeps_rows_and_history(stream: HandMadeStream, rig: LakeRig) -> None:
    """Changes of both names in one batch and in one transaction are one table's, in order."""
    before = begin(stream, rig, a=1)
    stream.commit(edit("a", 1, 1, "under the old name"), put("a", 1, 2, "two"))
    after = stream.commit(
        edit("a", 1, 2, "2"),
        ddl(rename(1, "a", "b")),
        announce(shape("b", 1), 3),
        edit("b", 1, 1, "under the new name", 3),
    )
    stream.send()
    rig.drain()

    expected = [(1, "under the new name"), (2, "2")]
    assert rows(rig, "b") == expected
    assert logged(rig, "b") == ["INSERT", "UPDATE", "INSERT", "UPDATE", "UPDATE"]
    assert at(rig, after, "public.b") == expected
    assert at(rig, before, "public.a") == [(1, "a")]
    assert at(rig, before, "public.b") == [(1, "a")], "the present name does as well"
    with pytest.raises(LakeError):
        at(rig, after, "public.a")

    stream.commit(edit("a", 1, 2, "late", 3), edit("b", 1, 1, "later", 3))
    stream.send()
    rig.drain()
    assert rows(rig, "b") == [(1, "later"), (2, "late")], "a late change has the old name"


def test_texts_of_a_column_are_never_another_columns(stream: HandMadeStream, rig: LakeRig) -> None:
    """A row knows by the column's name what only text states, and rows are not rewritten by DDL."""

    def dated(at: dict[str, int]) -> Any:
        kinds = {name: "int64" if name == "id" else "date" for name in at}
        return make_shape("a", kinds, positions=at, relation=1)

    begin(stream, rig, b=2)
    stream.commit(
        announce(dated({"id": 1, "day": 2}), 1),
        change("a", "INSERT", {"id": 1, "day": "2025-12-08"}, 1, 1),
    )
    stream.commit(announce(dated({"id": 1, "till": 2}), 2, alone=True))
    stream.send()
    rig.drain()
    assert state(rig, "public.a") == "live", "no row holds a text, so no row is under a wrong name"
    infinite = {"id": 2, "till": "infinity"}
    stream.commit(change("a", "INSERT", infinite, 2, 1, text=("till",)))
    stream.commit(announce(dated({"id": 1}), 3, alone=True))
    stream.send()
    rig.drain()
    assert state(rig, "public.a") == "live", "nobody asks for a column that was dropped"
    assert [row["_bridge_text"] for row in rig.mirror("a")] == [None, {"till": "infinity"}]

    stream.commit(announce(dated({"id": 1, "till": 3}), 4, alone=True))
    stream.send()
    rig.drain()

    assert state(rig, "public.a") in ("loading", "parked")
    assert "column till gave up its name" in rig.notes()["public__changes.a"]


def test_two_tables_swap_names_in_one_transaction(stream: HandMadeStream, rig: LakeRig) -> None:
    before = begin(stream, rig, a=1, b=2)
    after = stream.commit(
        edit("a", 1, 1, "first"),
        edit("b", 2, 1, "second"),
        ddl(rename(1, "a", "tmp"), rename(2, "b", "a"), rename(1, "tmp", "b")),
        announce(shape("b", 1), 3),
        put("b", 1, 9, "first", 3),
        announce(shape("a", 2), 4),
        put("a", 2, 9, "second", 4),
    )
    stream.send()
    rig.drain()

    assert rows(rig, "b") == [(1, "first"), (9, "first")]
    assert rows(rig, "a") == [(1, "second"), (9, "second")]
    assert at(rig, before, "public.a") == [(1, "a")]
    assert at(rig, before, "public.b") == [(1, "b")]
    assert at(rig, after, "public.a") == [(1, "second"), (9, "second")]


def test_a_new_table_under_the_old_name_shares_no_files(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """Orphans of one table must not be looked for among the files of another."""
    begin(stream, rig, a=1)
    stream.commit(ddl(rename(1, "a", "b")), announce(shape("a", 5), 2), put("a", 5, 1, "new", 2))
    stream.send()
    rig.drain()

    assert rows(rig, "b") == [(1, "a")]
    assert rows(rig, "a") == [(1, "new")]
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        places = [lake.load(name).location() for name in lake.names()]
    assert len(set(places)) == len(places), places


def test_changes_from_before_a_rename_need_no_announcement(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """It expired before the lake began; KV knows who the table was, and has it by its new name."""
    stream.write_schemas((shape("a", 1), 1), (shape("b", 1), 2), gone=("a",))
    stream.commit(announce(shape("a", 1), 1), put("a", 1, 1, "old name"))
    stream.commit(announce(shape("b", 1), 2), put("b", 1, 2, "new name", 2))
    stream.send()
    stream.forget(2, before=True)

    with rig.following() as follower:
        follower.load()
        assert follower.step(None)

    assert [row["new"]["v"] for row in rig.log("b")] == ["old name", "new name"]
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        assert [str(table) for table in lake.states()] == ["public.b"]


def test_set_schema_is_a_rename_of_many_tables(stream: HandMadeStream, rig: LakeRig) -> None:
    begin(stream, rig, a=1, b=2)
    stream.commit(
        ddl(rename(1, "a", "sales.a"), rename(2, "b", "sales.b")),
        announce(shape("sales.a", 1), 3),
        edit("sales.a", 1, 1, "moved", 3),
    )
    stream.send()
    rig.drain()

    assert rows(rig, "sales.a") == [(1, "moved")]
    assert rows(rig, "sales.b") == [(1, "b")]


def test_a_name_that_another_history_has_is_reloaded_visibly(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """DROP TABLE b; ALTER TABLE a RENAME TO b."""
    begin(stream, rig, a=1, b=2)
    stream.commit(
        ddl(drop(2, "b"), rename(1, "a", "b")),
        announce(shape("b", 1), 3),
        edit("b", 1, 1, "renamed", 3),
    )
    stream.send()
    rig.drain()

    assert state(rig, "public.a") == "gone"
    assert state(rig, "public.b") in ("loading", "parked")
    with pytest.raises(LakeError, match="cannot be read"):
        at(rig, stream.lsn, "public.b")


class DiesAfter(TableDdl):
    """Is gone after some renames in the catalog."""

    renames = 1

    def rename(self, before: LakeName, after: LakeName) -> None:
        if self.renames == 0:
            raise ConnectionAbortedError
        self.renames -= 1
        super().rename(before, after)


@pytest.mark.parametrize("renames", [0, 1, 3, 5])
def test_a_rename_that_was_interrupted_is_finished(
    stream: HandMadeStream, rig: LakeRig, renames: int
) -> None:
    """Two tables swap names in six steps; whoever comes next finishes them from anywhere."""
    before = begin(stream, rig, a=1, b=2)
    stream.commit(
        edit("a", 1, 1, "first"),
        ddl(rename(1, "a", "tmp"), rename(2, "b", "a"), rename(1, "tmp", "b")),
        announce(shape("b", 1), 3),
        put("b", 1, 9, "first", 3),
    )
    stream.send()

    class Dies(DiesAfter):
        pass

    Dies.renames = renames

    class DyingLake(Lake):
        ddl_class = Dies

    with pytest.raises(ConnectionAbortedError):
        rig.drain(lake_class=DyingLake)
    rig.drain()

    assert rows(rig, "b") == [(1, "first"), (9, "first")]
    assert rows(rig, "a") == [(1, "b")]
    assert at(rig, before, "public.a") == [(1, "a")]
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        assert not [name for name in lake.names() if "renaming" in name.name]


ODD_NAMES = (
    '"Odd"', "select", "two words", "it's", 'sales."a.b"', '"a.b".c', '"my ""schema""".t',
    "täble.t", "users.users", "lake.t", "per%cent", "semi;colon",
)  # fmt: skip


def test_every_name_works_everywhere(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever PostgreSQL lets a table be called: restarts, queries, cuts and requests."""
    names = dict(enumerate(ODD_NAMES, start=1))
    for relation, name in names.items():
        columns = {"id": "int64", "v": "text", 'q"uo.te': "text"}
        made = make_shape(name, columns, relation=relation)
        row = {"id": 1, "v": name, 'q"uo.te': "x"}
        stream.commit(announce(made, 1), change(name, "INSERT", row, 1, relation))
    stream.send()
    rig.drain()
    for relation, name in names.items():
        row = {"id": 2, "v": f"again {name}", 'q"uo.te': "x"}
        stream.commit(change(name, "INSERT", row, 1, relation))
    stream.send()
    rig.drain()

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main([*arguments, "--warehouse", rig.warehouse.removeprefix("file://")], {}) == 0
        return capsys.readouterr().out

    for name in ODD_NAMES:
        table = TableName.parse(name)
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in ("lake", *place(table)))
        for when in ([], ["--at", "latest-cut"]):
            found = run(
                "query", "--json", *when, f'SELECT v, "q""uo.te" AS q FROM {quoted} ORDER BY id'
            )
            assert [json.loads(line)["v"] for line in found.splitlines()] == [name, f"again {name}"]
        assert str(table) in run("cuts")
        assert str(table) in run("resync", name)
        assert str(table) in run("forget", "--force", name)
    with rig.following() as follower:
        follower.load()
    listed = {status.name for status in read_statuses(rig.catalog, rig.warehouse)}
    assert not [name for name in listed if not name.startswith("_bridge.")]


def place(table: TableName) -> tuple[str, str]:
    return table.schema, table.table


def forget(rig: LakeRig, *tables: str, purge: bool = False, force: bool = False) -> None:
    """Run `forget`, and a consumer that carries it out."""
    ask_forget(rig.config(), tables, purge=purge, force=force)
    rig.catch_up()


def test_a_forgotten_table_is_not_listed_and_can_come_back(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    before = begin(stream, rig, a=1, b=2)
    stream.commit(ddl(drop(1, "a")))
    stream.send()
    rig.drain()

    with pytest.raises(NotGone, match="is live"):
        ask_forget(rig.config(), ["b"], purge=False, force=False)
    with pytest.raises(UnknownTable):
        ask_forget(rig.config(), ["nothing"], purge=False, force=False)
    forget(rig, "a")

    listed = {status.name for status in read_statuses(rig.catalog, rig.warehouse)}
    assert not [name for name in listed if name.endswith(".a")]
    assert at(rig, before, "public.a") == [(1, "a")]

    stream.commit(announce(shape("a", 5), 7), put("a", 5, 1, "new", 7))
    stream.send()
    rig.drain()
    assert state(rig, "public.a") in ("loading", "parked")
    assert logged(rig, "a") == ["INSERT", "INSERT"]


def test_a_purged_table_leaves_nothing(stream: HandMadeStream, rig: LakeRig) -> None:
    begin(stream, rig, a=1, b=2)
    stream.commit(ddl(rename(1, "a", "c")), ddl(drop(1, "c")))
    stream.send()
    rig.drain()
    forget(rig, "c", purge=True)

    with LakeReader(rig.catalog, rig.warehouse) as lake:
        names = [str(name) for name in lake.names()]
        cuts = lake.cuts()
    assert not [name for name in names if name.endswith((".a", ".c"))]
    assert "public.c" not in cuts.unreadable()
    assert rows(rig, "b") == [(1, "b")]

    stream.commit(announce(shape("c", 9), 7), put("c", 9, 1, "another", 7))
    stream.send()
    rig.drain()
    assert rows(rig, "c") == [(1, "another")]


def test_a_table_that_is_not_gone_is_purged_only_by_force(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    begin(stream, rig, a=1, b=2)
    forget(rig, "a", purge=True, force=True)

    with LakeReader(rig.catalog, rig.warehouse) as lake:
        assert not [name for name in lake.names() if name.name == "a"]
    assert rows(rig, "b") == [(1, "b")]


def test_requests_mean_the_table_and_not_its_name(stream: HandMadeStream, rig: LakeRig) -> None:
    """While they wait, one table takes the name of another, and one is created anew."""
    begin(stream, rig, a=1, b=2, c=3, d=4)
    rig.resync("a", "c")
    ask_forget(rig.config(), ["b", "d"], purge=True, force=True)
    stream.commit(
        ddl(rename(1, "a", "tmp"), rename(2, "b", "a"), rename(1, "tmp", "b")),
        announce(shape("b", 1), 3),
        announce(shape("a", 2), 4),
        ddl(drop(3, "c"), drop(4, "d")),
        announce(shape("c", 7), 5),
        announce(shape("d", 8), 6),
        put("d", 8, 1, "another", 6),
    )
    stream.send()
    rig.drain()

    with rig.following() as follower:
        follower.load()

    reasons = {name: note for name, note in rig.notes().items() if "__changes" in name}
    assert "resync was asked for" in reasons["public__changes.b"]
    assert "resync was asked for" not in reasons["public__changes.c"]
    with LakeReader(rig.catalog, rig.warehouse) as lake:
        kept = sorted(name.name for name in lake.names() if name.namespace == "public__changes")
    assert kept == ["b", "c", "d"], "a, which was b, is the one that was to be purged"
    assert logged(rig, "d") == ["INSERT", "INSERT"]


def test_a_table_that_came_back_meanwhile_is_not_forgotten(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """The request is older than the table's return."""
    begin(stream, rig, a=1)
    stream.commit(ddl(drop(1, "a")))
    stream.send()
    rig.drain()
    ask_forget(rig.config(), ["a"], purge=True, force=False)
    stream.commit(announce(shape("a", 5), 7), put("a", 5, 1, "new", 7))
    stream.send()
    rig.drain()

    with rig.following() as follower:
        follower.load()

    assert logged(rig, "a") == ["INSERT", "INSERT"]

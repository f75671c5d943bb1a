"""Tables that come, go and get other names: the lake follows DDL messages of a hand-made stream."""

from __future__ import annotations

from typing import Any

import pytest

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

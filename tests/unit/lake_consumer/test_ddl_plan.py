"""What DDL messages of a batch mean, decided without a lake."""

from __future__ import annotations

from typing import Any

from lake_consumer.cuts import TableNames
from lake_consumer.ddl_plan import (
    DROPPED,
    NOT_PUBLISHED,
    UNPUBLISHED,
    Announced,
    Back,
    Ddl,
    DdlPlan,
    Former,
    Gone,
    Held,
    Move,
    Notice,
    former_property,
    plan_ddl,
    read_former,
    record_moves,
    routes_of,
)
from schemas.ddl import DdlEvent, DdlKind
from schemas.names import TableName

A, B, C, TMP = (TableName("public", name) for name in ("a", "b", "c", "tmp"))
SOURCE = "7/1/slot"


def held(name: TableName, relation: int, **more: Any) -> Held:
    return Held(name=name, relation=relation, **{"source": SOURCE, "revision": 1, **more})


def announced(
    at: int, name: TableName, relation: int, revision: int = 5, source: str = SOURCE
) -> Announced:
    return Announced(
        sequence=at, lsn=at * 10, name=name, relation=relation, source=source, revision=revision
    )


def event(
    at: int, kind: DdlKind, relation: int, name: TableName, new: TableName | None = None
) -> Ddl:
    return Ddl(sequence=at, lsn=at * 10, source=SOURCE, event=DdlEvent(kind, relation, name, new))


def plan(*notices: Notice, lake: tuple[Held, ...] = (held(A, 1),), **more: Any) -> DdlPlan:
    return plan_ddl(notices, lake, **more)


def test_a_dropped_table_is_gone_since_the_commit() -> None:
    assert plan(event(3, "drop", 1, A)).ends == {A: Gone(30, DROPPED)}
    assert plan(event(3, "unpublish", 1, A)).ends == {A: Gone(30, UNPUBLISHED)}


def test_a_drop_of_an_earlier_table_of_the_name_is_ignored() -> None:
    """The catalog watch may report a drop after the next table of the name was announced."""
    assert plan(event(3, "drop", 9, A)).ends == {}


def test_dropping_twice_changes_nothing() -> None:
    found = plan(event(3, "drop", 1, A), event(4, "drop", 1, A))
    assert found.ends == {A: Gone(30, DROPPED)}
    assert plan(event(9, "drop", 1, A), lake=(held(A, 1, gone=DROPPED),)).ends == {}


def test_created_again_in_the_same_batch_is_back() -> None:
    found = plan(event(3, "drop", 1, A), announced(4, A, 2))
    assert found.ends == {A: Back(4, "the table was created anew", 2)}


def test_created_changed_and_dropped_in_one_batch_is_gone() -> None:
    found = plan(announced(2, B, 5), event(3, "drop", 5, B))
    assert found.ends == {B: Gone(30, DROPPED)}
    assert found.moves == ()


def test_unpublished_and_published_again_needs_a_snapshot_taken_after() -> None:
    found = plan(event(3, "unpublish", 1, A), event(7, "publish", 1, A))
    assert found.ends == {A: Back(7, "the table is published again", 1)}


def test_published_while_it_was_never_gone_means_nothing() -> None:
    """A bridge may report every table of the publication when it starts."""
    assert plan(event(3, "publish", 1, A), event(4, "publish", 8, B)) == DdlPlan(upto=4)


def test_an_old_announcement_does_not_bring_a_table_back() -> None:
    lake = (held(A, 1, gone=UNPUBLISHED, revision=5),)
    assert plan(announced(3, A, 1, revision=5), lake=lake).ends == {}
    assert plan(announced(3, A, 1, revision=6), lake=lake).ends == {
        A: Back(3, "the table is published again", 1)
    }


def test_a_rename_event_moves_the_table_and_routes_its_old_name() -> None:
    found = plan(event(3, "rename", 1, A, B))
    assert found.moves == (Move(A, B, 1),)
    assert found.routes == {("a", 1): "b"}
    assert found.name_of(A, 1) == B
    assert found.name_of(A, 2) == A


def test_an_announcement_of_the_same_relation_is_a_rename() -> None:
    assert plan(announced(3, B, 1)).moves == (Move(A, B, 1),)


def test_the_same_oid_of_another_database_is_another_table() -> None:
    assert plan(announced(3, B, 1, source="7/2/slot")).moves == ()
    assert plan(announced(3, B, 1), lake=(held(A, 1, source=""),)).moves == ()


def test_the_oid_of_a_dropped_table_may_be_used_again() -> None:
    lake = (held(A, 1, gone=DROPPED),)
    assert plan(announced(3, B, 1), lake=lake).moves == ()


def test_a_rename_told_twice_moves_once() -> None:
    found = plan(event(3, "rename", 1, A, B), announced(4, B, 1), event(5, "rename", 1, A, B))
    assert found.moves == (Move(A, B, 1),)
    assert plan(event(9, "rename", 1, A, B), lake=(held(B, 1),)).moves == ()


def test_names_are_swapped() -> None:
    found = plan(
        event(3, "rename", 1, A, TMP),
        event(4, "rename", 2, B, A),
        event(5, "rename", 1, TMP, B),
        lake=(held(A, 1), held(B, 2)),
    )
    assert found.moves == (Move(A, B, 1), Move(B, A, 2))
    assert found.routes == {("a", 1): "b", ("tmp", 1): "b", ("b", 2): "a"}


def test_a_new_table_under_the_old_name_is_another_table() -> None:
    found = plan(event(3, "rename", 1, A, B), announced(4, A, 9))
    assert found.moves == (Move(A, B, 1),)
    assert found.name_of(A, 9) == A
    assert found.name_of(A, 1) == B


def test_a_name_that_another_history_has_is_reloaded() -> None:
    """DROP TABLE b; ALTER TABLE a RENAME TO b."""
    found = plan(event(3, "drop", 2, B), event(4, "rename", 1, A, B), lake=(held(A, 1), held(B, 2)))
    assert found.moves == ()
    assert found.routes == {}
    assert found.ends == {
        A: Gone(40, "the table was renamed to public.b"),
        B: Back(4, "public.a was renamed to public.b", 1),
    }


def test_a_name_is_free_when_its_table_was_renamed_before() -> None:
    found = plan(
        event(3, "rename", 2, B, C),
        event(4, "rename", 1, A, B),
        event(5, "drop", 2, C),
        lake=(held(A, 1), held(B, 2)),
    )
    assert set(found.moves) == {Move(A, B, 1), Move(B, C, 2)}
    assert found.ends == {C: Gone(50, DROPPED)}


def test_a_catalog_that_cannot_rename_reloads() -> None:
    found = plan(event(3, "rename", 1, A, B), announced(4, B, 1), can_rename=False)
    assert found.moves == ()
    assert found.ends == {A: Gone(30, "the table was renamed to public.b")}


def test_a_name_of_a_foreign_table_is_not_taken() -> None:
    found = plan(event(3, "rename", 1, A, B), taken=frozenset({B}))
    assert found.moves == ()
    assert A in found.ends


def test_a_batch_taken_again_renames_nothing_twice() -> None:
    """There and back again: the second time the table is where it belongs."""
    former = record_moves((), (Move(A, B, 1),), 2)
    found = plan(
        announced(2, A, 1, revision=7),
        event(3, "rename", 1, A, B),
        event(4, "rename", 9, C, A),
        lake=(held(B, 1), held(A, 9)),
        former=former,
        renamed_upto=4,
    )
    assert found.moves == ()
    assert found.ends == {}
    assert found.name_of(A, 1) == B


def test_a_batch_taken_again_routes_the_name_in_the_middle_of_two_renames() -> None:
    """The journal knows where the table came from, not what it was called on the way."""
    found = plan(
        announced(2, B, 1, revision=2),
        event(3, "rename", 1, B, C),
        lake=(held(C, 1),),
        former=record_moves((), (Move(A, C, 1),), 2),
        renamed_upto=3,
    )
    assert found.moves == ()
    assert found.name_of(B, 1) == C


def test_created_and_renamed_in_one_batch_is_one_new_table() -> None:
    found = plan(announced(2, B, 5), event(3, "rename", 5, B, C))
    assert found.moves == ()
    assert found.name_of(B, 5) == C
    assert found.aliases == (Former(table=C, name=B, relation=5, until=0),)


def test_an_old_name_that_the_lake_never_saw_is_routed() -> None:
    """The lake saw b in KV `schemas`, and reads the stream from before the rename."""
    lake = (held(B, 1, revision=9),)
    found = plan(announced(3, A, 1, revision=4), event(4, "rename", 1, A, B), lake=lake)
    assert found.name_of(A, 1) == B
    assert found.moves == ()
    assert found.ends == {}


def test_a_table_whose_snapshots_were_refused_comes_back_with_its_new_name() -> None:
    found = plan(event(3, "rename", 1, A, B), lake=(held(A, 1, gone=NOT_PUBLISHED),))
    assert found.ends == {B: Back(3, "the table is published again", 1)}


def test_a_drop_reaches_a_table_that_waits_for_its_new_relation() -> None:
    lake = (held(A, 1, awaited=4),)
    assert plan(event(3, "drop", 4, A), lake=lake).ends == {A: Gone(30, DROPPED)}


def test_a_stale_rename_is_ignored() -> None:
    assert plan(event(3, "rename", 1, A, B), lake=(held(C, 1),)).moves == ()


def test_former_names_follow_the_table() -> None:
    first = record_moves((), (Move(A, B, 1),), 10)
    second = record_moves(first, (Move(B, C, 1), Move(TMP, B, 2)), 20)

    assert routes_of(second) == {("a", 1): "c", ("b", 1): "c", ("tmp", 2): "b"}
    assert read_former(former_property(second)) == second

    names = TableNames(second)
    assert [names.name_at(C, at) for at in (10, 11, 20, 21)] == [A, B, B, C]
    assert names.names_at([B, C], 20) == {TMP: B, B: C, C: C}
    assert names.names_at([B, C], 21) == {B: B, C: C}


def test_a_name_of_that_time_wins_over_the_present_one() -> None:
    """a became b, and another table is called a now."""
    names = TableNames(record_moves((), (Move(A, B, 1),), 10))
    assert names.names_at([A, B], 5) == {A: B, B: B}
    assert names.names_at([A, B], 15) == {A: A, B: B}

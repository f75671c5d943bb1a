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


def test_changes_under_a_name_that_another_table_has_by_now_are_routed() -> None:
    """a became b and another a was created before the lake looked into KV `schemas`."""
    lake = (held(A, 7, revision=9), held(B, 1, revision=8))
    found = plan(
        announced(3, A, 1, revision=2),
        event(4, "rename", 1, A, B),
        announced(5, A, 7, revision=9),
        lake=lake,
    )
    assert (found.name_of(A, 1), found.name_of(A, 7)) == (B, A)
    assert (found.moves, found.ends) == ((), {})


def test_a_table_that_kv_named_is_not_taken_for_the_one_before_it() -> None:
    """a became b and was dropped, and another b was created before the lake looked."""
    lake = (held(B, 7, revision=9, seen=8),)
    found = plan(
        announced(3, A, 1, revision=2),
        event(4, "rename", 1, A, B),
        announced(5, B, 1, revision=3),
        event(6, "drop", 1, B),
        announced(8, B, 7, revision=9),
        lake=lake,
    )
    assert found.ends == {A: Gone(40, "the table was renamed to public.b")}
    assert (found.name_of(B, 1), found.name_of(B, 7)) == (A, B)
    assert found.moves == ()


def test_what_happens_after_the_look_is_followed() -> None:
    lake = (held(A, 1), held(B, 7, revision=9, seen=8))
    found = plan(event(9, "drop", 7, B), event(10, "rename", 1, A, B), lake=lake)
    assert found.ends[B] == Back(10, "public.a was renamed to public.b", 1)


def test_a_table_whose_snapshots_were_refused_comes_back_with_its_new_name() -> None:
    found = plan(event(3, "rename", 1, A, B), lake=(held(A, 1, gone=NOT_PUBLISHED),))
    assert found.ends == {B: Back(3, "the table is published again", 1)}


def test_a_drop_reaches_a_table_that_waits_for_its_new_relation() -> None:
    lake = (held(A, 1, awaited=4),)
    assert plan(event(3, "drop", 4, A), lake=lake).ends == {A: Gone(30, DROPPED)}


def test_a_rename_is_followed_by_its_relation() -> None:
    """Changes showed the table by a name in between, and the rename speaks of the ends."""
    found = plan(event(3, "rename", 1, A, B), lake=(held(C, 1),))
    assert found.moves == (Move(C, B, 1),)
    there_and_back = plan(
        announced(2, B, 1), announced(3, A, 1, revision=1), event(4, "rename", 1, B, A)
    )
    assert there_and_back.moves == ()
    assert there_and_back.ends == {}


def test_a_stale_rename_is_ignored() -> None:
    """The lake has the table from a later look, from a batch taken again, or not at all."""
    late = event(3, "rename", 1, A, B)
    assert plan(late, lake=(held(C, 1, seen=3),)).moves == ()
    assert plan(late, lake=(held(C, 1),), renamed_upto=3).moves == ()
    assert plan(late, lake=(held(C, 1, gone=DROPPED),)).moves == ()
    assert plan(late, lake=(held(B, 1),)).moves == ()


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


def test_a_table_published_under_another_name_was_renamed_while_nobody_looked() -> None:
    """ALTER TABLE RENAME of an unpublished table writes no message for the consumer."""
    found = plan(event(3, "unpublish", 1, A), event(4, "publish", 1, B))
    assert found.moves == (Move(A, B, 1),)
    assert found.ends == {B: Back(4, "the table is published again", 1)}


def test_a_batch_taken_again_does_not_move_a_table_back_to_an_older_name() -> None:
    """The renames up to `renamed_upto` are done, the last of them included."""
    lake = (held(C, 1),)
    published = plan(event(4, "publish", 1, A), lake=lake, renamed_upto=4)
    told = plan(announced(4, B, 1, revision=7), lake=lake, renamed_upto=4)
    assert published.moves == ()
    assert told.moves == ()
    assert told.name_of(B, 1) == C


def test_a_batch_taken_again_knows_each_of_several_renames() -> None:
    former = record_moves((), (Move(A, B, 1), Move(TMP, C, 3)), 2)
    found = plan(
        announced(2, A, 1, revision=7), lake=(held(B, 1), held(C, 3)), former=former, renamed_upto=4
    )
    assert found.moves == ()
    assert found.aliases == ()


def test_an_older_announcement_that_comes_late_renames_nothing() -> None:
    """Its changes are still those of the table, under the name that it had then."""
    found = plan(announced(2, B, 5, revision=5), announced(3, C, 5, revision=4))
    assert found.name_of(C, 5) == B
    assert found.name_of(B, 5) == B


def test_a_lake_that_does_not_know_the_source_yet_learns_it() -> None:
    """Tables of an earlier version: the first announcement says which database they are of."""
    lake = (held(A, 1, source=""),)
    found = plan(announced(3, A, 1, revision=5), announced(4, B, 1, revision=6), lake=lake)
    assert found.moves == (Move(A, B, 1),)
    assert plan(event(3, "drop", 1, A), lake=lake).ends == {A: Gone(30, DROPPED)}


def test_a_drop_in_another_database_drops_nothing_here() -> None:
    assert plan(event(3, "drop", 1, A), lake=(held(A, 1, source="7/2/slot"),)).ends == {}


def test_a_drop_reaches_the_table_by_its_relation_whatever_its_name() -> None:
    """The bridge reports the name that it knew; the lake may have followed a rename since."""
    assert plan(event(3, "drop", 1, A), lake=(held(B, 1),)).ends == {B: Gone(30, DROPPED)}


def test_of_two_tables_of_one_relation_the_one_that_is_not_gone_is_meant() -> None:
    """A catalog that cannot rename keeps the old name as gone beside the new one."""
    lake = (held(A, 1, gone=UNPUBLISHED), held(B, 1))
    assert plan(announced(3, C, 1), lake=lake).moves == (Move(B, C, 1),)


def test_a_new_table_beside_one_that_could_not_be_renamed_is_followed_to_its_end() -> None:
    found = plan(announced(3, B, 1), event(4, "drop", 1, B), can_rename=False)
    assert found.ends == {
        A: Gone(30, "the table was renamed to public.b"),
        B: Gone(40, DROPPED),
    }


def test_a_table_announced_under_the_name_of_another_has_left_its_own() -> None:
    """b was dropped and a renamed to it, and no message tells of either."""
    found = plan(announced(3, B, 1), lake=(held(A, 1), held(B, 2)))
    assert found.ends == {A: Gone(30, "the table was renamed to public.b")}
    assert found.moves == ()


def test_a_rename_over_a_table_whose_end_was_not_told_reloads_the_name() -> None:
    found = plan(event(4, "rename", 1, A, B), lake=(held(A, 1), held(B, 2)))
    assert found.ends == {
        A: Gone(40, "the table was renamed to public.b"),
        B: Back(4, "public.a was renamed to public.b", 1),
    }


def test_a_rename_alone_brings_no_unpublished_table_back() -> None:
    found = plan(event(3, "rename", 1, A, B), lake=(held(A, 1, gone=UNPUBLISHED),))
    assert found.moves == (Move(A, B, 1),)
    assert found.ends == {}
    assert plan(announced(3, B, 1)).ends == {}


def test_changes_of_a_table_that_left_its_new_name_before_the_look_are_routed() -> None:
    """a became b for a moment; KV `schemas` already has the next b."""
    lake = (held(A, 1), held(B, 7, revision=9, seen=8))
    found = plan(event(4, "rename", 1, A, B), lake=lake)
    assert found.name_of(B, 1) == A
    assert B not in found.ends


def test_a_late_drop_does_not_end_the_next_table_of_a_name_that_came_back_before() -> None:
    """Published again as relation 1, then dropped and created anew: the drop is told last."""
    lake = (held(A, 1, awaited=1),)
    found = plan(announced(3, A, 2), event(4, "drop", 1, A), lake=lake)
    assert found.ends == {}


def test_a_late_drop_does_not_end_a_table_that_was_renamed_to_its_name() -> None:
    lake = (held(A, 1), held(B, 2, awaited=2))
    found = plan(event(3, "rename", 1, A, B), event(4, "drop", 2, B), lake=lake)
    assert found.ends[B] == Back(3, "public.a was renamed to public.b", 1)


def test_a_table_renamed_there_and_back_is_where_it_was() -> None:
    found = plan(event(3, "rename", 1, A, B), event(4, "rename", 1, B, A))
    assert found.moves == ()
    assert found.routes == {("b", 1): "a"}


def test_an_announcement_that_the_lake_has_followed_renames_nothing() -> None:
    """The newest shape is announced again under the name before, after a restart of the bridge."""
    found = plan(announced(3, B, 1, revision=5), lake=(held(A, 1, revision=5),))
    assert found.moves == ()
    assert found.name_of(B, 1) == A


def swapped(at: int, one: int, other: int, *, told: bool = True) -> tuple[Notice, ...]:
    """What a bridge tells of a swap in one transaction: a is now `one`, and b is `other`.

    The shapes come with the changes, the renames when the catalog is looked at next.
    """
    events = (event(at + 2, "rename", one, B, A), event(at + 2, "rename", other, A, B))
    shapes = (announced(at, A, one, revision=at), announced(at + 1, B, other, revision=at + 1))
    return (*shapes, *events) if told else events


def test_tables_that_swap_names_again_are_both_reloaded() -> None:
    """After the first swap b still awaits what it is already."""
    lake = (held(A, 2, revision=3), held(B, 1, revision=4, awaited=1))
    found = plan(*swapped(11, 1, 2), lake=lake)
    assert found.moves == ()
    assert found.routes == {}
    assert found.ends == {B: Back(12, "the table was created anew", 2)}


def test_a_swap_that_only_events_tell_of_leaves_no_table_gone() -> None:
    found = plan(*swapped(3, 2, 1, told=False), lake=(held(A, 1), held(B, 2)))
    assert found.ends == {
        A: Back(5, "public.b was renamed to public.a", 2),
        B: Back(5, "public.a was renamed to public.b", 1),
    }


def test_a_swap_of_which_one_table_changes_leaves_no_table_gone() -> None:
    shape, *_ = swapped(3, 2, 1)
    events = swapped(3, 2, 1, told=False)
    found = plan(shape, *events, lake=(held(A, 1), held(B, 2)))
    assert found.ends == {B: Back(5, "public.a was renamed to public.b", 1)}


def test_a_table_that_waits_for_its_new_relation_is_not_the_one_it_was() -> None:
    """The swap was told by events in an earlier batch; only a has changed since."""
    lake = (held(A, 1, awaited=2), held(B, 2, awaited=1))
    found = plan(announced(9, A, 2), lake=lake)
    assert found.ends == {}
    assert plan(event(10, "rename", 1, A, B), lake=lake).ends == {}


def test_the_relation_that_is_awaited_is_the_last_one_told() -> None:
    lake = (held(A, 1, gone=UNPUBLISHED),)
    found = plan(announced(3, A, 2, revision=5), announced(4, A, 3, revision=6), lake=lake)
    assert found.ends == {A: Back(3, "the table was created anew", 3)}


def test_an_earlier_name_of_a_table_that_kv_named_does_not_end_it() -> None:
    """a was dropped and created, became b, and a was created again before the lake looked."""
    lake = (held(A, 31, revision=4), held(B, 47, revision=10, seen=18))
    found = plan(
        announced(10, A, 47, revision=8),
        announced(13, A, 53, revision=9),
        announced(15, B, 47, revision=10),
        event(18, "drop", 31, A),
        event(18, "rename", 47, A, B),
        lake=lake,
    )
    assert found.ends == {}
    assert found.moves == ()
    assert (found.name_of(A, 47), found.name_of(A, 53)) == (B, A)


def test_a_rename_to_the_name_of_a_dropped_table_that_is_seen_late_reloads_it() -> None:
    """The lake lost sight of the relation; whoever has the name now has to be loaded."""
    lake = (held(B, 2, gone=DROPPED),)
    assert plan(event(4, "rename", 1, A, B), lake=lake).ends == {
        B: Back(4, "public.a was renamed to public.b", 1)
    }
    assert plan(event(4, "rename", 2, A, B), lake=lake).ends == {}
    seen = (held(B, 2, gone=DROPPED, seen=4),)
    assert plan(event(4, "rename", 1, A, B), lake=seen).ends == {}


def test_a_table_that_takes_its_former_name_back_gets_its_own_changes() -> None:
    """a became b, another a was created and dropped, and b became a again."""
    former = record_moves((), (Move(A, B, 1),), 2)
    found = plan(
        event(7, "drop", 9, A),
        event(8, "rename", 1, B, A),
        lake=(held(A, 9), held(B, 1)),
        former=former,
    )
    assert found.ends[A] == Back(8, "public.b was renamed to public.a", 1)
    assert found.name_of(A, 1) == A
    later = record_moves([*former, *found.aliases], (), 0)
    assert routes_of(later) == {}
    # And away from it once more.
    moved = record_moves(later, (Move(A, C, 1),), 20)
    assert routes_of(moved) == {("a", 1): "c"}
    assert TableNames(later).names_at([A, B], 2) == {A: B, B: B}
    assert TableNames(later).names_at([A, B], 9) == {A: A, B: B}


def test_the_last_word_on_a_name_counts_also_if_it_was_said_before() -> None:
    there, back = (Former(table=table, name=A, relation=1, until=0) for table in (B, A))
    assert routes_of(record_moves([there, back, there], (), 0)) == {("a", 1): "b"}

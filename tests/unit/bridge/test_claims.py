"""What any role may claim in the WAL, and what of it is believed."""

from __future__ import annotations

import itertools

from bridge.claims import MOST_ASKED, Claims
from schemas.ddl import CatalogState, DdlEvent
from schemas.names import TableName

OURS, OTHERS, JOINED = (TableName("public", name) for name in ("ours", "others", "joined"))
NAMES = {1: {OURS}, 2: set[TableName](), 3: set[TableName]()}
SEEN = {1}


def test_only_what_may_be_true_is_asked_for() -> None:
    """A claim about a relation that consumers never heard of needs no query to be left out."""
    events = [
        DdlEvent("drop", 1, OURS),
        DdlEvent("alter", 1, OURS),
        DdlEvent("drop", 2, OTHERS),
        DdlEvent("alter", 2, OTHERS),
        DdlEvent("publish", 3, JOINED),
    ]
    claims = Claims()

    asked = claims.to_ask(events, 700, SEEN)
    claims.learn(asked, {3: CatalogState(JOINED, is_published=True)})

    assert asked == [1, 3]
    true = [claims.is_true(event, NAMES[event.relation_id]) for event in events]
    assert true == [True, False, False, False, True]


def test_a_transaction_asks_for_a_relation_once() -> None:
    """However many messages it has; the next one may have changed everything."""
    claims, event = Claims(), DdlEvent("drop", 1, OURS)
    claims.learn(claims.to_ask([event], 700, SEEN), {})

    assert claims.to_ask([event] * 10, 700, SEEN) == []
    assert claims.is_true(event, {OURS})
    assert claims.to_ask([event], 701, SEEN) == [1]
    assert not claims.is_true(event, {OURS})


def test_a_transaction_cannot_ask_without_end() -> None:
    """Beyond the limit nothing is believed."""
    claims = Claims()
    for first in range(1, 3 * MOST_ASKED, MOST_ASKED // 2):
        events = [DdlEvent("publish", first + n, JOINED) for n in range(MOST_ASKED // 2)]
        asked = claims.to_ask(events, 700, ())
        claims.learn(asked, {one: CatalogState(JOINED, is_published=True) for one in asked})
        assert [claims.is_true(event, ()) for event in events] == [first < MOST_ASKED] * len(events)


def test_a_transaction_looks_at_a_table_once_for_each_kind_of_ddl() -> None:
    """A look reads the catalog several times, and any role can write a million messages."""
    claims = Claims()
    kinds = itertools.cycle([{"publish"}, {"alter"}, {"alter", "rewrite"}, {"rewrite"}])

    looks = [claims.may_look(1, 700, next(kinds)) for _ in range(1_000)]  # type: ignore[arg-type]

    assert [at for at, may in enumerate(looks) if may] == [0, 1, 2]
    assert claims.may_look(1, 701, {"alter"})


def test_a_table_that_the_wal_described_since_is_looked_at_again() -> None:
    """ALTER, INSERT, ALTER: the INSERT announced an older shape than the first look did."""
    claims = Claims()
    claims.may_look(1, 700, {"alter"})
    claims.described(1)

    assert claims.may_look(1, 700, {"alter"})


def test_the_looks_of_a_transaction_are_bounded() -> None:
    claims = Claims()

    assert all(claims.may_look(at, 700, {"alter"}) for at in range(MOST_ASKED))
    assert not claims.may_look(MOST_ASKED, 700, {"alter"})
    claims.described(1)
    assert not claims.may_look(1, 700, {"alter"})


def test_an_event_that_is_only_late_is_not_false() -> None:
    """And neither is one for which the catalog was not asked."""
    claims = Claims()
    drop, alter = DdlEvent("drop", 1, OURS), DdlEvent("alter", 1, OURS)
    assert not claims.is_false(drop, {OURS})

    claims.learn([1], {1: CatalogState(OURS, is_published=True)})
    assert claims.is_false(drop, {OURS})
    claims.learn([1], {})
    assert not claims.is_false(alter, {OURS})

"""How long a session waits for the batches of an older one, and what its message says when."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.errors import SinkLost, SourceLost
from bridge.jetstream import fence
from bridge.jetstream.fence import BATCH_SECONDS, EXPECTED_SUBJECT_SEQUENCE, Fence, Means, Vigil
from bridge.jetstream.frames import EXPECTED_SEQUENCE
from bridge.jetstream.refusals import WRONG_LAST
from schemas.codecs import CODECS
from schemas.events import LogicalMessage, Place
from schemas.names import TableName
from schemas.subjects import session_subject

SOURCE = "1/2/shop"
FIRST = Place(lsn=4, commit_lsn=4, commit_ts="now", xid=0, seq=0, last=True)
OWN = Place(lsn=8, commit_lsn=9, commit_ts="t", xid=7, seq=3, last=False)


def left(vigil: Vigil, asked: float, *, leader: str = "a", is_disturbed: bool = False) -> float:
    return vigil.seconds_left(
        asked=asked, now=asked + 0.5, leader=leader, is_disturbed=is_disturbed
    )


def test_the_wait_lasts_a_batch_s_lifetime() -> None:
    vigil = Vigil(100.0, "a")
    assert left(vigil, 100) == BATCH_SECONDS
    assert left(vigil, 105) == BATCH_SECONDS - 5
    assert left(vigil, 200) == 0


@pytest.mark.parametrize("change", [{"leader": "b"}, {"is_disturbed": True}])
def test_the_wait_begins_again_when_a_batch_may_have_got_more_time(change: dict[str, Any]) -> None:
    """From the end of the look that shows it: it may have happened just then."""
    vigil = Vigil(100.0, "a")
    assert left(vigil, 111, **change) == BATCH_SECONDS + 0.5
    assert left(vigil, 112, leader=change.get("leader", "a")) == BATCH_SECONDS - 0.5


@dataclass
class Stream:
    """A stream and a registry of it, as far as a fence needs them."""

    session: tuple[int, dict[str, Any] | None] = (0, None)
    place: Place | None = OWN
    looks: list[tuple[int, str]] = field(default_factory=list)
    """What the stream's end and leader are, look by look; the last stays."""

    written: list[bool] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    published: list[dict[str, Any]] = field(default_factory=list)
    source: str = SOURCE
    slot: str = "shop"
    content_type: str = "application/json"

    async def session_message(self) -> tuple[int, dict[str, Any] | None]:
        self.did.append("read")
        return self.session

    async def slot_tables(self, tables: Any, _: Any) -> set[TableName]:
        return {*tables, TableName("public", "former")}

    async def last_place(self, tables: Any, _: Any) -> Place | None:
        assert len(tables) == 2
        return self.place

    async def chain_end(self) -> tuple[int, bool]:
        return 42, False

    async def end_and_leader(self) -> tuple[int, str]:
        return self.looks.pop(0) if len(self.looks) > 1 else (*self.looks, (42, "a"))[0]

    async def stored_behind(self, _: int, tables: Any, __: Any) -> Any:
        assert len(tables) == 2
        is_written = self.written.pop(0) if self.written else False
        return SimpleNamespace(subject="cdc.users.insert") if is_written else None

    def encode(self, message: LogicalMessage) -> bytes:
        return CODECS["json"].encode(message.to_map())

    async def publish(self, subject: str, body: bytes, headers: dict[str, str], **_: Any) -> Any:
        assert subject == session_subject(SOURCE)
        fields = json.loads(body)
        expected = int(headers[EXPECTED_SUBJECT_SEQUENCE])
        assert expected == self.session[0], "the server would reject it"
        shared = json.loads(fields["content"])["shared"]
        self.did.append(f"store shared={shared}")
        self.published.append(fields)
        self.session = (self.session[0] + 40, fields)
        return SimpleNamespace(seq=self.session[0])


def session(*, shared: bool) -> tuple[int, dict[str, Any]]:
    return 2, {"content": json.dumps({"slot": "shop", "shared": shared})}


class Clock:
    """Time that passes only while somebody sleeps, and a little with every look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(fence, "monotonic", self.tell)
        monkeypatch.setattr(fence, "is_set_within", self.rest)

    def tell(self) -> float:
        self.now += 0.001
        return self.now

    async def rest(self, event: asyncio.Event, seconds: float) -> bool:
        self.now += seconds
        return event.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def make(stream: Stream, **means: Any) -> Fence:
    async def demand_slot() -> None:
        stream.did.append("demand slot")

    standard: dict[str, Any] = {
        "tables": [TableName("public", "users")],
        "first_place": FIRST,
        "demand_slot": demand_slot,
        "meanwhile": lambda: None,
        "stop": asyncio.Event(),
    }
    anything: Any = stream
    return Fence(anything, anything, Means(**{**standard, **means}))


@pytest.mark.parametrize("before", [(0, None), session(shared=False)], ids=["none", "alone"])
async def test_a_session_alone_leaves_the_stream_as_it_is(
    before: tuple[int, dict[str, Any] | None],
) -> None:
    stream = Stream(before)
    assert await make(stream).take_over(shared=False)
    assert stream.did == ["read"]


@pytest.mark.parametrize("before", [(0, None), session(shared=False)], ids=["none", "alone"])
async def test_whoever_was_alone_is_not_waited_for(
    before: tuple[int, dict[str, Any] | None], clock: Clock
) -> None:
    """Each of its messages names what it follows, and that is this session's message now."""
    stream, began = Stream(before), clock.now
    made = make(stream)
    assert await made.take_over(shared=True)

    assert f"{EXPECTED_SUBJECT_SEQUENCE}: {before[0] + 40}\r\n" in made.header_lines
    assert (
        f"{EXPECTED_SUBJECT_SEQUENCE}-Subject: {session_subject(SOURCE)}\r\n" in made.header_lines
    )
    assert clock.now - began < 1
    assert stream.did == ["read", "demand slot", "store shared=True"]


@pytest.mark.parametrize("fields", [session(shared=True)[1], None, {"content": "{"}])
async def test_whoever_shared_the_stream_is_outwaited(
    fields: dict[str, Any] | None, clock: Clock
) -> None:
    """It may have a batch open. A message that cannot be read may be such a session's too."""
    stream, began = Stream((2, fields)), clock.now
    assert await make(stream).take_over(shared=True)
    assert BATCH_SECONDS <= clock.now - began < BATCH_SECONDS + 2


@pytest.mark.usefixtures("clock")
async def test_only_a_wait_that_is_over_frees_the_next_session_from_it() -> None:
    """A session that ends while it waits leaves the duty to the next one."""
    stop = asyncio.Event()
    stream = Stream(session(shared=True))
    assert not await make(stream, meanwhile=stop.set, stop=stop).take_over(shared=False)
    assert stream.did[-1] == "store shared=True"

    assert await make(stream).take_over(shared=False)

    assert stream.did[-2:] == ["store shared=True", "store shared=False"]


@pytest.mark.parametrize(
    ("looks", "written"),
    [
        ([(42, "a")] * 6 + [(43, "a")], [True]),
        ([(42, "a")] * 6 + [(42, "b")], []),
        ([(42, "a")] * 6 + [(42, "b")] + [(42, "a")] * 2, []),
    ],
    ids=["something stored", "another leader", "there and back"],
)
async def test_the_wait_begins_again(
    looks: list[tuple[int, str]], written: list[bool], clock: Clock
) -> None:
    began = clock.now
    stream = Stream(session(shared=True), looks=looks, written=written)
    assert await make(stream).take_over(shared=True)
    assert clock.now - began > BATCH_SECONDS + 4


async def test_what_others_store_does_not_prolong_the_wait(clock: Clock) -> None:
    began = clock.now
    looks = [(42 + n, "a") for n in range(100)]
    assert await make(Stream(session(shared=True), looks=looks)).take_over(shared=True)
    assert clock.now - began < BATCH_SECONDS + 2


@pytest.mark.usefixtures("clock")
async def test_the_wait_has_an_end_and_names_who_prolongs_it() -> None:
    """Whoever keeps writing to our subjects is no old session, which has little left to send."""
    looks = [(42 + n, "a") for n in range(1_000)]
    stream = Stream(session(shared=True), looks=looks, written=[True] * 1_000)
    with pytest.raises(SinkLost, match=r"cdc\.users\.insert was written"):
        await make(stream).take_over(shared=True)


async def test_a_server_that_stood_still_is_waited_for_again(clock: Clock) -> None:
    """Its timers may have stood still too."""
    stream, began, calls = Stream(session(shared=True)), clock.now, itertools.count()

    async def end_and_leader() -> tuple[int, str]:
        clock.now += 4 if next(calls) == 8 else 0
        return 42, "a"

    stream.end_and_leader = end_and_leader  # type: ignore[method-assign]
    assert await make(stream).take_over(shared=True)
    assert clock.now - began > BATCH_SECONDS + 10


@pytest.mark.usefixtures("clock")
async def test_the_wait_gives_signs_of_life_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beats: list[None] = []
    with caplog.at_level(logging.INFO, "bridge.jetstream"):
        await make(Stream(session(shared=True)), meanwhile=lambda: beats.append(None)).take_over(
            shared=True
        )
    assert len(beats) >= 10
    begun, over = (record.getMessage() for record in caplog.records)
    assert "waiting at least 12 s" in begun
    assert "waited 12." in over


async def test_a_session_that_lost_its_slot_stores_nothing() -> None:
    """Frozen before this, it would supersede its successor's message."""

    async def demand_slot() -> None:
        raise SourceLost("for the test")

    stream = Stream(session(shared=True))
    with pytest.raises(SourceLost):
        await make(stream, demand_slot=demand_slot).take_over(shared=True)
    assert stream.did == ["read"]


async def test_a_session_that_opened_meanwhile_is_noticed() -> None:
    """Alone, this session would have read the end behind the other's message."""
    stream = Stream(session(shared=False))
    made = make(stream)
    await made.take_over(shared=False)
    await made.demand_last()
    stream.session = (43, None)
    with pytest.raises(SinkLost, match="opened meanwhile"):
        await made.demand_last()


@pytest.mark.parametrize("shared", [True, False])
async def test_marks_are_tied_to_what_changes_are_tied_to(shared: bool) -> None:
    """To the stream's end only while nobody else moves it."""
    opening = await make(Stream()).open(shared=shared)
    assert opening is not None
    mine = {
        EXPECTED_SUBJECT_SEQUENCE: "40",
        f"{EXPECTED_SUBJECT_SEQUENCE}-Subject": session_subject(SOURCE),
    }
    assert opening.condition == (mine if shared else {EXPECTED_SEQUENCE: "42"})


@pytest.mark.parametrize(("own", "place"), [(OWN, OWN), (None, FIRST)])
async def test_the_message_stands_at_the_place_of_the_slot_s_own_last(
    own: Place | None, place: Place
) -> None:
    """Readers that cut the stream between transactions must not cut one there."""
    stream = Stream(place=own)
    await make(stream).take_over(shared=True)
    assert Place.from_map(stream.published[0]) == place


def test_a_condition_that_another_message_holds_up_breaks_the_chain() -> None:
    """In a cluster the server says so while a message on the same condition is on its way."""
    assert 10164 in WRONG_LAST

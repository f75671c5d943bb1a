"""What is known to be lost stays known until the stream says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import pytest

from bridge.config import NatsConfig
from bridge.errors import SinkLost
from bridge.gaps import gap_message
from bridge.history import StoredEnd
from bridge.jetstream.fence import Opening
from bridge.sources import SourceId
from bridge.status import Status
from bridge.tail_check import TailCheck
from bridge.tails import Acknowledged
from schemas.events import LogicalMessage
from schemas.positions import Lsn, Position

CONFIG = NatsConfig(host="localhost", port=4222)
OURS = SourceId("1", 2, "shop")
SLOT = Lsn(800)
LEFT = StoredEnd(Position(400, 0))
OPENING = Opening(None, 60, is_clustered=False)
MARK = gap_message(OURS, SLOT).place.position


@dataclass
class Stream:
    """A registry of a stream that went back to its 60th message."""

    failures: list[Exception] = field(default_factory=list)
    """What the next marks end with."""

    last: int = 60
    marks: list[LogicalMessage] = field(default_factory=list)
    last_fork: None = None

    async def chain_end(self) -> tuple[int, bool]:
        return self.last, False

    async def publish(self, message: LogicalMessage, condition: dict[str, str]) -> None:
        assert condition == OPENING.condition
        if self.failures:
            raise self.failures.pop(0)
        self.last += 1
        self.marks.append(message)


@pytest.fixture
def status() -> Status:
    return Status("shop", "pub")


@pytest.fixture
def check(status: Status) -> TailCheck:
    """A check that has seen 100 messages stored, and PostgreSQL told of some of them."""
    made = TailCheck(CONFIG, status)
    lane, progress = (
        SimpleNamespace(last_sequence=100),
        SimpleNamespace(acked_proof=700, safe_proof=500),
    )
    made.remember(cast("Any", lane), cast("Any", progress), Position(300, 0))
    return made


@dataclass
class Notes:
    """What an earlier process noted of the stream."""

    acknowledged: Acknowledged = field(default_factory=Acknowledged)

    async def remember(self, acknowledged: Acknowledged) -> None:
        self.acknowledged = acknowledged


async def session(
    check: TailCheck, stream: Stream, stored: StoredEnd = LEFT, notes: Notes | None = None
) -> None:
    places = {"ours": OURS, "start_lsn": SLOT, "stored": stored, "opening": OPENING}
    await check.check(cast("Any", stream), cast("Any", notes or Notes()), **cast("Any", places))


async def test_a_loss_that_only_an_earlier_process_could_see_is_settled_once(
    status: Status,
) -> None:
    """The mark is made first: who dies between mark and note finds the mark at the end."""
    stream, notes = Stream(), Notes(Acknowledged(100, 700, 500))
    with pytest.raises(SinkLost, match="the gap is marked"):
        await session(TailCheck(CONFIG, status), stream, LEFT, notes)
    assert notes.acknowledged == Acknowledged(60, 400)

    notes.acknowledged = Acknowledged(100, 700, 500)
    await session(TailCheck(CONFIG, status), stream, StoredEnd(MARK), notes)

    assert len(stream.marks) == 1
    assert not notes.acknowledged.confirmed


async def test_a_mark_that_fails_is_made_by_the_next_session(
    check: TailCheck, status: Status
) -> None:
    """The loss was forgotten with the first try, and the gap never marked."""
    stream = Stream([nats.errors.TimeoutError()])
    with pytest.raises(SinkLost, match="does not answer"):
        await session(check, stream)
    assert (status.lost_tails, status.gaps_marked) == (0, 0)

    with pytest.raises(SinkLost, match="the gap is marked"):
        await session(check, stream)
    await session(check, stream, StoredEnd(MARK))

    assert [mark.place.position for mark in stream.marks] == [MARK]
    assert (status.lost_tails, status.lost_messages, status.gaps_marked) == (1, 40, 1)


async def test_a_mark_whose_answer_was_lost_is_not_made_again(
    check: TailCheck, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """It stands at the end of the stream, where nothing else can."""
    stream = Stream([nats.errors.TimeoutError()])
    with pytest.raises(SinkLost, match="does not answer"):
        await session(check, stream)
    stream.last += 1

    await session(check, stream, StoredEnd(MARK))
    await session(check, stream, StoredEnd(MARK))

    assert not stream.marks
    assert (status.lost_tails, status.gaps_marked) == (1, 1)
    assert "cannot be sent again" in caplog.messages[-1]


async def test_what_can_be_sent_again_is_reported_once(
    check: TailCheck, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    stream, stored = Stream(), StoredEnd(Position(600, 0))
    await session(check, stream, stored)
    await session(check, stream, stored)

    assert [message.endswith("they are sent again") for message in caplog.messages] == [True]
    assert (status.lost_tails, status.lost_messages, status.gaps_marked) == (1, 40, 0)

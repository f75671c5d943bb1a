"""The loop over doubles of both servers: the short way and the long way tell the same story."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.config import PublishLimits
from bridge.errors import HistoryForked
from bridge.history import StoredEnd, Witness
from bridge.hotpath import HotPath
from bridge.outbox import Message, Outbox, Outgoing
from bridge.pipeline import Pipeline
from bridge.progress import Progress
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import TableFacts, shape_of
from bridge.rowparts import OPERATIONS
from bridge.status import Status
from bridge.transactions import Assembler
from schemas.codecs import MSGPACK
from schemas.ddl import DdlEvent, DdlKind, format_ddl
from schemas.events import Place, iso_timestamp
from schemas.names import TableName
from schemas.positions import Position
from schemas.shapes import TableShape
from tests.support import wal

TABLE, OTHER = 9, 10
NOTHING = Position(0, 0)
COLUMNS = [("id", 20, True), ("name", 25, False)]


class ListSource:
    """Gives the reads it was made with, then nothing more."""

    def __init__(self, reads: Sequence[Sequence[bytes]]) -> None:
        self._reads = [list(read) for read in reads if read]
        self.is_drained = asyncio.Event()
        self.confirmed: list[int] = []

    async def read(self) -> list[bytes]:
        if self._reads:
            return self._reads.pop(0)
        self.is_drained.set()
        return await asyncio.Future()

    def confirm(self, lsn: int, *, ask: bool = False) -> None:  # noqa: ARG002
        self.confirmed.append(lsn)


class MemorySink:
    """Stores at once; acknowledges at the end of a batch, as a server does that has few of them."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.last_sequence = 0
        self.stored: list[tuple[str, str, bytes, str]] = []
        self.sends: list[tuple[int, bool]] = []
        self._unacked = 0

    async def send(
        self,
        messages: Sequence[Message],
        content_type: str,
        *,
        close: bool,
        on_stored: Callable[[int], None],
    ) -> None:
        assert content_type == MSGPACK.content_type
        for message in messages:
            if isinstance(message, Outgoing):
                self.stored.append((message.subject, message.msg_id, message.body, message.headers))
            else:
                subject, msg_id, body = message
                self.stored.append((subject.decode(), msg_id.decode(), body, ""))
        self._unacked += len(messages)
        self.sends.append((len(messages), close))
        if close:
            self.last_sequence = len(self.stored)
            unacked, self._unacked = self._unacked, 0
            on_stored(unacked)

    async def watch(self) -> None:
        await asyncio.Future()


class KnownShapes:
    """Knows every table by its relation message alone."""

    def __init__(self) -> None:
        self.told_of: list[TableShape] = []

    async def shape(self, relation: Relation, place: Place) -> TableShape:  # noqa: ARG002
        return shape_of(relation, TableFacts(key=(1,)))

    async def altered(
        self,
        relation_id: int,  # noqa: ARG002
        place: Place,  # noqa: ARG002
        kinds: Collection[DdlKind],  # noqa: ARG002
    ) -> TableShape | None:
        return None

    def described(self, relation_id: int) -> None:
        pass

    def truncated(self, relation_id: int, xid: int) -> None:
        pass

    async def confirmed(self, events: Sequence[DdlEvent], _: Place) -> list[DdlEvent]:
        return [event for event in events if event.kind == "alter"]

    async def register(self, shape: TableShape, lsn: int) -> int:  # noqa: ARG002
        return 3

    async def announced(self, table: TableName) -> str | None:  # noqa: ARG002
        return None

    def told(self, shape: TableShape) -> None:
        self.told_of.append(shape)


class SlowRegistry(KnownShapes):
    """Is stopped while it registers a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def register(self, shape: TableShape, lsn: int) -> int:  # noqa: ARG002
        self.is_asked.set()
        await asyncio.Future()
        return 3


class MemoryStore:
    """Keeps oversize bodies."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def put(self, name: str, body: bytes) -> None:
        self.bodies[name] = body


async def run(
    reads: Sequence[Sequence[bytes]],
    *,
    is_hot: bool,
    stored: Position = NOTHING,
    witness: Witness | None = None,
    max_payload: int = 1 << 20,
    chunk_messages: int = 3,
    sends: list[tuple[int, bool]] | None = None,
    confirmed: list[int] | None = None,
    hold: timedelta = timedelta(0),
) -> dict[str, Any]:
    """Run a pipeline over these reads and tell everything that can be seen of it from outside."""
    source, sink, status = ListSource(reads), MemorySink(max_payload), Status("slot", "pub")
    oversize = MemoryStore()
    sink.sends = sends if sends is not None else []
    source.confirmed = confirmed if confirmed is not None else []
    pipeline = Pipeline(
        source=source,
        sink=sink,
        shapes=KnownShapes(),
        oversize=oversize,
        source_id="1/2/slot",
        progress=Progress(0, hold=hold),
        stored=StoredEnd(stored, witness),
        codec=MSGPACK,
        limits=PublishLimits(chunk_messages=chunk_messages),
        status=status,
    )
    if not is_hot:
        pipeline._hot.take = lambda frames, first: first  # type: ignore[method-assign]  # noqa: ARG005
    stop = asyncio.Event()
    running = asyncio.create_task(pipeline.run(stop))
    drained = asyncio.create_task(source.is_drained.wait())
    async with asyncio.timeout(30):
        await asyncio.wait({drained, running}, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        stop.set()
        await running
    return {
        "messages": [
            (subject, msg_id, MSGPACK.decode(body) if body else None, headers)
            for subject, msg_id, body, headers in sink.stored
        ],
        "oversize": {name: MSGPACK.decode(body) for name, body in oversize.bodies.items()},
        "confirmed": source.confirmed[-1],
        "acked": status.acked_lsn,
        "published": dict(status.published),
        "wal_messages": status.wal_messages,
        "skipped": status.skipped,
        "last_commit_ts": status.last_commit_ts,
        "in_flight": (status.in_flight_messages, status.in_flight_bytes),
    }


ROW = st.tuples(st.integers(0, 99).map(str), st.sampled_from(["a", "", None, "x" * 300]))
TABLES = st.sampled_from([TABLE, OTHER])
CHANGES: st.SearchStrategy[bytes] = st.one_of(
    st.builds(wal.insert, TABLES, ROW),
    st.builds(wal.update, TABLES, ROW),
    st.builds(wal.update, TABLES, ROW, ROW),
    st.builds(wal.update, TABLES, ROW, ROW, st.just("O")),
    st.builds(lambda t: wal.update(t, ["1", b"u"]), TABLES),
    st.builds(lambda t: wal.delete(t, ["1", None]), TABLES),
    st.builds(wal.truncate, st.just([TABLE, OTHER])),
    st.just(wal.relation(TABLE, "t", COLUMNS)),
    st.just(wal.relation(OTHER, "o", [("id", 23, True), ("at", 25, False)])),
    st.just(wal.message(5, "p", b"x")),
)
TRANSACTIONS = st.lists(
    st.tuples(st.lists(st.tuples(st.booleans(), CHANGES), max_size=6), st.integers(0, 10**16)),
    max_size=5,
)
HEAD = [wal.relation(TABLE, "t", COLUMNS), wal.relation(OTHER, "o", COLUMNS)]


def frame(lsn: int, payload: bytes) -> bytes:
    return b"w" + lsn.to_bytes(8) + bytes(16) + payload


def written(transactions: list[tuple[list[tuple[bool, bytes]], int]]) -> list[bytes]:
    """Frames of transactions; a change may share its WAL record with the one before, as COPY's."""
    frames = [frame(0, payload) for payload in HEAD]
    lsn = 0x100
    for changes, commit_time in transactions:
        commit_lsn = lsn + 0x1000
        frames.append(frame(commit_lsn, wal.begin(commit_lsn, xid=7, commit_time=commit_time)))
        for shares_record, payload in changes:
            lsn += 0 if shares_record else 0x10
            frames.append(frame(lsn, payload))
        frames.append(frame(commit_lsn, wal.commit(commit_lsn, commit_lsn + 8, commit_time)))
        frames.append(b"k" + (commit_lsn + 8).to_bytes(8) + bytes(9))
        lsn = commit_lsn + 0x20
    return frames


@settings(deadline=None, max_examples=60)
@given(TRANSACTIONS, st.lists(st.integers(0, 12), max_size=6), st.integers(0, 0x4000))
@example([([(False, wal.insert(TABLE, ["1", "a"]))] * 3, 1), ([], 2)], [], 0)
def test_the_short_way_tells_the_same_story(
    transactions: list[tuple[list[tuple[bool, bytes]], int]], cuts: list[int], stored: int
) -> None:
    """Whatever is plain, wherever a read ends and whatever is stored already: nobody can tell."""
    frames = written(transactions)
    reads, at = [], 0
    for cut in [*cuts, len(frames)]:
        reads.append(frames[at : at + cut])
        at += cut
    position = Position(stored, 1)

    short = asyncio.run(run(reads, is_hot=True, stored=position))

    assert short == asyncio.run(run([frames], is_hot=False, stored=position))


async def test_plain_transactions_never_go_the_long_way() -> None:
    """Else the short way could be closed and every other test would still pass."""
    rows = [(False, wal.insert(TABLE, [str(n), "a"])) for n in range(5)]
    rows += [(True, wal.update(TABLE, ["1", None])), (False, wal.delete(TABLE, ["1", None]))]
    frames = written([(rows[:1], 1), (rows, 2), (rows, 3), ([], 4)])
    taken: list[int] = []
    plain = Pipeline._take

    async def counting(self: Pipeline, frame: bytes) -> None:
        taken.append(frame[25] if frame[:1] == b"w" else frame[0])
        await plain(self, frame)

    Pipeline._take = counting  # type: ignore[method-assign]
    try:
        await run([frames], is_hot=True)
    finally:
        Pipeline._take = plain  # type: ignore[method-assign]

    # The relations, each operation's first change (which makes its row code), and the keepalives.
    assert bytes(taken).replace(b"k", b"") == b"RRIUD"


async def test_a_body_no_message_can_carry_is_set_aside_wherever_it_comes_from() -> None:
    large = wal.insert(TABLE, ["2", "y" * 9_000])
    frames = written([([(False, wal.insert(TABLE, ["1", "a"])), (False, large)], 1)])

    told = await run([frames], is_hot=True, max_payload=4_096)

    (name,) = told["oversize"]
    assert told["oversize"][name]["data"] == {"id": 2, "name": "y" * 9_000}
    assert told["messages"][-1][1:] == (name, None, f"Oversize: {name}\r\n")


async def test_what_sql_writes_under_the_bridges_prefixes_is_not_taken_for_its_word() -> None:
    """Any role can write it. Only events that the catalog confirms keep the prefix."""
    name = TableName("public", "t")
    alter, drop = DdlEvent("alter", TABLE, name), DdlEvent("drop", TABLE, name)
    written_by_sql = [
        ("bridge-ddl", format_ddl([alter])),
        ("bridge-ddl", format_ddl([alter, drop])),
        ("bridge-ddl", format_ddl([drop])),
        ("bridge-ddl", "no json"),
        ("bridge-gap", "{}"),
        ("bridge", "x"),
    ]
    messages = [
        (False, wal.message(5, prefix, content.encode())) for prefix, content in written_by_sql
    ]
    told = await run([written([(messages, 0)])], is_hot=True)

    stored = [fields for _, _, fields, _ in told["messages"]]
    assert [(fields["prefix"], fields["content"].decode()) for fields in stored] == [
        ("bridge-ddl", format_ddl([alter])),
        ("bridge-ddl", format_ddl([alter])),
        ("sql-bridge-ddl", format_ddl([drop])),
        ("sql-bridge-ddl", "no json"),
        ("sql-bridge-gap", "{}"),
        ("bridge", "x"),
    ]


async def test_a_session_may_begin_with_a_message_outside_any_transaction() -> None:
    """No commit was read yet, so none has a time: a heartbeat must not end the bridge."""
    beat = wal.message(0x100, "hb", b"", transactional=False)

    told = await run([[frame(0x100, beat)]], is_hot=True)

    assert [fields["prefix"] for _, _, fields, _ in told["messages"]] == ["hb"]
    assert told["last_commit_ts"] is None


async def test_few_changes_are_stored_at_once_and_many_keep_their_batch_open() -> None:
    """The end of a batch is waited for: no change waits for it in vain, and no backlog at all."""
    few, many = [list[tuple[int, bool]](), list[tuple[int, bool]]()]
    rows = [(False, wal.insert(TABLE, [str(n), "a"])) for n in range(150)]

    await run([written([(rows[:2], 1)])], is_hot=True, sends=few, chunk_messages=100)
    frames = written([(rows, 1), (rows, 2)])
    told = await run([frames[:155], frames[155:]], is_hot=True, sends=many, chunk_messages=100)

    assert few == [(3, True)], "the shape and two changes"
    assert [close for _, close in many] == [False] * (len(many) - 1) + [True]
    assert sum(count for count, _ in many) == 301
    assert many[-1] == (1, True), "the last of many ends the batch"
    assert told["in_flight"] == (0, 0)


async def test_a_transaction_of_the_short_way_is_confirmed_by_its_own_acks_alone() -> None:
    """Its end counts every message up to it: one less would confirm a change nobody stored."""
    relation = cast("Relation", decode_message(HEAD[0]))
    progress = Progress(0)
    outbox = Outbox(1 << 20, MSGPACK.ends)
    hot = HotPath(Assembler(), outbox, progress, Status("slot", "pub"), 0)
    for letter in OPERATIONS:
        hot.learn(letter, shape_of(relation, TableFacts(key=(1,))), 3)
    rows = [(False, wal.insert(TABLE, [str(n), "a"])) for n in range(3)]
    frames = [f for f in written([(rows, 1), (rows[:1], 2)])[2:] if f[:1] == b"w"]
    first, second = (int.from_bytes(f[35:43]) for f in frames if f[25:26] == b"C")

    # A read may end anywhere; here it leaves a change held back.
    assert (hot.take(frames[:3], 0), hot.take(frames, 3)) == (3, len(frames))

    seen = []
    for _ in range(4):
        progress.acknowledged(1, 0.0)
        seen.append(progress.acked_lsn)
    assert seen == [0, 0, first, second]
    assert progress.in_flight == 0


AGAIN = written([([(False, wal.insert(TABLE, ["1", "a"]))], 5), ([], 6),
                 ([(False, wal.insert(TABLE, ["2", "b"]))], 7)])  # fmt: skip
FIRST_COMMIT = 0x100 + 0x1000


@pytest.mark.parametrize("is_hot", [False, True])
async def test_nothing_is_sent_or_confirmed_by_a_server_of_another_history(is_hot: bool) -> None:
    """Its transactions have positions that the stream holds already, and are others."""
    stored = Position(FIRST_COMMIT, 0)
    confirmed: list[int] = []
    with pytest.raises(HistoryForked):
        await run([AGAIN], is_hot=is_hot, stored=stored, confirmed=confirmed,
                  witness=Witness(FIRST_COMMIT, 8, iso_timestamp(5)))  # fmt: skip
    assert not any(confirmed)


@pytest.mark.parametrize("is_hot", [False, True])
async def test_a_server_that_has_the_stream_s_last_transaction_goes_on_behind_it(
    is_hot: bool,
) -> None:
    stored = Position(FIRST_COMMIT, 0)
    found = await run([AGAIN], is_hot=is_hot, stored=stored,
                      witness=Witness(FIRST_COMMIT, 7, iso_timestamp(5)))  # fmt: skip
    assert [m[2]["data"]["id"] for m in found["messages"] if m[2] and "data" in m[2]] == [2]
    assert found["skipped"] == 1
    assert found["confirmed"] > FIRST_COMMIT


@pytest.mark.parametrize("shapes", [KnownShapes(), SlowRegistry()])
async def test_a_shape_counts_as_told_only_once_it_is_queued(shapes: KnownShapes) -> None:
    """A stop in between must leave the mark owed: what is told is not sent again."""
    source = ListSource([written([([(False, wal.insert(TABLE, ["1", "a"]))], 1)])])
    sink = MemorySink(1 << 20)
    pipeline = Pipeline(
        source=source,
        sink=sink,
        shapes=shapes,
        oversize=MemoryStore(),
        source_id="1/2/slot",
        progress=Progress(0),
        stored=StoredEnd(NOTHING),
        codec=MSGPACK,
        limits=PublishLimits(),
        status=Status("slot", "pub"),
    )
    reached = shapes.is_asked if isinstance(shapes, SlowRegistry) else source.is_drained
    stop = asyncio.Event()
    running = asyncio.create_task(pipeline.run(stop))
    async with asyncio.timeout(30):
        await reached.wait()
        stop.set()
        await running

    announced = [subject for subject, *_ in sink.stored if subject.endswith(".schema")]
    assert len(shapes.told_of) == len(announced)
    assert bool(announced) != isinstance(shapes, SlowRegistry)


@pytest.mark.parametrize("is_hot", [False, True])
async def test_what_is_acknowledged_and_not_yet_safe_is_not_confirmed(is_hot: bool) -> None:
    """Not while it streams, not when a keepalive asks, and not with its last word."""
    asking = b"k" + (0x2000).to_bytes(8) + bytes(8) + b"\x01"
    frames = [*written([([(False, wal.insert(TABLE, ["1", "a"]))], 0)]), asking]

    told = await run([frames[:-1], [asking]], is_hot=is_hot, hold=timedelta(hours=1))
    at_once = await run([frames], is_hot=is_hot)

    assert (told["confirmed"], told["acked"] > 0) == (0, True)
    assert at_once["confirmed"] > 0

"""Blocks: the changes of one table in a stretch of the stream, as one row that Spark carries about.

The executors decode every message once, into typed Arrow rows of the change log, and hand Spark a
few large rows: Arrow's own bytes, with facts beside them. What the driver has to know of a batch it
learns from the facts alone; whoever writes opens the bytes again, which costs next to nothing.

A block holds the changes of one *bucket* of keys, so that the fold finds all changes of a key by
moving blocks about, and not rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake_consumer.iceberg.datafiles import FileTarget
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.iceberg.facts import event_keys, sum_up
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.opening import write_ipc
from lake_consumer.order import Owners, Places, sum_up_order, write_stretches
from schemas.names import BadToken
from schemas.subjects import (
    FORK_PREFIX,
    ChangeSubject,
    is_session_subject,
    message_subject,
    parse_cdc_subject,
)

FILES = pa.list_(
    pa.struct(
        [("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("day", pa.string())]
    )
)
"""Lists of `Written`."""

BLOCKS = pa.schema(
    [
        ("token", pa.string()),
        ("bucket", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("inserts", pa.int64()),
        ("truncated", pa.int64()),
        ("unchanged", pa.bool_()),
        ("moved", pa.bool_()),
        ("lowest", pa.int64()),
        ("highest", pa.int64()),
        ("revision", pa.int64()),
        ("is_lacking", pa.bool_()),
        ("files", FILES),
        ("order", pa.string()),
        ("block", pa.binary()),
    ]
)

FOLDED_COLUMNS = ("operation", "stream_seq", "schema_revision", "unchanged", "new", "old")
"""What of a change its outcome depends on."""

DECODE_ROWS = 5_000
HELD_CHANGES = 50_000
EMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class TablePlan:
    """How the executors make blocks of one table."""

    decoder: Decoder
    key: KeyedRows | None
    buckets: int = 1
    log: FileTarget | None = None
    """Where the change log is written right here; blocks then hold what the mirror needs."""
    above: int = 0
    """The log has what is up to this sequence."""

    def write_log(self, changes: pa.RecordBatch) -> list[dict[str, Any]]:
        if self.log is None:
            return []
        if changes["stream_seq"][0].as_py() <= self.above:
            changes = changes.filter(pc.greater(changes["stream_seq"], self.above))
        return [file._asdict() for file in self.log.write(changes)]

    def block(self, changes: pa.RecordBatch) -> bytes | None:
        if self.log is None:
            return write_ipc(changes)
        return None if self.key is None else write_ipc(changes.select(FOLDED_COLUMNS))


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that cannot be applied, and why."""

    sequence: int
    subject: str
    reason: str


@dataclass(slots=True)
class _Pending:
    """Changes of one table that wait to be decoded, and what was decoded."""

    token: str
    sequences: list[int] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class BlockMaker:
    """Gathers the messages of one stretch of the stream by table; runs in the executors.

    Changes of a revision that no plan knows are not decoded: a row says which one is lacking. Those
    of `gone` revisions, which nobody knows any more, are refused.
    """

    def __init__(
        self,
        plans: Mapping[str, TablePlan],
        gone: frozenset[tuple[str, int]] = frozenset(),
        routes: Mapping[tuple[str, int], str] = {},
        owners: Owners | None = None,
    ) -> None:
        self._plans = plans
        self._gone = gone
        self._pending: dict[str, _Pending] = {}
        self._routes: dict[bytes, _Pending | None] = {}
        self._renamed = routes
        self._renamed_tokens = {token for token, _ in routes}
        self._owners = owners or {}
        self._unplaced: set[bytes] = set()
        self._messages: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        self._lacking: dict[tuple[str, int], int] = {}
        self._held = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= EMIT_BYTES

    def add(self, sequence: int, subject: bytes, change: dict[str, Any], size: int) -> None:
        """Take one decoded message; `ValueError` where it is none of ours."""
        try:
            pending = self._routes[subject]
        except KeyError:
            pending = self._route(subject, change)
        if pending is not None:
            pending.sequences.append(sequence)
            pending.changes.append(change)
            pending.bytes += size
            self._held += 1
            self._bytes += size
        elif subject not in self._unplaced:
            self._place(sequence, subject, change)

    def _place(self, sequence: int, subject: bytes, message: Mapping[str, Any]) -> None:
        """Note where a schema message or a logical message stands among those of its source."""
        place = message.get("commit_lsn"), message.get("seq")
        source = message.get("source")
        if isinstance(source, str) and all(isinstance(one, int) for one in place):
            token = subject.decode().removeprefix("cdc.")
            found = self._messages.setdefault((source, token), [])
            found.append((sequence, message["commit_lsn"], 2 * message["seq"]))

    def _route(self, subject: bytes, change: Mapping[str, Any]) -> _Pending | None:
        try:
            about = parse_cdc_subject(subject.decode())
        except (BadToken, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from error
        found = None
        if isinstance(about, ChangeSubject):
            token = about.table.token
            if token in self._renamed_tokens:
                # One name, several tables: the relation tells, so the subject alone never does.
                token = self._renamed.get((token, change["relation_id"]), token)
                return self._pending.setdefault(token, _Pending(token))
            found = self._pending.setdefault(token, _Pending(token))
        elif not _has_place(subject.decode()):
            self._unplaced.add(subject)
        self._routes[subject] = found
        return found

    def decode(self, *, all: bool = False) -> list[Refused]:
        """Decode what is worth it, or all there is; gives what cannot be."""
        refused: list[Refused] = []
        least = 1 if all or self._held > HELD_CHANGES else DECODE_ROWS
        for pending in self._pending.values():
            if len(pending.changes) >= least:
                self._held -= len(pending.changes)
                refused += self._decode(pending)
        return refused

    def _decode(self, pending: _Pending) -> list[Refused]:
        sequences, changes = pending.sequences, pending.changes
        pending.sequences, pending.changes = [], []
        plan = self._plans.get(pending.token)
        try:
            revisions = {change["schema_revision"] for change in changes}
            if plan is not None and revisions <= plan.decoder.shapes.keys():
                pending.batches.append(plan.decoder.decode(sequences, changes))
                return []
        except UNDECODABLE:
            pass
        # One by one, to find out which.
        refused = []
        for sequence, change in zip(sequences, changes, strict=True):
            try:
                if self._is_known(pending.token, change["schema_revision"], sequence):
                    batch = self._plans[pending.token].decoder.decode([sequence], [change])
                    pending.batches.append(batch)
            except UNDECODABLE as error:
                subject = f"cdc.{pending.token}.{str(change.get('operation')).lower()}"
                reason = f"{type(error).__name__}: {error}"
                refused.append(Refused(sequence, subject, reason))
        return refused

    def _is_known(self, token: str, revision: int, sequence: int) -> bool:
        plan = self._plans.get(token)
        if plan is not None and revision in plan.decoder.shapes:
            return True
        if (token, revision) in self._gone:
            raise LookupError(f"nobody knows revision {revision} of the table's shape")
        self._lacking.setdefault((token, revision), sequence)
        return False

    def emit(self) -> Iterator[pa.RecordBatch]:
        """Give the blocks of what was decoded since the last time."""
        order = write_stretches(sum_up_order(self._take_places()))
        rows = [row for pending in self._pending.values() for row in self._blocks(pending)]
        for (token, revision), sequence in self._lacking.items():
            lacking = {"token": token, "revision": revision, "first": sequence, "is_lacking": True}
            rows.append({name: lacking.get(name) for name in BLOCKS.names})
        self._lacking.clear()
        self._bytes = 0
        if not rows and order != NO_ORDER:
            # Logical messages alone: no table's block, and still a part of the order.
            rows.append(dict.fromkeys(BLOCKS.names) | {"token": "", "is_lacking": False})
        if rows:
            rows[0]["order"] = order
            yield pa.RecordBatch.from_pylist(rows, schema=BLOCKS)

    def _take_places(self) -> dict[str, list[Places]]:
        """Where everything that was decoded stands, by source."""
        found: dict[str, list[Places]] = {}
        for (source, token), placed in self._messages.items():
            found.setdefault(source, []).append(Places(token, *np.array(placed, dtype=np.int64).T))
        self._messages = {}
        for pending in self._pending.values():
            if not pending.batches:
                continue
            columns = [
                np.concatenate([batch[name].to_numpy() for batch in pending.batches])
                for name in ("stream_seq", "commit_lsn", "seq")
            ]
            places = Places(pending.token, columns[0], columns[1], 2 * columns[2] + 1)
            for source, part in places.by_source(self._owners):
                found.setdefault(source, []).append(part)
        return found

    def _blocks(self, pending: _Pending) -> Iterator[dict[str, Any]]:
        if not pending.batches:
            return
        plan = self._plans[pending.token]
        table = pa.Table.from_batches(pending.batches).combine_chunks()
        size, pending.batches, pending.bytes = pending.bytes, [], 0
        batch = table.to_batches()[0]
        files = plan.write_log(batch)
        for bucket, part in _split(batch, plan):
            facts = sum_up(part, plan.key)
            yield {
                "token": pending.token,
                "bucket": bucket,
                "bytes": size,
                "is_lacking": False,
                "files": files,
                "order": None,
                "block": plan.block(part),
                **facts,
            }
            size, files = 0, []


def _has_place(subject: str) -> bool:
    """Whether a message has a place of its own in the order of its source."""
    return not is_session_subject(subject) and subject != message_subject(FORK_PREFIX)


NO_ORDER = write_stretches(())

UNDECODABLE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    pa.ArrowException,
)
"""What a message that breaks the contract makes of the decoder."""


def _split(batch: pa.RecordBatch, plan: TablePlan) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows by the bucket of their key, each in stream order."""
    if plan.key is None or plan.buckets == 1 or batch.num_rows == 0:
        yield 0, batch
        return
    buckets = plan.key.buckets(event_keys(batch, plan.key), plan.buckets)
    order = np.argsort(buckets, kind="stable")
    sorted_batch = batch.take(pa.array(order))
    edges = np.searchsorted(buckets[order], np.arange(plan.buckets + 1))
    for bucket in range(plan.buckets):
        start, stop = int(edges[bucket]), int(edges[bucket + 1])
        if stop > start:
            yield bucket, sorted_batch.slice(start, stop - start)

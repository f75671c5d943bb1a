"""Blocks: the changes of one table in a stretch of the stream, as one row that Spark carries about.

The executors decode every message once, into typed Arrow rows of the change log, and hand Spark a
few large rows: Arrow's own bytes, with facts beside them. What the driver has to know of a batch it
learns from the facts alone; whoever writes opens the bytes again, which costs next to nothing.

A block holds the changes of one *bucket* of keys, so that the fold finds all changes of a key by
moving blocks about, and not rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake_consumer.iceberg.datafiles import FileTarget, Written, read_files
from lake_consumer.iceberg.decode import Decoder
from lake_consumer.iceberg.keys import KeyedRows
from schemas.names import BadToken
from schemas.subjects import ChangeSubject, parse_cdc_subject

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
        ("block", pa.binary()),
    ]
)

FOLDED_COLUMNS = ("operation", "stream_seq", "schema_revision", "unchanged", "new", "old")
"""What of a change its outcome depends on."""

DECODE_ROWS = 5_000
HELD_CHANGES = 50_000
EMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the blocks of one table hold, as far as it decides how they are written."""

    first: int
    last: int
    rows: int
    bytes: int
    inserts: int
    truncated: int | None
    unchanged: bool
    moved: bool
    lowest: int | None
    highest: int | None
    revision: int
    files: tuple[Written, ...] = ()
    """The change log's, where the executors have written them already."""

    @classmethod
    def of(cls, blocks: Sequence[Any]) -> Facts:
        """Sum up the facts of several blocks, given as rows of `BLOCKS`."""
        return cls(
            first=min(block["first"] for block in blocks),
            last=max(block["last"] for block in blocks),
            rows=sum(block["rows"] for block in blocks),
            bytes=sum(block["bytes"] for block in blocks),
            inserts=sum(block["inserts"] for block in blocks),
            truncated=max(_known(blocks, "truncated"), default=None),
            unchanged=any(block["unchanged"] for block in blocks),
            moved=any(block["moved"] for block in blocks),
            lowest=min(_known(blocks, "lowest"), default=None),
            highest=max(_known(blocks, "highest"), default=None),
            revision=max(block["revision"] for block in blocks),
            files=tuple(f for block in blocks for f in read_files(block["files"] or ())),
        )

    @property
    def edges(self) -> tuple[int, int] | None:
        """The range of the first key column, where it is an integer."""
        if self.lowest is None or self.highest is None:
            return None
        return self.lowest, self.highest


def _known(blocks: Iterable[Any], name: str) -> list[int]:
    return [block[name] for block in blocks if block[name] is not None]


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
        self, plans: Mapping[str, TablePlan], gone: frozenset[tuple[str, int]] = frozenset()
    ) -> None:
        self._plans = plans
        self._gone = gone
        self._pending: dict[str, _Pending] = {}
        self._routes: dict[bytes, _Pending | None] = {}
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
            pending = self._route(subject)
        if pending is not None:
            pending.sequences.append(sequence)
            pending.changes.append(change)
            pending.bytes += size
            self._held += 1
            self._bytes += size

    def _route(self, subject: bytes) -> _Pending | None:
        try:
            about = parse_cdc_subject(subject.decode())
        except (BadToken, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from error
        found = None
        if isinstance(about, ChangeSubject):
            token = about.table.token
            found = self._pending.setdefault(token, _Pending(token))
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
        except _UNDECODABLE:
            pass
        # One by one, to find out which.
        refused = []
        for sequence, change in zip(sequences, changes, strict=True):
            try:
                if self._is_known(pending.token, change["schema_revision"], sequence):
                    batch = self._plans[pending.token].decoder.decode([sequence], [change])
                    pending.batches.append(batch)
            except _UNDECODABLE as error:
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
        rows = [row for pending in self._pending.values() for row in self._blocks(pending)]
        for (token, revision), sequence in self._lacking.items():
            lacking = {"token": token, "revision": revision, "first": sequence, "is_lacking": True}
            rows.append({name: lacking.get(name) for name in BLOCKS.names})
        self._lacking.clear()
        self._bytes = 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=BLOCKS)

    def _blocks(self, pending: _Pending) -> Iterator[dict[str, Any]]:
        if not pending.batches:
            return
        plan = self._plans[pending.token]
        table = pa.Table.from_batches(pending.batches).combine_chunks()
        size, pending.batches, pending.bytes = pending.bytes, [], 0
        batch = table.to_batches()[0]
        files = plan.write_log(batch)
        for bucket, part in _split(batch, plan):
            facts = _facts(part, plan.key)
            yield {
                "token": pending.token,
                "bucket": bucket,
                "bytes": size,
                "is_lacking": False,
                "files": files,
                "block": plan.block(part),
                **facts,
            }
            size, files = 0, []


_UNDECODABLE = (
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


def event_keys(batch: pa.RecordBatch | pa.Table, key: KeyedRows) -> list[pa.Array]:
    """The key each change is about: of a delete the old row's, else the new row's."""
    is_delete = pc.equal(batch["operation"], "DELETE")
    pairs = zip(key.arrays(batch["old"]), key.arrays(batch["new"]), strict=True)
    return [_choose(is_delete, old, new) for old, new in pairs]


def _choose(mask: Any, yes: Any, no: Any) -> pa.Array:
    found = pc.if_else(mask, yes, no)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def moved_rows(batch: pa.RecordBatch | pa.Table, key: KeyedRows) -> np.ndarray[Any, Any]:
    """Which updates changed the key; under REPLICA IDENTITY FULL every update has an old row."""
    has_old = pc.and_(pc.equal(batch["operation"], "UPDATE"), pc.is_valid(batch["old"]))
    found = np.asarray(has_old.to_numpy(zero_copy_only=False), dtype=bool).copy()
    at = np.flatnonzero(found)
    if len(at):
        some = batch.take(pa.array(at))
        before, after = (key.tuples(key.arrays(_flat(some[name]))) for name in ("old", "new"))
        found[at] = [b != a for b, a in zip(before, after, strict=True)]
    return found


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _facts(batch: pa.RecordBatch, key: KeyedRows | None) -> dict[str, Any]:
    sequences = batch["stream_seq"]
    operations = {
        row["values"]: row["counts"] for row in pc.value_counts(batch["operation"]).to_pylist()
    }
    truncates = pc.filter(sequences, pc.equal(batch["operation"], "TRUNCATE"))
    lowest = highest = None
    if key is not None and key.has_edges:
        name = key.key[0].name
        ranges = [pc.min_max(pc.struct_field(batch[row], name)).as_py() for row in ("new", "old")]
        lowest = min((r["min"] for r in ranges if r["min"] is not None), default=None)
        highest = max((r["max"] for r in ranges if r["max"] is not None), default=None)
    return {
        "first": sequences[0].as_py(),
        "last": sequences[-1].as_py(),
        "rows": batch.num_rows,
        "inserts": operations.get("INSERT", 0),
        "truncated": pc.max(truncates).as_py(),
        "unchanged": bool(pc.any(pc.greater(pc.list_value_length(batch["unchanged"]), 0)).as_py()),
        "moved": key is not None and bool(moved_rows(batch, key).any()),
        "lowest": lowest,
        "highest": highest,
        "revision": pc.max(batch["schema_revision"]).as_py(),
    }


def write_ipc(batch: pa.RecordBatch | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_ipc(data: Any) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


@dataclass(frozen=True, slots=True)
class OpenBlocks:
    """Opens blocks again, for `mapInArrow`; changes up to `mark` are left out."""

    mark: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column(0):
                table = read_ipc(block.as_buffer())
                if self.mark:
                    table = table.filter(pc.greater(table["stream_seq"], self.mark))
                yield from table.to_batches()


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Opens Arrow bytes that need nothing left out; a null holds nothing."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0):
                if part.is_valid:
                    yield from read_ipc(part.as_buffer()).to_batches()

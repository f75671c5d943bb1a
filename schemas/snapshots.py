"""What the INIT stream carries around a snapshot's chunks, as maps; and what a checksum covers.

A consumer recomputes the checksum with any SHA-256: feed it the body of every chunk, in chunk
order, exactly as it arrived (an oversize one is the object's content), and compare.

That checksum needs one sequential pass over all chunks. A consumer that reads chunks concurrently
verifies `chunks_checksum` instead: the SHA-256 over the 32-byte SHA-256 digests of the chunk
bodies, in chunk order. Each reader hashes the chunks it reads, and the digests are combined at the
end, so no chunk is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from schemas.names import TableName


def moment(now: datetime | None = None) -> str:
    """Write a moment, by default this one, as ISO-8601 in UTC."""
    return (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """Which snapshot of which table: a transaction with commit_lsn < `lsn` is in it.

    Every change it lacks is in the CDC stream behind `cdc_sequence`, also for a consumer that comes
    to a snapshot that others asked for.
    """

    snapshot_id: str
    table: TableName
    lsn: int
    cdc_sequence: int

    def to_map(self) -> dict[str, Any]:
        return {
            "snapshot_id": self.snapshot_id,
            "table": self.table.table,
            "schema": self.table.schema,
            "lsn": self.lsn,
        }

    def start(self) -> dict[str, Any]:
        return {**self.to_map(), "cdc_sequence": self.cdc_sequence, "timestamp": moment()}

    def accepted(self) -> dict[str, Any]:
        return {
            "status": "accepted",
            "snapshot_id": self.snapshot_id,
            "lsn": self.lsn,
            "cdc_sequence": self.cdc_sequence,
        }

    def meta(
        self,
        *,
        batch_count: int,
        row_count: int,
        checksum: str,
        cdc_complete: int,
        schema_revision: int,
        whole: bool,
        chunks_checksum: str | None = None,
    ) -> dict[str, Any]:
        """Give what completes a snapshot.

        Every change with commit_lsn < `lsn` stands in the CDC stream at or before `cdc_complete`:
        who has read that far and applies what is not in the snapshot has the table as it is there.
        """
        return {
            **self.start(),
            "batch_count": batch_count,
            "row_count": row_count,
            "checksum": checksum,
            "cdc_complete": cdc_complete,
            "schema_revision": schema_revision,
            "whole": whole,
            **({"chunks_checksum": chunks_checksum} if chunks_checksum else {}),
        }

    def chunk_head(self, chunk: int, schema_revision: int) -> dict[str, Any]:
        """Give what stands before a chunk's rows."""
        return {
            **self.to_map(),
            "operation": "snapshot",
            "chunk": chunk,
            "schema_revision": schema_revision,
        }


def failure(snapshot_id: str, error: str, advice: str) -> dict[str, Any]:
    return {"snapshot_id": snapshot_id, "error": error, "advice": advice}


def chunk_digest(body: bytes) -> bytes:
    """Hash the body of one chunk; `combine_digests` combines those of all chunks."""
    return hashlib.sha256(body).digest()


def combine_digests(digests: Iterable[bytes]) -> str:
    """Give `chunks_checksum` for the digests of all chunks, in chunk order."""
    return _written(hashlib.sha256(b"".join(digests)).hexdigest())


def _written(digest: str) -> str:
    return f"sha256:{digest}"


class Checksum:
    """Adds up the bodies of a snapshot's chunks, in chunk order."""

    def __init__(self, bodies: Iterable[bytes] = ()) -> None:
        self._hash = hashlib.sha256()
        self._digests = hashlib.sha256()
        for body in bodies:
            self.add(body)

    def add(self, body: bytes) -> None:
        self._hash.update(body)
        self._digests.update(chunk_digest(body))

    def __str__(self) -> str:
        return _written(self._hash.hexdigest())

    @property
    def of_chunks(self) -> str:
        """The checksum that readers of single chunks can verify: `chunks_checksum`."""
        return _written(self._digests.hexdigest())

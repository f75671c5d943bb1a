"""What the INIT stream carries around a snapshot's chunks, as maps; and what a checksum covers.

A consumer recomputes the checksum with any SHA-256: feed it the body of every chunk, in chunk
order, exactly as it arrived (an oversize one is the object's content), and compare.
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


class Checksum:
    """Adds up the bodies of a snapshot's chunks, in chunk order."""

    def __init__(self, bodies: Iterable[bytes] = ()) -> None:
        self._hash = hashlib.sha256()
        for body in bodies:
            self.add(body)

    def add(self, body: bytes) -> None:
        self._hash.update(body)

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

"""`lake-consumer status`: where every table stands, read from the catalog without Spark."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lake_consumer.config import LakeConfig
from lake_consumer.errors import LakeError
from lake_consumer.iceberg.reading import TableStatus, read_statuses
from lake_consumer.jetstream.stream import CdcStream, StreamState
from schemas.positions import Lsn

_HEADINGS = (
    "table", "rows", "files", "deleted", "snapshots", "stream sequence", "commit LSN",
    "commit time", "state", "verified",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Status:
    """The lake's tables, and the stream if it can be reached."""

    tables: list[TableStatus]
    stream: StreamState | None
    stream_error: str | None


def read_status(config: LakeConfig) -> Status:
    tables = read_statuses(config.catalog, config.warehouse)
    try:
        with closing(CdcStream(config.nats)) as stream:
            return Status(tables, stream.state(), None)
    except LakeError as error:
        return Status(tables, None, str(error))


def render_status(status: Status) -> str:
    rows = [_HEADINGS, *(_cells(table) for table in status.tables)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADINGS))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if not status.tables:
        lines = ["The lake holds no tables yet."]
    notes = [f"{table.name}: {table.note}" for table in status.tables if table.note]
    if any("parked" in table.note for table in status.tables):
        notes.append("`lake-consumer resync TABLE` builds a mirror that is parked anew.")
    return "\n".join([*lines, "", *notes, _stream_line(status)])


def _cells(table: TableStatus) -> tuple[str, ...]:
    mark = table.watermark
    return (
        table.name,
        f"{table.rows:,}",
        str(table.data_files),
        f"{table.deleted_rows:,}",
        str(table.snapshots),
        str(mark.stream_sequence),
        str(Lsn(mark.commit_lsn)),
        mark.commit_ts,
        table.state,
        "" if table.verified is None else str(table.verified),
    )


def status_document(status: Status) -> dict[str, Any]:
    """The same for programs."""
    stream = status.stream
    return {
        "tables": [
            {
                "table": table.name,
                "state": table.state,
                "kind": table.kind,
                "verified": None
                if table.verified is None
                else {
                    "at": table.verified.at.isoformat(),
                    "verdict": table.verified.verdict,
                    "lsn": table.verified.lsn,
                },
                "rows": table.rows,
                "data_files": table.data_files,
                "deleted_rows": table.deleted_rows,
                "snapshots": table.snapshots,
                "stream_sequence": table.watermark.stream_sequence,
                "commit_lsn": table.watermark.commit_lsn,
                "lsn": str(Lsn(table.watermark.commit_lsn)),
                "commit_ts": table.watermark.commit_ts or None,
            }
            for table in status.tables
        ],
        "stream": None if stream is None else {"first": stream.first, "last": stream.last},
        "stream_error": status.stream_error,
        "behind_messages": None if stream is None else behind_messages(status, stream),
        "behind_seconds": None if stream is None else behind_seconds(status, stream),
    }


def behind_messages(status: Status, stream: StreamState) -> int:
    applied = max((t.watermark.stream_sequence for t in status.tables), default=0)
    return max(0, stream.last - applied)


def behind_seconds(status: Status, stream: StreamState) -> float:
    """Age of the newest commit in the lake; nothing while all there is is applied."""
    newest = max((t.watermark for t in status.tables), default=None)
    if newest is None or not newest.commit_ts or not behind_messages(status, stream):
        return 0.0
    age = datetime.now(UTC) - datetime.fromisoformat(newest.commit_ts)
    return max(0.0, age.total_seconds())


def _stream_line(status: Status) -> str:
    if status.stream is None:
        return f"Stream: {status.stream_error}"
    behind = behind_messages(status, status.stream)
    seconds = behind_seconds(status, status.stream)
    age = f" Its newest commit is {seconds:,.0f} s old." if seconds else ""
    return f"Stream: ends at {status.stream.last}, the lake is {behind:,} messages behind.{age}"

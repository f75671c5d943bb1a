"""`lake-consumer status`: where every table stands, read from the catalog without Spark."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from lake_consumer.config import LakeConfig
from lake_consumer.errors import LakeError
from lake_consumer.iceberg.reading import TableStatus, read_statuses
from lake_consumer.jetstream.stream import CdcStream, StreamState
from schemas.positions import Lsn

_HEADINGS = ("table", "rows", "snapshots", "stream sequence", "commit LSN", "commit time")


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
        str(table.snapshots),
        str(mark.stream_sequence),
        str(Lsn(mark.commit_lsn)),
        mark.commit_ts,
    )


def _stream_line(status: Status) -> str:
    if status.stream is None:
        return f"Stream: {status.stream_error}"
    applied = max((t.watermark.stream_sequence for t in status.tables), default=0)
    behind = max(0, status.stream.last - applied)
    return f"Stream: ends at {status.stream.last}, the lake is {behind:,} messages behind."

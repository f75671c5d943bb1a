from __future__ import annotations

from lake_consumer.iceberg.reading import TableStatus
from lake_consumer.jetstream.stream import StreamState
from lake_consumer.logs import format_line
from lake_consumer.status import Status, render_status
from lake_consumer.watermark import Watermark

USERS = TableStatus("public.users", 1_234, 3, Watermark(50, 0x191BFD0, "2025-12-08T13:45:21Z"))


def test_status_shows_positions_as_people_write_them() -> None:
    """The same spelling as PostgreSQL's own views."""
    shown = render_status(
        Status([USERS], StreamState(first=1, last=60, messages=60, bytes=1), None)
    )

    assert "1,234" in shown
    assert "0/191BFD0" in shown
    assert "10 messages behind" in shown


def test_status_is_useful_without_nats() -> None:
    """The tables say where they are even when nobody else answers."""
    shown = render_status(Status([USERS], None, "NATS at nats://a:1 cannot be reached"))

    assert "public.users" in shown
    assert "cannot be reached" in shown


def test_an_empty_lake_is_said_to_be_empty() -> None:
    """A bare heading would look like a failure."""
    assert "no tables yet" in render_status(Status([], None, "no stream"))


def test_log_lines_can_be_taken_apart_again() -> None:
    """Values with spaces and quotes are quoted, all others are not."""
    line = format_line("info", 'a "quoted" word', count=3, path="/a b")

    assert line == 'level=info msg="a \\"quoted\\" word" count=3 path="/a b"'

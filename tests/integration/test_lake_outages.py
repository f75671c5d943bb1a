"""What `lake-consumer run` lives through: NATS stopped for long, the catalog locked."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from pathlib import Path

from examples.embedded import EmbeddedNats, free_port
from lake_consumer.iceberg.reading import read_statuses
from tests.support.bridge import wait_for
from tests.support.lake import HandMadeStream, announce, change, make_shape
from tests.support.lakeprocess import LakeProcess

LIMIT_SECONDS = "2"
"""What an answer may take here; `drain` would give up then."""


class Following:
    """A lake that follows a stream written by hand."""

    def __init__(self, folder: Path, nats: EmbeddedNats) -> None:
        self.port = free_port()
        environ = {
            "NATS_URL": nats.url,
            "LAKE_NATS_TIMEOUT": LIMIT_SECONDS,
            "LAKE_FIRST_SIGHT": "stream",
            "LAKE_METRICS_PORT": str(self.port),
        }
        self.lake = LakeProcess(folder, environ, "--interval", "1")
        self.stream = HandMadeStream(nats.url)
        self.stream.commit(announce(make_shape("users", {"id": "int64"}), 1))
        self._rows = 0

    def write(self) -> None:
        self._rows += 1
        self.stream.commit(change("users", "INSERT", {"id": self._rows}))
        self.stream.send()

    def rows(self) -> int:
        self.lake.check()
        statuses = read_statuses(self.lake.catalog, self.lake.warehouse)
        return sum(status.rows for status in statuses if status.name == "public.users")

    def wait_rows(self) -> None:
        wait_for(lambda: self.rows() == self._rows, f"{self._rows} rows")

    def wait_said(self, text: str, times: int = 1) -> None:
        def said() -> bool:
            self.lake.check()
            return self.lake.said().count(text) >= times

        wait_for(said, f"{times} times {text}")

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def health(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.ask("/health"))
        return found


def test_a_run_goes_on_after_nats_was_away_for_longer_than_any_limit(
    nats: EmbeddedNats, tmp_path: Path
) -> None:
    """An outage is weather: it is said once when it begins and once when it ends."""
    following = Following(tmp_path, nats)
    following.write()
    with following.lake as lake:
        lake.start()
        following.wait_rows()

        nats.stop()
        following.wait_said('msg="outage began"')
        # The answer was waited for up to the limit, and connecting was tried again since.
        wait_for(lambda: following.health()["outage_attempts"] > 2, "attempts")  # type: ignore[operator]
        assert following.health()["status"] == "outage"
        assert "NATS" in str(following.health()["outage"])
        assert "lake_outages_total 1.0" in following.ask("/metrics")
        nats.start()
        following.write()
        following.wait_rows()
        following.wait_said('msg="outage over"')

        assert lake.said().count('msg="outage began"') == 1, lake.said()
        assert lake.said().count('msg="outage over"') == 1
        assert following.health()["status"] == "following"
        assert "lake_outage_seconds 0.0" in following.ask("/metrics")
        assert lake.terminate() == 0


def test_a_run_waits_for_a_catalog_that_is_locked(nats: EmbeddedNats, tmp_path: Path) -> None:
    """A backup tool may hold the file for minutes; nothing is lost meanwhile, nothing is twice."""
    following = Following(tmp_path, nats)
    following.write()
    with following.lake as lake:
        lake.start()
        following.wait_rows()

        file = lake.catalog.sqlite_file
        assert file is not None
        holder = sqlite3.connect(file)
        holder.execute("BEGIN EXCLUSIVE")
        following.write()
        following.wait_said('msg="outage began"')
        assert following.health()["status"] == "outage"
        assert "lake_outages_total 1.0" in following.ask("/metrics")
        holder.rollback()
        holder.close()

        following.wait_rows()
        following.wait_said('msg="outage over"')
        assert lake.terminate() == 0

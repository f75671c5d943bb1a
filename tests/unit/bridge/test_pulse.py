"""Signs of life while a session looks around before it streams."""

from __future__ import annotations

import pytest

from bridge.app import Pulse
from bridge.continuity import SIGN_OF_LIFE_SECONDS


def test_postgres_hears_of_us_now_and_then_however_often_it_could(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of tables are asked for in a few seconds; one message for each would be many."""
    now, beats = 100.0, list[float]()
    monkeypatch.setattr("bridge.app.time.monotonic", lambda: now)
    pulse = Pulse(lambda: beats.append(now))

    for step in range(21):
        now = 100 + step * SIGN_OF_LIFE_SECONDS / 10
        pulse()

    assert beats == [100 + SIGN_OF_LIFE_SECONDS, 100 + 2 * SIGN_OF_LIFE_SECONDS]

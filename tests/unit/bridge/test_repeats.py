"""A log that says everything, and nothing every second."""

from __future__ import annotations

from bridge.repeats import SAY_AGAIN_SECONDS, Repeats


def test_each_text_is_said_once_a_minute() -> None:
    """A distinct reason is never hidden behind another."""
    moment = [0.0]
    repeats = Repeats(lambda: moment[0])

    assert [repeats.may_say(text) for text in ("a", "a", "b")] == [True, False, True]
    moment[0] = SAY_AGAIN_SECONDS
    assert [repeats.may_say(text) for text in ("a", "a", "b")] == [True, False, True]


def test_a_flood_of_distinct_texts_is_limited() -> None:
    """Whoever can choose the text cannot fill the log."""
    repeats = Repeats(lambda: 0.0)

    assert sum(repeats.may_say(str(n)) for n in range(5_000)) == 1_000

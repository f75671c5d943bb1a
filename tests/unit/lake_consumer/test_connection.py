"""A cluster that elects a leader answers that nobody is there; a moment later somebody is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError, ServiceUnavailableError

from lake_consumer.jetstream import connection
from lake_consumer.jetstream.connection import jetstream


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Exception | dict[str, Any]]:
    """What the server will answer, in order."""
    answers: list[Exception | dict[str, Any]] = []
    left: Iterator[Exception | dict[str, Any]] = iter(answers)

    async def answer(*_: object) -> dict[str, Any]:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(JetStreamContext, "_api_request", answer)
    monkeypatch.setattr(connection, "ASK_AGAIN_SECONDS", 0)
    return answers


async def test_it_is_asked_again_until_somebody_answers(
    asked: list[Exception | dict[str, Any]],
) -> None:
    asked += [ServiceUnavailableError(), ServiceUnavailableError(), {"success": True}]

    assert await jetstream(cast("Any", None)).purge_stream("CDC")


async def test_patience_ends(
    asked: list[Exception | dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ELECTION_SECONDS", -1)
    asked += [ServiceUnavailableError(), {}]

    with pytest.raises(ServiceUnavailableError):
        await jetstream(cast("Any", None)).purge_stream("CDC")


async def test_any_other_answer_is_an_answer(asked: list[Exception | dict[str, Any]]) -> None:
    asked += [NotFoundError(), {}]

    with pytest.raises(NotFoundError):
        await jetstream(cast("Any", None)).purge_stream("CDC")

"""Bodies that are kept elsewhere: what is gone is told from what cannot be had at the moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import nats.js.errors
import pytest

from lake_consumer.errors import LakeError, NatsUnreachable, UndecodableMessage
from lake_consumer.jetstream import payload
from lake_consumer.jetstream.payload import body_of
from schemas.codecs import OVERSIZE


def with_store(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    """Let whoever asks for an object get this, or this error."""

    async def get(_: str) -> object:
        if isinstance(found, Exception):
            raise found
        return found

    async def object_store(_: str) -> object:
        return SimpleNamespace(get=get)

    monkeypatch.setattr(payload, "jetstream", lambda _: SimpleNamespace(object_store=object_store))


async def fetch() -> bytes:
    return await body_of(cast("Any", None), "cdc.docs.insert", {OVERSIZE: "1-docs-insert"}, b"")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (nats.js.errors.ObjectNotFoundError(), UndecodableMessage),
        (nats.js.errors.ObjectDeletedError(), UndecodableMessage),
        (nats.js.errors.DigestMismatchError(), UndecodableMessage),
        (nats.js.errors.ServiceUnavailableError(code=503, err_code=10008), NatsUnreachable),
        (nats.js.errors.ServerError(code=500), NatsUnreachable),
        (nats.errors.TimeoutError(), NatsUnreachable),
        (nats.errors.ConnectionClosedError(), NatsUnreachable),
        (OSError("reset"), NatsUnreachable),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_only_what_is_gone_is_the_messages_fault(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[LakeError]
) -> None:
    """A dead letter leaves its change out of the lake; a server without a leader asks for none."""
    with_store(monkeypatch, error)

    with pytest.raises(kind, match="1-docs-insert"):
        await fetch()


async def test_a_part_is_not_taken_for_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-py gives what it has when the connection ends in the middle."""
    info = SimpleNamespace(size=10)
    with_store(monkeypatch, SimpleNamespace(data=b"0123456789", info=info))
    assert await fetch() == b"0123456789"
    with_store(monkeypatch, SimpleNamespace(data=b"0123", info=info))

    with pytest.raises(NatsUnreachable, match="in part: 4 of 10"):
        await fetch()

"""What NATS and JetStream say, in our words: what may pass is tried again, what will not stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import nats.js.errors
import pytest
from nats.js.api import RawStreamMsg

from bridge.config import NatsConfig
from bridge.errors import BridgeError, PublishRefused, RowTooLarge, SinkLost, SinkRefused
from bridge.jetstream.control import translated
from bridge.jetstream.oversize import OversizeStore
from schemas.codecs import OVERSIZE
from schemas.streams import OVERSIZE_STORE

SERVER = NatsConfig(host="nats", port=4222)
FORBIDDEN = nats.errors.Error('nats: permissions violation for publish to "$o.oversize.c.x"')


def api_error(kind: type[nats.js.errors.APIError], code: int) -> nats.js.errors.APIError:
    return kind(code=kind.__dict__.get("code"), err_code=code, description="as the server says")


TROUBLE: list[tuple[Exception, type[BridgeError]]] = [
    (api_error(nats.js.errors.ServiceUnavailableError, 10008), SinkLost),
    (api_error(nats.js.errors.ServiceUnavailableError, 10077), PublishRefused),
    (api_error(nats.js.errors.ServiceUnavailableError, 10023), PublishRefused),
    (api_error(nats.js.errors.ServerError, 10047), PublishRefused),
    (api_error(nats.js.errors.BadRequestError, 10002), PublishRefused),
    (api_error(nats.js.errors.BadRequestError, 10005), PublishRefused),
    (api_error(nats.js.errors.APIError, 10167), PublishRefused),
    (api_error(nats.js.errors.APIError, 10158), PublishRefused),
    (nats.js.errors.BucketNotFoundError(), SinkLost),
    (nats.errors.TimeoutError(), SinkLost),
    (nats.errors.ConnectionClosedError(), SinkLost),
]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *TROUBLE,
        (api_error(nats.js.errors.BadRequestError, 10052), SinkRefused),
        (nats.errors.AuthorizationError(), SinkRefused),
        (nats.errors.Error("nats: 'authentication expired'"), SinkRefused),
        (nats.errors.Error("nats: 'authentication timeout'"), SinkLost),
        (TimeoutError(), SinkLost),
    ],
)
def test_an_answer_is_what_it_means(error: Exception, kind: type[BridgeError]) -> None:
    with pytest.raises(kind) as raised, translated(SERVER):
        raise error
    assert type(raised.value) is kind
    assert "None" not in str(raised.value)
    assert not str(raised.value).endswith(": ")


def oversize_store(bucket: object, last_error: Exception | None = None) -> OversizeStore:
    async def object_store(_: str) -> object:
        return bucket

    client = SimpleNamespace(last_error=last_error, max_payload=1 << 20)
    js = SimpleNamespace(object_store=object_store)
    return OversizeStore(cast("Any", client), cast("Any", js), OVERSIZE_STORE)


@pytest.mark.parametrize(
    ("error", "last_error", "kind"),
    [
        *((error, None, kind) for error, kind in TROUBLE),
        (nats.errors.TimeoutError(), FORBIDDEN, RowTooLarge),
        (nats.errors.TimeoutError(), nats.errors.Error("nats: permissions violation for x"),
         SinkLost),
        (api_error(nats.js.errors.NotFoundError, 10059), None, SinkLost),
        (api_error(nats.js.errors.BadRequestError, 10054), None, RowTooLarge),
    ],
)  # fmt: skip
async def test_only_a_refusal_of_the_row_stops(
    error: Exception, last_error: Exception | None, kind: type[BridgeError]
) -> None:
    """A row that fits nowhere will never fit; a store that is slow, full or gone may be mended."""

    async def put(*_: object) -> None:
        raise error

    store = oversize_store(SimpleNamespace(put=put), last_error)

    with pytest.raises(kind, match="1-docs-insert") as raised:
        await store.put("1-docs-insert", b"x")
    assert type(raised.value) is kind


async def test_a_part_is_not_taken_for_the_body() -> None:
    """nats-py gives what it has when the connection ends in the middle."""
    message = RawStreamMsg(subject="cdc.docs.insert", headers={OVERSIZE: "1-docs-insert"})

    async def get(_: str) -> object:
        return SimpleNamespace(data=b"0123", info=SimpleNamespace(size=10))

    with pytest.raises(SinkLost, match="in part: 4 of 10"):
        await oversize_store(SimpleNamespace(get=get)).body_of(message)


@pytest.mark.parametrize(
    "error",
    [
        api_error(nats.js.errors.ServiceUnavailableError, 10008),
        api_error(nats.js.errors.ServerError, 10118),
        nats.errors.NoRespondersError(),
        nats.errors.TimeoutError(),
    ],
)
def test_advice_during_an_election_is_to_wait(error: Exception) -> None:
    """The address is right: somebody there does not answer for JetStream yet."""
    with pytest.raises(SinkLost) as raised, translated(SERVER):
        raise error

    assert "NATS_HOST" not in raised.value.advice
    assert "electing a leader for stream CDC" in raised.value.advice

"""Several servers of one cluster in NATS_URL, and what the lake says of a lacking leader."""

from __future__ import annotations

import nats.errors
import nats.js.errors
import pytest

from lake_consumer.config import read_config
from lake_consumer.errors import BadOption, NatsRefused, NatsUnreachable, NoQuorum
from lake_consumer.jetstream.identity import explain_request
from lake_consumer.natsoptions import NatsOptions


def read(url: str) -> NatsOptions:
    return read_config({}, {"NATS_URL": url}, {}).nats


def test_servers_are_listed_in_the_order_they_are_tried() -> None:
    options = read("tls://me:secret@a, tls://b:4333")

    assert options.servers == ["tls://a:4222", "tls://b:4333"]
    assert options.shown == "tls://a:4222,tls://b:4333"
    assert (options.user, options.password, options.tls) == ("me", "secret", True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats://a,tls://b", "mixes"),
        ("nats://x:1@a,nats://y:2@b", "different users"),
        ("nats://a,", "not an address"),
    ],
)
def test_servers_that_do_not_belong_together_are_rejected(url: str, why: str) -> None:
    with pytest.raises(BadOption, match=why):
        read(url)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (nats.js.errors.ServiceUnavailableError(code=503, err_code=10008), NoQuorum),
        (nats.errors.NoRespondersError(), NoQuorum),
        (nats.js.errors.ServerError(code=500), NatsUnreachable),
        (nats.errors.TimeoutError(), NatsUnreachable),
        (ConnectionResetError("Connection lost"), NatsUnreachable),
        (nats.js.errors.BadRequestError(code=400), NatsRefused),
    ],
)
def test_a_request_that_failed_says_what_is_going_on(
    error: Exception, kind: type[NatsUnreachable]
) -> None:
    explained = explain_request(read("nats://a,nats://b"), error)

    assert type(explained) is kind
    assert ("stream CDC" in str(explained)) is (kind is NoQuorum)
    assert ("wait" in explained.advice) is (kind is NoQuorum)

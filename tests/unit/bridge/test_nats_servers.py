"""Several servers of one cluster in NATS_URL."""

from __future__ import annotations

import pytest

from bridge.config import NatsConfig, nats_config
from bridge.errors import BadConfiguration
from bridge.options import read_values


def read(url: str) -> NatsConfig:
    return nats_config(read_values({}, {"NATS_URL": url}, None, needed=()))


def test_servers_are_listed_in_the_order_they_are_tried() -> None:
    config = read("nats://me:secret@a, nats://b:4333,nats://[::1]:5")

    assert config.servers == (("a", 4222), ("b", 4333), ("::1", 5))
    assert config.urls == ["nats://a:4222", "nats://b:4333", "nats://[::1]:5"]
    assert (config.user, config.password) == ("me", "secret")
    assert "secret" not in config.where


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats://a,tls://b", "mixes"),
        ("nats://x:1@a,nats://y:2@b", "different users"),
        ("nats://a,", "not an address"),
    ],
)
def test_servers_that_do_not_belong_together_are_rejected(url: str, why: str) -> None:
    with pytest.raises(BadConfiguration, match=why):
        read(url)

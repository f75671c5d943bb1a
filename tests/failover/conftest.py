"""A shop of its own for each test, and a standby of its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.jetstream.provision import stream_config
from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.streams import CDC_STREAM
from tests.support.shop import Shop
from tests.support.standby import make_standby
from tests.support.stream import administer


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, server_folder: Path, nats: EmbeddedNats, tmp_path: Path
) -> Iterator[Shop]:
    binaries = getattr(request, "param", None)
    with EmbeddedPostgres(server_folder / "one", durable=False, binaries=binaries) as primary:
        yield Shop(primary, nats, tmp_path / "bridge.log")


@pytest.fixture
async def _short_window(nats: EmbeddedNats) -> None:
    """Ids are forgotten at once, so that a session after a fork need not wait for that."""
    async with administer(nats.url) as js:
        config = stream_config(CDC_STREAM)
        config.duplicate_window = 0.1
        await js.add_stream(config)


@pytest.fixture
def standby(shop: Shop, server_folder: Path) -> Iterator[EmbeddedPostgres]:
    with ExitStack() as stack:
        made = make_standby(shop.primary, server_folder / "two")
        stack.callback(made.kill)
        yield made

"""How to reach NATS: plain data that can be sent to executors, and one function that connects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client

from lake_consumer.errors import NatsUnreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """Servers and user. The password is left out of `repr`, so no log and no plan can show it."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address without any credentials in it."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"


async def connect(options: NatsOptions, *, patience: float = 5) -> Client:
    """Connect or say why not. Later disconnects heal by themselves, for as long as it takes."""
    settings: dict[str, Any] = {
        "servers": [options.url],
        "name": "lake-consumer",
        "connect_timeout": patience,
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.2,
        "error_cb": _ignore,
    }
    if options.user is not None:
        settings |= {"user": options.user, "password": options.password or ""}
    try:
        client = await nats.connect(**settings)
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise NatsUnreachable(f"NATS at {options.shown} cannot be reached: {reason}") from error
    client.options["allow_reconnect"] = True
    client.options["max_reconnect_attempts"] = -1
    return client


async def _ignore(_: Exception) -> None:
    """Failures reach the caller through the request that failed; nats-py would print them."""

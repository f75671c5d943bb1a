"""The control plane: a nats-py connection for everything that is not the hot path."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from bridge.config import NatsConfig
from bridge.errors import SinkLost, SinkRefused

CONNECT_TIMEOUT_SECONDS = 5
REQUEST_TIMEOUT_SECONDS = 5

_NO_JETSTREAM = "Start nats-server with --jetstream, or wait until it has read its files."

_log = logging.getLogger("bridge.jetstream")


async def connect(config: NatsConfig) -> Client:
    """Connect once; whoever runs the session connects again after a failure."""

    async def note(error: Exception) -> None:
        _log.debug("nats-py: %s", error)

    with translated(config):
        return await nats.connect(
            config.url,
            name="walbridge",
            user=config.user,
            password=config.password,
            token=config.token,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            allow_reconnect=False,
            # One try: nats-py would go on by itself for two minutes before it says anything.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=note,
        )


@contextmanager
def translated(config: NatsConfig) -> Iterator[None]:
    """Raise nats-py's errors as ours."""
    try:
        yield
    except nats.errors.AuthorizationError as error:
        raise SinkRefused(f"NATS at {config.where} refuses the user: {error}") from error
    except nats.js.errors.NoStreamResponseError as error:
        raise SinkLost(f"NATS at {config.where}: {error}", advice=_NO_JETSTREAM) from error
    except nats.js.errors.APIError as error:
        what = f"JetStream at {config.where}: {error.description} ({error.err_code})"
        if isinstance(error, nats.js.errors.ServiceUnavailableError | nats.js.errors.ServerError):
            # Also what a server says that is still reading its files.
            raise SinkLost(what, advice=_NO_JETSTREAM) from error
        raise SinkRefused(what) from error
    except nats.errors.Error as error:
        if "authorization" in str(error).lower():
            raise SinkRefused(f"NATS at {config.where} refuses the user: {error}") from error
        raise SinkLost(f"NATS at {config.where}: {error or type(error).__name__}") from error
    except (OSError, TimeoutError) as error:
        raise SinkLost(f"NATS at {config.where} cannot be reached: {error}") from error

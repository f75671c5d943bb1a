"""The control plane: a nats-py connection for everything that is not the hot path."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from bridge.config import NatsConfig
from bridge.errors import PublishRefused, SinkLost, SinkRefused, reason_of
from bridge.jetstream.identity import (
    is_refusal,
    refused,
    sign,
    tls_context,
    translate_tls,
    wants_tls,
)
from bridge.jetstream.refusals import ADVICE, MAY_PASS, NO_LEADER

CONNECT_TIMEOUT_SECONDS = 5
REQUEST_TIMEOUT_SECONDS = 5
CLOSE_TIMEOUT_SECONDS = 1

_STREAM_PARTS = ("config", "state", "created", "cluster", "mirror", "sources", "ts")
_NOT_IN_A_NAME = frozenset(" .*>/\\\t\r\n\0")

_log = logging.getLogger("bridge.jetstream")


async def connect(config: NatsConfig) -> Client:
    """Connect once; whoever runs the session connects again after a failure."""
    client, context = Client(), tls_context(config)

    async def note(error: Exception) -> None:
        _log.debug("nats-py: %s", error)

    with translated(config):
        try:
            await client.connect(
                config.urls,
                dont_randomize=True,
                name="walbridge",
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                allow_reconnect=False,
                # One try: nats-py would go on by itself for two minutes before it says anything.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=note,
                tls=context,
                **_identity(config, client),
            )
            if not client.is_connected:
                raise SinkLost(f"NATS at {config.where} hung up during the introduction")
            wants_tls(config, client._server_info)
        except BaseException as error:
            await close(client)
            if isinstance(error, RuntimeError):
                # Of uvloop, where nats-py writes to a connection that has just ended.
                raise SinkLost(f"NATS at {config.where} hung up: {error}") from error
            if client._server_info and isinstance(error, OSError):
                # What the server asked for often explains why it then hung up.
                wants_tls(config, client._server_info)
            raise
    return client


async def close(client: Client) -> None:
    """Close without waiting long: after a handshake that failed nats-py would wait for ever."""
    # Whatever is wrong with it was said already by what made us close it.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await client.close()


def _identity(config: NatsConfig, client: Client) -> dict[str, Any]:
    """Give nats-py our secrets, each to be fetched when the connection is as it should be."""

    def guarded(secret: Callable[..., Any]) -> Callable[..., Any]:
        def give(*arguments: Any) -> Any:
            # nats-py encrypts where the server asks for it; tls:// in the URL alone changes
            # nothing, and a secret would go out in the open.
            wants_tls(config, client._server_info)
            return secret(*arguments)

        return give

    if config.creds:
        jwt = config.creds.jwt.encode()
        return {
            "user_jwt_cb": guarded(lambda: bytearray(jwt)),
            "signature_cb": guarded(lambda nonce: sign(config, nonce)),
        }
    if config.user is not None:
        return {
            "user": guarded(lambda: config.user),
            "password": guarded(lambda: config.password or ""),
        }
    if config.token is not None:
        return {"token": guarded(lambda: config.token)}
    return {}


async def describe_stream(config: NatsConfig, name: str) -> dict[str, Any] | None:
    """Ask about a stream over a connection made for that alone."""
    client = await connect(config)
    try:
        with translated(config):
            return await stream_info(client, name)
    finally:
        await close(client)


async def stream_info(client: Client, name: str) -> dict[str, Any] | None:
    """Give a stream's settings and state in the server's words; None where there is no stream."""
    if not name or _NOT_IN_A_NAME & set(name):
        return None
    reply = await client.request(f"$JS.API.STREAM.INFO.{name}", timeout=REQUEST_TIMEOUT_SECONDS)
    answer: dict[str, Any] = json.loads(reply.data)
    try:
        if "error" in answer:
            nats.js.errors.APIError.from_error(answer["error"])
    except nats.js.errors.NotFoundError:
        return None
    return {part: answer[part] for part in _STREAM_PARTS if part in answer}


@contextmanager
def translated(config: NatsConfig) -> Iterator[None]:
    """Raise nats-py's errors as ours."""
    try:
        yield
    except nats.errors.AuthorizationError as error:
        raise refused(config, error) from error
    except nats.js.errors.NoStreamResponseError as error:
        raise SinkLost(f"NATS at {config.where}: {error}", advice=NO_LEADER) from error
    except nats.js.errors.APIError as error:
        said = error.description or type(error).__name__
        what = f"JetStream at {config.where}: {said} ({error.err_code or 'no code'})"
        if advice := ADVICE.get(error.err_code or 0):
            raise PublishRefused(what, advice=advice) from error
        if isinstance(error, MAY_PASS):
            raise SinkLost(what, advice=NO_LEADER) from error
        if isinstance(error, nats.js.errors.BucketNotFoundError):
            raise SinkLost(what, advice="The next session makes it again.") from error
        raise SinkRefused(what) from error
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError) as error:
        raise SinkLost(
            f"JetStream at {config.where} does not answer: {reason_of(error)}", advice=NO_LEADER
        ) from error
    except nats.errors.Error as error:
        if is_refusal(str(error)):
            raise refused(config, error) from error
        raise SinkLost(f"NATS at {config.where}: {reason_of(error)}") from error
    except ssl.SSLError as error:
        raise translate_tls(error, config) from error
    except (OSError, TimeoutError) as error:
        raise SinkLost(f"NATS at {config.where} cannot be reached: {reason_of(error)}") from error

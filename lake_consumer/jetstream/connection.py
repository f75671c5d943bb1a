"""One function that connects to NATS, on the driver and on executors alike."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from lake_consumer.errors import LakeError, NatsUnreachable
from lake_consumer.jetstream.identity import explain, identity, require_agreement, tls_context
from lake_consumer.natsoptions import NatsOptions

CLOSE_TIMEOUT_SECONDS = 1
ANSWER_SECONDS = 30
"""What a request may take unless the options say otherwise."""

ELECTION_SECONDS = 15
ASK_AGAIN_SECONDS = 0.25


class LakeClient(Client):
    """A connection that knows how long its user waits for an answer."""

    answer_seconds: float = ANSWER_SECONDS


async def connect(options: NatsOptions, *, patience: int = 15) -> Client:
    """Connect or say why not. Later disconnects heal by themselves, for as long as it takes."""
    client = LakeClient()
    client.answer_seconds = options.timeout_seconds
    try:
        await client.connect(
            options.servers,
            dont_randomize=True,
            name="lake-consumer",
            connect_timeout=patience,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=_ignore,
            tls=tls_context(options),
            **identity(options, client),
        )
        if not client.is_connected:
            raise NatsUnreachable(f"NATS at {options.shown} hung up during the introduction")
        require_agreement(options, client)
    except BaseException as error:
        await _give_up(client)
        if isinstance(error, LakeError) or not isinstance(error, Exception):
            raise
        raise explain(options, client, error) from error
    client.options["allow_reconnect"] = True
    client.options["max_reconnect_attempts"] = -1
    return client


class PatientJetStream(JetStreamContext):
    """Asks again where nobody can answer at the moment: a cluster may be electing a leader."""

    async def _api_request(
        self, req_subject: str, req: bytes = b"", timeout: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        deadline = time.monotonic() + ELECTION_SECONDS
        while True:
            try:
                return await super()._api_request(req_subject, req, timeout)
            except ServiceUnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(ASK_AGAIN_SECONDS)


def jetstream(client: Client) -> JetStreamContext:
    seconds = client.answer_seconds if isinstance(client, LakeClient) else ANSWER_SECONDS
    return PatientJetStream(client, timeout=seconds)


async def _give_up(client: Client) -> None:
    """Close without waiting long: after a handshake that failed nats-py would wait for ever."""
    # Whatever is wrong with it was said already by what made us close it.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await client.close()


async def _ignore(_: Exception) -> None:
    """Failures reach the caller through the request that failed; nats-py would print them."""

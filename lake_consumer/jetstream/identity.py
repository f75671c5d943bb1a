"""Who the lake is to NATS: TLS, and what it says to prove itself, on the driver and on executors.

No secret leaves over a connection that was to be encrypted and is not.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import nats.errors
import nats.js.errors
import nkeys
from nats.aio.client import Client

from lake_consumer.errors import BadOption, NatsRefused, NatsUnreachable, NoQuorum, reason_of
from lake_consumer.natsoptions import NatsOptions
from schemas.streams import CDC_STREAM

_TRUST = "Set NATS_TLS_CA to the CA that signed it, and NATS_HOST to a name in it."
_CLIENT_CERTIFICATE = "Set NATS_TLS_CERT and NATS_TLS_KEY to a certificate the server trusts."
_NO_TLS = "Set up tls in nats-server.conf without allow_non_tls, or use nats:// and no NATS_TLS_*."


@lru_cache(maxsize=4)  # Reading the machine's CAs takes 40 ms, and executors connect for each task.
def tls_context(options: NatsOptions) -> ssl.SSLContext:
    """Trust the given CA, or the machine's; show the client certificate where there is one."""
    try:
        context = ssl.create_default_context(cadata=options.tls_ca)
    except (ssl.SSLError, ValueError) as error:
        raise _bad("NATS_TLS_CA", error) from None
    if options.tls_cert:
        try:
            _load_pair(context, options.tls_cert, options.tls_key or "")
        except (OSError, ssl.SSLError) as error:
            raise _bad("NATS_TLS_CERT or NATS_TLS_KEY", error) from None
    return context


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    # OpenSSL reads a pair from a file only. This one belongs to this user alone, and is gone again
    # before a word is said to the server.
    handle, name = tempfile.mkstemp(suffix=".pem")
    try:
        with open(handle, "w") as file:
            file.write(f"{cert}\n{key}\n")
        context.load_cert_chain(name, password=_no_passphrase)
    finally:
        os.unlink(name)


def _no_passphrase() -> str:
    # Without this OpenSSL would ask at the terminal, and a service would wait for ever.
    raise OSError("the key is encrypted")


def _bad(option: str, error: Exception) -> BadOption:
    reason = getattr(error, "strerror", None) or str(error)
    advice = "Give PEM files that this user can read; the key unencrypted."
    return BadOption(f"{option} cannot be used: {reason}", advice=advice)


def require_agreement(options: NatsOptions, client: Client) -> None:
    """Raise where we and the server want different things."""
    greeting = client._server_info
    if options.tls and not greeting.get("tls_required"):
        raise NatsRefused(f"NATS at {options.shown} does not ask for TLS", advice=_NO_TLS)
    if greeting.get("tls_verify") and not options.tls_cert:
        what = f"NATS at {options.shown} wants a certificate from the lake"
        raise NatsRefused(what, advice=_CLIENT_CERTIFICATE)


def identity(options: NatsOptions, client: Client) -> dict[str, Any]:
    """Give nats-py our secrets, each to be fetched when the connection is as it should be."""

    def guarded(secret: Callable[..., Any]) -> Callable[..., Any]:
        def give(*arguments: Any) -> Any:
            # nats-py encrypts where the server asks for it; tls:// in the URL alone changes
            # nothing, and a secret would go out in the open.
            require_agreement(options, client)
            return secret(*arguments)

        return give

    if options.jwt is not None:
        jwt = options.jwt.encode()
        return {
            "user_jwt_cb": guarded(lambda: bytearray(jwt)),
            "signature_cb": guarded(lambda nonce: _sign(options, nonce)),
        }
    if options.seed is not None:
        # What is sent is the public key and a signature: nothing to guard.
        _pair(options)
        return {"nkeys_seed_str": options.seed}
    if options.user is not None:
        return {
            "user": guarded(lambda: options.user),
            "password": guarded(lambda: options.password or ""),
        }
    if options.token is not None:
        return {"token": guarded(lambda: options.token)}
    return {}


def _sign(options: NatsOptions, nonce: str) -> bytes:
    return base64.b64encode(_pair(options).sign(nonce.encode()))


def _pair(options: NatsOptions) -> Any:
    try:
        return nkeys.from_seed(bytearray((options.seed or "").encode()))
    except (nkeys.NkeysError, ValueError):
        option = "NATS_CREDS" if options.jwt else "NATS_NKEY"
        raise BadOption(
            f"the seed in {option} is damaged", advice="Make it anew with nsc or nk."
        ) from None


def explain(options: NatsOptions, client: Client, error: Exception) -> NatsUnreachable:
    """Say why there is no connection, and which of our settings it hangs on."""
    where = f"NATS at {options.shown}"
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"{where} shows a certificate that cannot be trusted: {error.verify_message}"
        return NatsRefused(what, advice=_TRUST)
    if client._server_info and isinstance(error, OSError):
        # What the server asked for often explains why it then hung up.
        require_agreement(options, client)
    reason = reason_of(error)
    if isinstance(error, ssl.SSLError) and "certificate" in reason.lower().replace("_", " "):
        what = f"{where} refuses the lake's certificate: {reason}"
        return NatsRefused(what, advice=_CLIENT_CERTIFICATE)
    says = reason.lower()
    if ("authorization" in says or "authentication" in says) and "timeout" not in says:
        what = f"{where} refuses the user: {reason}"
        return NatsRefused(what, advice=f"Check {_secret(options)} and its permissions.")
    return NatsUnreachable(f"{where} cannot be reached: {reason}")


def explain_request(options: NatsOptions, error: Exception) -> NatsUnreachable:
    """Say why JetStream did not do what it was asked: it has no leader, or is away, or refuses."""
    where = f"NATS at {options.shown}"
    if isinstance(error, nats.js.errors.ServiceUnavailableError | nats.errors.NoRespondersError):
        said = getattr(error, "description", None) or "nobody answers for JetStream"
        return NoQuorum(
            f"{where} has no leader for stream {CDC_STREAM.name} or for JetStream: {said}"
        )
    if isinstance(error, nats.js.errors.APIError) and not isinstance(
        error, nats.js.errors.ServerError
    ):
        return NatsRefused(f"JetStream of {where} refused a request: {error}")
    if isinstance(error, TimeoutError):
        seconds = f"{options.timeout_seconds:g} s"
        return NatsUnreachable(f"{where} gave no answer within {seconds}")
    return NatsUnreachable(f"{where} cannot be reached: {reason_of(error)}")


def _secret(options: NatsOptions) -> str:
    given = {
        "NATS_CREDS": options.jwt,
        "NATS_NKEY": options.seed,
        "NATS_TOKEN": None if options.user else options.token,
    }
    found = [name for name, value in given.items() if value is not None]
    return found[0] if found else "NATS_LAKE_USER with NATS_LAKE_PASSWORD"

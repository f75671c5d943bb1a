"""Who the bridge is to NATS, for both of its connections: TLS, and what CONNECT carries.

nats-py and the publish lane get the same answers from here, so that nothing works over one of them
only. No secret leaves over a connection that was to be encrypted and is not.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from typing import Any

import nkeys

from bridge.config import NatsConfig
from bridge.errors import BadConfiguration, BridgeError, SinkLost, SinkRefused

_TRUST = "Set NATS_TLS_CA to the CA that signed it, and NATS_HOST to a name in it."
_CLIENT_CERTIFICATE = "Set NATS_TLS_CERT and NATS_TLS_KEY to a certificate the server trusts."
_NO_TLS = "Set up tls in nats-server.conf without allow_non_tls, or use nats:// and no NATS_TLS_*."


def tls_context(config: NatsConfig) -> ssl.SSLContext:
    """Trust the given CA, or the machine's; show the client certificate where there is one."""
    try:
        context = ssl.create_default_context(cafile=config.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise _bad_file("NATS_TLS_CA", config.tls_ca, error) from None
    if config.tls_cert:
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_passphrase)
        except (OSError, ssl.SSLError) as error:
            named = f"{config.tls_cert} with key {config.tls_key or config.tls_cert}"
            raise _bad_file("NATS_TLS_CERT", named, error) from None
    return context


def _no_passphrase() -> str:
    # Without this OpenSSL would ask at the terminal, and a service would wait for ever.
    raise OSError("the key is encrypted")


def _bad_file(option: str, name: str | None, error: OSError) -> BadConfiguration:
    return BadConfiguration(
        f"{option}: {name} cannot be used: {error.strerror or error}",
        advice="Give PEM files that this user can read; the key unencrypted.",
    )


def wants_tls(config: NatsConfig, greeting: Mapping[str, Any]) -> bool:
    """Say whether to encrypt; raise where we and the server want different things."""
    offered = bool(greeting.get("tls_required"))
    if config.tls and not offered:
        raise SinkRefused(f"NATS at {config.where} does not ask for TLS", advice=_NO_TLS)
    if greeting.get("tls_verify") and not config.tls_cert:
        what = f"NATS at {config.where} wants a certificate from the bridge"
        raise SinkRefused(what, advice=_CLIENT_CERTIFICATE)
    return offered


def connect_fields(config: NatsConfig, greeting: Mapping[str, Any]) -> dict[str, str]:
    """Prove who we are, in the words of CONNECT."""
    if config.creds:
        nonce = str(greeting.get("nonce", ""))
        return {"jwt": config.creds.jwt, "sig": sign(config, nonce).decode()}
    fields = {"user": config.user, "pass": config.password, "auth_token": config.token}
    return {name: value for name, value in fields.items() if value is not None}


def sign(config: NatsConfig, nonce: str) -> bytes:
    """Sign the server's nonce with the seed of the credentials."""
    seed = config.creds.seed if config.creds else ""
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        return base64.b64encode(pair.sign(nonce.encode()))
    except (nkeys.NkeysError, ValueError):
        raise BadConfiguration(
            "the seed in NATS_CREDS is damaged", advice="Make the credentials file anew with nsc."
        ) from None


def is_refusal(text: str) -> bool:
    """Whether the server does not want us; one that waited too long for our word may yet."""
    said = text.lower()
    return ("authorization" in said or "authentication" in said) and "timeout" not in said


def refused(config: NatsConfig, why: object) -> SinkRefused:
    """Say that NATS does not let us in, and which of our settings it did not like."""
    option = "NATS_CREDS" if config.creds else "NATS_TOKEN" if config.token else None
    advice = f"Check {option} and the account's permissions." if option else None
    return SinkRefused(f"NATS at {config.where} refuses the user: {why}", advice=advice)


def translate_tls(error: ssl.SSLError, config: NatsConfig) -> BridgeError:
    """Tell a certificate that will never do from a line that broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"NATS at {config.where} shows a certificate that cannot be trusted"
        return SinkRefused(f"{what}: {error.verify_message}", advice=_TRUST)
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "certificate" in reason or "unknown ca" in reason:
        what = f"NATS at {config.where} refuses the bridge's certificate: {reason}"
        return SinkRefused(what, advice=_CLIENT_CERTIFICATE)
    return SinkLost(f"TLS to NATS at {config.where} broke: {reason}")

"""How to reach NATS, as plain data: it goes to the executors, so it holds contents and no paths.

A file named by an option is read here, on the driver. The options are the bridge's, but for the
user's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lake_consumer.errors import BadOption
from lake_consumer.options import Option, Values

NATS_OPTIONS = (
    Option(name="nats_url", flag="--nats-url", env="NATS_URL",
           help="NATS servers (nats:// or tls://), comma-separated; win over NATS_HOST, NATS_PORT"),
    Option(name="nats_host", env="NATS_HOST", default="127.0.0.1", help="NATS host"),
    Option(name="nats_port", env="NATS_PORT", default="4222", help="NATS port"),
    Option(name="nats_user", env="NATS_LAKE_USER", help="NATS user"),
    Option(name="nats_password", env="NATS_LAKE_PASSWORD", secret=True, help="NATS password"),
    Option(name="nats_token", env="NATS_TOKEN", secret=True, help="NATS token, instead of a user"),
    Option(name="nats_creds", env="NATS_CREDS", secret=True,
           help="NATS credentials file or its text (a user's JWT and nkey seed), instead of"
           " a user"),
    Option(name="nats_nkey", env="NATS_NKEY", secret=True,
           help="file of an nkey seed or its text, instead of a user"),
    Option(name="nats_tls_ca", env="NATS_TLS_CA",
           help="file of the CA that signed NATS's certificate, or its text; demands TLS, as"
           " tls:// in NATS_URL does with each machine's own CAs"),
    Option(name="nats_tls_cert", env="NATS_TLS_CERT",
           help="file of a client certificate for NATS, or its text"),
    Option(name="nats_tls_key", env="NATS_TLS_KEY", secret=True,
           help="file of that certificate's key, or its text"),
    Option(name="nats_timeout", flag="--nats-timeout", env="LAKE_NATS_TIMEOUT", default="30",
           help="seconds to wait for an answer of NATS; then `run` retries, other commands fail"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """Servers and user. Secrets are left out of `repr`, so no log and no plan can show them.

    `url` names one server of a cluster or several, with commas between them, tried in turn.
    `seed` with `jwt` is a credentials file, without it an nkey. Certificates are PEM text.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    seed: str | None = field(default=None, repr=False)
    tls_ca: str | None = field(default=None, repr=False)
    tls_cert: str | None = field(default=None, repr=False)
    tls_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 30.0
    """What a request may take: a server whose disk stalls is not gone."""

    @property
    def shown(self) -> str:
        """The addresses without any credentials in them."""
        return ",".join(map(_shown, self.servers))

    @property
    def servers(self) -> list[str]:
        return self.url.split(",")

    @property
    def tls(self) -> bool:
        """Whether nothing may be said to a server that does not encrypt."""
        return self.url.startswith("tls://") or bool(self.tls_ca or self.tls_cert)


def _shown(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def nats_options(values: Values, port: int, timeout_seconds: float) -> NatsOptions:
    """Settle how to reach NATS; what a URL says wins over the other options."""
    settings: dict[str, Any] = {
        "url": f"nats://{values['nats_host']}:{port}",
        "user": values["nats_user"],
        "password": values["nats_password"],
        "token": values["nats_token"],
        **_read_identity(values),
        "tls_ca": _read_text("NATS_TLS_CA", values["nats_tls_ca"], "-----BEGIN"),
        "tls_cert": _read_text("NATS_TLS_CERT", values["nats_tls_cert"], "-----BEGIN"),
        "tls_key": _read_text("NATS_TLS_KEY", values["nats_tls_key"], "-----BEGIN"),
        "timeout_seconds": timeout_seconds,
    }
    if url := values["nats_url"]:
        settings |= _split_urls(url)
    return NatsOptions(**settings)


_CREDS = re.compile(
    r"-----BEGIN NATS USER JWT-----\s+(?P<jwt>\S+)\s+-+END NATS USER JWT-+"
    r".*-----BEGIN USER NKEY SEED-----\s+(?P<seed>\S+)\s+-+END USER NKEY SEED-+",
    re.DOTALL,
)


def _read_identity(values: Values) -> dict[str, str]:
    if text := _read_text("NATS_CREDS", values["nats_creds"], "-----BEGIN"):
        found = _CREDS.search(text)
        if found is None:
            raise BadOption(
                "NATS_CREDS holds no user JWT and nkey seed",
                advice="Make the file with nsc: nsc generate creds --account A --name lake.",
            )
        return found.groupdict()
    if text := _read_text("NATS_NKEY", values["nats_nkey"], "SU"):
        return {"seed": text.strip()}
    return {}


def _read_text(option: str, given: str | None, begins: str) -> str | None:
    """The text itself, or that of the file that is named."""
    if given is None or given.lstrip().startswith(begins):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        # A secret pasted in here by mistake must not be shown.
        name = given if "/" in given and "\n" not in given else "a file"
        raise BadOption(
            f"{option} names {name}, which cannot be read: {why}",
            advice=f"Mount the file, or unset {option}.",
        ) from None


def _split_urls(text: str) -> dict[str, Any]:
    """Take the URLs of one or several servers apart; the first may say who we are."""
    first, *rest = [_split_url(url.strip()) for url in text.split(",")]
    schemes = {one["url"].partition(":")[0] for one in (first, *rest)}
    if len(schemes) > 1:
        raise BadOption(
            "NATS_URL mixes nats:// and tls://", advice="Give all servers of NATS_URL one scheme."
        )
    said = [{name: one[name] for name in one.keys() - {"url"}} for one in (first, *rest)]
    if any(one and one != said[0] for one in said[1:]):
        raise BadOption(
            "NATS_URL names different users",
            advice="Give user and password in the first URL only, or in NATS_LAKE_USER and "
            "NATS_LAKE_PASSWORD.",
        )
    return {**first, "url": ",".join(one["url"] for one in (first, *rest))}


def _split_url(url: str) -> dict[str, Any]:
    """Take credentials out of a URL: they are not for messages, nor for servers without TLS."""
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        port = parts.port or 4222
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise BadOption(
            "NATS_URL is not an address such as nats://host:4222",
            advice="Give NATS_URL servers as nats://host:port or tls://host:port, comma-separated.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    found: dict[str, Any] = {"url": f"{parts.scheme}://{host}:{port}"}
    if parts.password is not None:
        found |= {"user": unquote(parts.username or ""), "password": unquote(parts.password)}
    elif parts.username is not None:
        found["token"] = unquote(parts.username)
    return found

"""Configuration: read once, handed down in the smallest piece a thing needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bridge.errors import BadConfiguration
from bridge.options import (
    OPTIONS,
    Durability,
    OnFork,
    OnLostSlot,
    SslMode,
    Values,
    Zstd,
    read_values,
)
from schemas.values import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig:
    """How to reach PostgreSQL. The password never appears in a representation."""

    host: str
    port: int | str
    """Several hosts, with commas between them, may have a port each."""
    database: str
    user: str
    password: str | None = field(repr=False, default=None)
    dsn: str | None = field(repr=False, default=None)
    sslmode: SslMode | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None

    @property
    def where(self) -> str:
        """The address for messages to people; holds no secret."""
        return f"{self.host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A NATS user's JWT, and the seed of the key that signs for it."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """How to reach NATS. Secrets never appear in a representation."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(repr=False, default=None)
    token: str | None = field(repr=False, default=None)
    creds: Credentials | None = field(repr=False, default=None)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    others: tuple[tuple[str, int], ...] = ()
    """Host and port of further servers of the cluster, tried in turn after the first."""

    @property
    def where(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.servers)

    @property
    def servers(self) -> tuple[tuple[str, int], ...]:
        return ((self.host, self.port), *self.others)

    @property
    def urls(self) -> list[str]:
        scheme = "tls" if self.tls else "nats"
        hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in self.servers)
        return [f"{scheme}://{host}:{port}" for host, port in hosts]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOverrides:
    """What an operator wants otherwise than the contract when streams and buckets are made."""

    max_age: timedelta | None = None
    max_bytes: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishLimits:
    """How much may be in flight before the WAL reader waits, and how long an ack may take."""

    max_bytes: int = 8 << 20
    chunk_messages: int = 500
    ack_timeout: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """How many snapshots run at the same time, and how many sessions read one table."""

    side_by_side: int = 2
    readers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where the HTTP endpoints listen and who may change state through them."""

    host: str
    port: int
    token: str | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeConfig:
    """All of it; only the command line and `app` see this."""

    slot: str
    publication: str
    postgres: PostgresConfig
    nats: NatsConfig
    http: HttpConfig
    streams: StreamOverrides
    limits: PublishLimits
    snapshots: SnapshotLimits
    format: Format
    zstd: Zstd
    durability: Durability
    on_lost_slot: OnLostSlot
    on_fork: OnFork
    sync_interval: timedelta
    catalog_poll: timedelta
    start_timeout: timedelta
    log_level: str


def read_config(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Path | None = None
) -> BridgeConfig:
    """Settle every option, or say in one sentence which one is wrong."""
    needed = [option.name for option in OPTIONS if option.required]
    values = read_values(flags, environ, file, needed=needed)
    return BridgeConfig(
        slot=values["slot"],
        publication=values["publication"],
        postgres=postgres_config(values),
        nats=nats_config(values),
        http=http_config(values),
        streams=StreamOverrides(
            max_age=values["stream_max_age"],
            max_bytes=values["stream_max_bytes"],
            replicas=values["stream_replicas"],
        ),
        limits=PublishLimits(
            max_bytes=values["max_in_flight_bytes"],
            ack_timeout=values["ack_timeout"],
        ),
        snapshots=SnapshotLimits(
            side_by_side=values["snapshots_side_by_side"], readers=values["snapshot_readers"]
        ),
        format="json" if values["json"] else "msgpack",
        zstd=values["zstd"],
        durability=values["durability"],
        on_lost_slot=values["on_lost_slot"],
        on_fork=values["on_fork"],
        sync_interval=values["sync_interval"],
        catalog_poll=values["catalog_poll"],
        start_timeout=values["start_timeout"],
        log_level=values["log_level"],
    )


def postgres_config(values: Values) -> PostgresConfig:
    return PostgresConfig(
        host=values["pg_host"],
        port=values["pg_port"],
        database=values["pg_database"],
        user=values["pg_user"],
        password=values["pg_password"],
        dsn=values["pg_dsn"],
        # libpq on its own would not look at the server's name, whoever the CA signed for.
        sslmode=values["pg_sslmode"] or ("verify-full" if values["pg_sslrootcert"] else None),
        sslrootcert=values["pg_sslrootcert"],
        sslcert=values["pg_sslcert"],
        sslkey=values["pg_sslkey"],
    )


def nats_config(values: Values) -> NatsConfig:
    url = _split_nats_url(values["nats_url"]) if values["nats_url"] else {}
    settings = {
        "host": values["nats_host"],
        "port": values["nats_port"],
        "user": values["nats_user"],
        "password": values["nats_password"],
        "token": values["nats_token"],
        "creds": _read_creds(values["nats_creds"]) if values["nats_creds"] else None,
        "tls_ca": values["nats_tls_ca"],
        "tls_cert": values["nats_tls_cert"],
        "tls_key": values["nats_tls_key"],
        **url,
    }
    settings["tls"] = bool(url.get("tls") or values["nats_tls_ca"] or values["nats_tls_cert"])
    return NatsConfig(**settings)


def http_config(values: Values) -> HttpConfig:
    return HttpConfig(
        host=values["http_host"], port=values["http_port"], token=values["http_token"]
    )


_CREDS = re.compile(
    r"-----BEGIN NATS USER JWT-----\s+(?P<jwt>\S+)\s+-+END NATS USER JWT-+"
    r".*-----BEGIN USER NKEY SEED-----\s+(?P<seed>\S+)\s+-+END USER NKEY SEED-+",
    re.DOTALL,
)


def _read_creds(given: str) -> Credentials:
    """Read a NATS credentials file, given by its path or as its text."""
    text = given
    if "-----BEGIN" not in given:
        try:
            text = Path(given).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            # A seed pasted in here by mistake must not be shown.
            name = given if "/" in given else "a file"
            raise BadConfiguration(
                f"NATS_CREDS names {name}, which cannot be read: {why}",
                advice="Mount the credentials file, or unset the variable.",
            ) from None
    found = _CREDS.search(text)
    if found is None:
        raise BadConfiguration(
            "NATS_CREDS holds no user JWT and nkey seed",
            advice="Make the file with nsc: nsc generate creds --account A --name bridge.",
        )
    return Credentials(found["jwt"], found["seed"])


def _split_nats_url(text: str) -> dict[str, Any]:
    """Take the NATS URLs of one or several servers apart; the first may say who we are."""
    first, *rest = [_split_one_url(url.strip()) for url in text.split(",")]
    if any(other["tls"] != first["tls"] for other in rest):
        raise BadConfiguration(
            "NATS_URL mixes nats:// and tls://", advice="Give all servers of NATS_URL one scheme."
        )
    identity = {"user", "password", "token"}
    said = [{name: other[name] for name in identity & other.keys()} for other in (first, *rest)]
    if any(one and one != said[0] for one in said[1:]):
        raise BadConfiguration(
            "NATS_URL names different users",
            advice="Give user and password in the first URL only, or in NATS_BRIDGE_USER and"
            " NATS_BRIDGE_PASSWORD.",
        )
    return {**first, "others": tuple((other["host"], other["port"]) for other in rest)}


def _split_one_url(url: str) -> dict[str, Any]:
    """Take a NATS URL apart; what it does not say stays with the other options."""
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        port = parts.port or 4222
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise BadConfiguration(
            "NATS_URL is not an address such as nats://host:4222",
            advice="Give servers as nats://host:port or tls://host:port, with commas between them.",
        )
    found: dict[str, Any] = {"host": parts.hostname, "port": port, "tls": parts.scheme == "tls"}
    if parts.password is not None:
        found |= {"user": unquote(parts.username or ""), "password": unquote(parts.password)}
    elif parts.username is not None:
        found["token"] = unquote(parts.username)
    return found

"""Options: one row each, read once, handed down in the smallest piece a thing needs.

A flag wins over its environment variable, that over `VARIABLE_FILE` (a file holding the value, for
secrets), that over `--config file.toml`, that over the default. Help text, environment and the
README's table all come from `OPTIONS`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bridge.errors import BadConfiguration
from schemas.values import Format

Durability = Literal["auto", "acked", "synced"]
DURABILITIES: tuple[Durability, ...] = ("auto", "acked", "synced")


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 16:
        raise ValueError
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


def _seconds(text: str) -> timedelta:
    number = float(text)
    if number < 0:
        raise ValueError
    return timedelta(seconds=number)


def _durability(text: str) -> Durability:
    for durability in DURABILITIES:
        if durability == text:
            return durability
    raise ValueError


def _switch(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
        text.lower()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: how it is spelled everywhere, and what it may hold."""

    name: str
    help: str
    env: str | None = None
    flag: str | None = None
    default: str | None = None
    read: Callable[[str], Any] = str
    expects: str = "text"
    secret: bool = False
    is_switch: bool = False
    required: bool = False


OPTIONS = (
    Option(name="slot", flag="--slot", env="BRIDGE_SLOT", required=True,
           help="replication slot; made if it is missing"),
    Option(name="publication", flag="--pub", env="BRIDGE_PUBLICATION", required=True,
           help="publication to follow; it must exist"),
    Option(name="pg_host", env="PG_HOST", default="127.0.0.1", help="PostgreSQL's host"),
    Option(name="pg_port", env="PG_PORT", default="5432", read=_port, expects="a port",
           help="PostgreSQL's port"),
    Option(name="pg_database", env="PG_DB", default="postgres", help="database of the publication"),
    Option(name="pg_user", env="POSTGRES_BRIDGE_USER", default="bridge",
           help="role with LOGIN and REPLICATION"),
    Option(name="pg_password", env="POSTGRES_BRIDGE_PASSWORD", secret=True,
           help="that role's password"),
    Option(name="pg_dsn", env="PG_DSN", secret=True,
           help="a whole connection string; its parts win over the variables above"),
    Option(name="nats_host", env="NATS_HOST", default="127.0.0.1", help="NATS server's host"),
    Option(name="nats_port", env="NATS_PORT", default="4222", read=_port, expects="a port",
           help="NATS server's port"),
    Option(name="nats_url", env="NATS_URL", secret=True,
           help="a whole URL (nats:// or tls://); wins over host and port"),
    Option(name="nats_user", env="NATS_BRIDGE_USER", help="NATS user"),
    Option(name="nats_password", env="NATS_BRIDGE_PASSWORD", secret=True, help="NATS password"),
    Option(name="nats_token", env="NATS_TOKEN", secret=True, help="NATS token, instead of a user"),
    Option(name="http_host", flag="--host", env="BRIDGE_HTTP_HOST", default="127.0.0.1",
           help="address of the HTTP endpoints"),
    Option(name="http_port", flag="--port", env="BRIDGE_HTTP_PORT", default="9090", read=_port,
           expects="a port", help="port of the HTTP endpoints; 0 takes a free one"),
    Option(name="http_token", env="BRIDGE_HTTP_TOKEN", secret=True,
           help="bearer token for POST /shutdown; needed where --host is not loopback"),
    Option(name="json", flag="--json", env="BRIDGE_JSON", default="false", read=_switch,
           expects="true or false", is_switch=True, help="publish JSON instead of MessagePack"),
    Option(name="durability", flag="--durability", env="BRIDGE_DURABILITY", default="auto",
           read=_durability, expects="auto, acked or synced",
           help="what PostgreSQL is told: what JetStream acked, or only what it has synced to disk"
           " since; auto is acked on 3 replicas or more, else synced"),
    Option(name="sync_interval", flag="--sync-interval", env="BRIDGE_SYNC_INTERVAL", default="120",
           read=_seconds, expects="seconds",
           help="nats-server's sync_interval, in seconds; how long synced waits"),
    Option(name="max_in_flight_bytes", flag="--max-in-flight-bytes",
           env="BRIDGE_MAX_IN_FLIGHT_BYTES", default=str(16 << 20), read=_positive,
           expects="a positive number",
           help="bytes read from the WAL and not yet acked before the reader waits"),
    Option(name="ack_timeout", flag="--ack-timeout", env="BRIDGE_ACK_TIMEOUT", default="10",
           read=_seconds, expects="seconds",
           help="seconds to wait for JetStream's ack before connecting again"),
    Option(name="start_timeout", flag="--start-timeout", env="BRIDGE_START_TIMEOUT", default="5",
           read=_seconds, expects="seconds",
           help="seconds to keep trying to reach both servers at start before giving up"),
    Option(name="snapshots_side_by_side", flag="--snapshots-side-by-side",
           env="BRIDGE_SNAPSHOTS_SIDE_BY_SIDE", default="2", read=_positive,
           expects="a positive number", help="snapshots taken at the same time; more wait"),
    Option(name="snapshot_readers", flag="--snapshot-readers", env="BRIDGE_SNAPSHOT_READERS",
           default="1", read=_positive, expects="a positive number",
           help="sessions that copy one large table side by side, each a range of its pages"),
    Option(name="log_level", flag="--log-level", env="BRIDGE_LOG_LEVEL", default="info",
           help="debug, info, warning or error"),
)  # fmt: skip
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig:
    """How to reach PostgreSQL. The password never appears in a representation."""

    host: str
    port: int
    database: str
    user: str
    password: str | None = field(repr=False, default=None)
    dsn: str | None = field(repr=False, default=None)

    @property
    def where(self) -> str:
        """The address for messages to people; holds no secret."""
        return f"{self.host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """How to reach NATS. Secrets never appear in a representation."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(repr=False, default=None)
    token: str | None = field(repr=False, default=None)

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishLimits:
    """How much may be in flight before the WAL reader waits, and how long an ack may take."""

    max_bytes: int = 16 << 20
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
    limits: PublishLimits
    snapshots: SnapshotLimits
    format: Format
    durability: Durability
    sync_interval: timedelta
    start_timeout: timedelta
    log_level: str


def read_config(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Path | None = None
) -> BridgeConfig:
    """Settle every option, or say in one sentence which one is wrong."""
    from_file = _read_file(file) if file else {}
    values = {
        option.name: _settle(option, flags.get(option.name), environ, from_file)
        for option in OPTIONS
    }
    nats_url = _split_nats_url(values["nats_url"]) if values["nats_url"] else {}
    http = HttpConfig(
        host=values["http_host"], port=values["http_port"], token=values["http_token"]
    )
    return BridgeConfig(
        slot=_slot_name(values["slot"]),
        publication=values["publication"],
        postgres=PostgresConfig(
            host=values["pg_host"],
            port=values["pg_port"],
            database=values["pg_database"],
            user=values["pg_user"],
            password=values["pg_password"],
            dsn=values["pg_dsn"],
        ),
        nats=NatsConfig(
            **{
                "host": values["nats_host"],
                "port": values["nats_port"],
                "user": values["nats_user"],
                "password": values["nats_password"],
                "token": values["nats_token"],
                **nats_url,
            }
        ),
        http=http,
        limits=PublishLimits(
            max_bytes=values["max_in_flight_bytes"],
            ack_timeout=values["ack_timeout"],
        ),
        snapshots=SnapshotLimits(
            side_by_side=values["snapshots_side_by_side"], readers=values["snapshot_readers"]
        ),
        format="json" if values["json"] else "msgpack",
        durability=values["durability"],
        sync_interval=values["sync_interval"],
        start_timeout=values["start_timeout"],
        log_level=values["log_level"],
    )


def _settle(
    option: Option, flag: str | None, environ: Mapping[str, str], from_file: Mapping[str, str]
) -> Any:
    source, text = _find(option, flag, environ, from_file)
    if text is None:
        if option.required:
            raise BadConfiguration(
                f"{option.flag} is missing", advice=f"Give {option.flag} or set {option.env}."
            )
        return None
    try:
        return option.read(text)
    except (ValueError, KeyError):
        shown = "its value" if option.secret else repr(text)
        raise BadConfiguration(f"{source}: {shown} is not {option.expects}") from None


def _find(
    option: Option, flag: str | None, environ: Mapping[str, str], from_file: Mapping[str, str]
) -> tuple[str, str | None]:
    """Say where a value comes from, most particular source first."""
    if flag is not None:
        return str(option.flag), flag
    if option.env:
        if option.env in environ:
            return option.env, environ[option.env]
        if path := environ.get(f"{option.env}_FILE"):
            return f"{option.env}_FILE", _read_secret(path, option.env)
    if option.name in from_file:
        return f"{option.name} in the configuration file", from_file[option.name]
    return "default", option.default


def _read_secret(path: str, env: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise BadConfiguration(
            f"{env}_FILE names {path}, which cannot be read: {error.strerror}",
            advice="Mount the secret, or unset the variable.",
        ) from None


def _read_file(path: Path) -> dict[str, str]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfiguration(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadConfiguration(f"{path} is not TOML: {error}") from None
    unknown = sorted(document.keys() - _BY_NAME.keys())
    if unknown:
        raise BadConfiguration(
            f"{path}: unknown option {unknown[0]!r}",
            advice=f"Known options: {', '.join(_BY_NAME)}.",
        )
    return {name: str(value) for name, value in document.items()}


def _slot_name(name: str) -> str:
    if not name or len(name) > 63 or not set(name) <= _SLOT_CHARACTERS:
        raise BadConfiguration(
            f"{name!r} cannot name a slot",
            advice="Use up to 63 lower-case letters, digits and underscores.",
        )
    return name


_SLOT_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def _split_nats_url(url: str) -> dict[str, Any]:
    """Take a NATS URL apart; what it does not say stays with the other options."""
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        port = parts.port or 4222
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise BadConfiguration(
            "NATS_URL is not an address such as nats://host:4222",
            advice="Give one server as nats://host:port or tls://host:port.",
        )
    found: dict[str, Any] = {"host": parts.hostname, "port": port, "tls": parts.scheme == "tls"}
    if parts.password is not None:
        found |= {"user": parts.username, "password": parts.password}
    elif parts.username is not None:
        found["token"] = parts.username
    return found

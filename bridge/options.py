"""Options: one row each, and where a value comes from.

A flag wins over its environment variable, that over `VARIABLE_FILE` (a file holding the value, for
secrets), that over `--config file.toml`, that over the default. Help text, environment and the
README's table all come from `OPTIONS`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from bridge.errors import BadConfiguration

Durability = Literal["auto", "acked", "synced"]
DURABILITIES: tuple[Durability, ...] = ("auto", "acked", "synced")

OnLostSlot = Literal["stop", "recreate"]
ON_LOST_SLOT: tuple[OnLostSlot, ...] = ("stop", "recreate")

OnFork = Literal["stop", "mark"]
ON_FORK: tuple[OnFork, ...] = ("stop", "mark")

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
SSL_MODES: tuple[SslMode, ...] = (
    "disable", "allow", "prefer", "require", "verify-ca", "verify-full",
)  # fmt: skip

Zstd = Literal["off", "chunks", "all"]
ZSTD: Mapping[str, Zstd] = {"off": "off", "chunks": "chunks", "all": "all"}

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 16:
        raise ValueError
    return number


def _ports(text: str) -> int | str:
    """Read one port, or one for each of several hosts."""
    ports = [_port(part) for part in text.split(",")]
    return ports[0] if len(ports) == 1 else ",".join(map(str, ports))


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


def _age(text: str) -> timedelta:
    """Read `90`, `30m`, `24h` or `7d`; 0 is for ever."""
    found = re.fullmatch(r"(\d+)([smhd]?)", text.strip().lower())
    if not found:
        raise ValueError
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])


def _size(text: str) -> int:
    """Read `1073741824`, `512MiB` or `10G`."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not found or not int(found[1]):
        raise ValueError
    return int(found[1]) * _BYTES[found[2]]


def _slot_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,63}", text):
        raise ValueError
    return text


def _ssl_mode(text: str) -> SslMode:
    for mode in SSL_MODES:
        if mode == text:
            return mode
    raise ValueError


def _durability(text: str) -> Durability:
    for durability in DURABILITIES:
        if durability == text:
            return durability
    raise ValueError


def _on_lost_slot(text: str) -> OnLostSlot:
    for choice in ON_LOST_SLOT:
        if choice == text:
            return choice
    raise ValueError


def _on_fork(text: str) -> OnFork:
    for choice in ON_FORK:
        if choice == text:
            return choice
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
    bare: str | None = None
    """What the flag means when it stands alone; None where it needs a value."""

    required: bool = False


OPTIONS = (
    Option(name="slot", flag="--slot", env="BRIDGE_SLOT", required=True, read=_slot_name,
           expects="a slot's name: up to 63 lower-case letters, digits and underscores",
           help="replication slot; made if it is missing"),
    Option(name="publication", flag="--pub", env="BRIDGE_PUBLICATION", required=True,
           help="publication to follow; it must exist"),
    Option(name="pg_host", env="PG_HOST", default="127.0.0.1",
           help="PostgreSQL's host, or several with commas between them: the primary is used"),
    Option(name="pg_port", env="PG_PORT", default="5432", read=_ports, expects="a port per host",
           help="PostgreSQL's port, or one per host with commas between them"),
    Option(name="pg_database", env="PG_DB", default="postgres", help="database of the publication"),
    Option(name="pg_user", env="POSTGRES_BRIDGE_USER", default="bridge",
           help="role with LOGIN and REPLICATION"),
    Option(name="pg_password", env="POSTGRES_BRIDGE_PASSWORD", secret=True,
           help="that role's password"),
    Option(name="pg_dsn", env="PG_DSN", secret=True,
           help="a whole connection string; its parts win over the other variables"),
    Option(name="pg_sslmode", env="PG_SSLMODE", read=_ssl_mode, expects=" or ".join(SSL_MODES),
           help="TLS to PostgreSQL, in libpq's words; where PG_SSLROOTCERT is set the default is"
           " verify-full, which checks the certificate and the name in it"),
    Option(name="pg_sslrootcert", env="PG_SSLROOTCERT",
           help="file of the CA that signed PostgreSQL's certificate, or system"),
    Option(name="pg_sslcert", env="PG_SSLCERT", help="file of a client certificate for PostgreSQL"),
    Option(name="pg_sslkey", env="PG_SSLKEY", help="file of that certificate's key"),
    Option(name="nats_host", env="NATS_HOST", default="127.0.0.1", help="NATS server's host"),
    Option(name="nats_port", env="NATS_PORT", default="4222", read=_port, expects="a port",
           help="NATS server's port"),
    Option(name="nats_url", env="NATS_URL", secret=True,
           help="URLs (nats:// or tls://) of NATS servers, comma-separated; wins over host, port"),
    Option(name="nats_user", env="NATS_BRIDGE_USER", help="NATS user"),
    Option(name="nats_password", env="NATS_BRIDGE_PASSWORD", secret=True, help="NATS password"),
    Option(name="nats_token", env="NATS_TOKEN", secret=True, help="NATS token, instead of a user"),
    Option(name="nats_creds", env="NATS_CREDS", secret=True,
           help="NATS credentials file or its text (a user's JWT and nkey seed), instead of"
           " a user"),
    Option(name="nats_tls_ca", env="NATS_TLS_CA",
           help="file of the CA that signed NATS's certificate; demands TLS, as tls:// in NATS_URL"
           " does with the machine's CAs"),
    Option(name="nats_tls_cert", env="NATS_TLS_CERT",
           help="file of a client certificate for NATS"),
    Option(name="nats_tls_key", env="NATS_TLS_KEY", help="file of that certificate's key"),
    Option(name="stream_max_age", flag="--stream-max-age", env="BRIDGE_STREAM_MAX_AGE", read=_age,
           expects="an age such as 90s, 24h or 7d",
           help="how long CDC keeps a change, such as 24h or 7d; 0 for ever; only when it is made"),
    Option(name="stream_max_bytes", flag="--stream-max-bytes", env="BRIDGE_STREAM_MAX_BYTES",
           read=_size, expects="a size such as 512MiB or 10GiB",
           help="how large CDC and INIT may each grow, such as 10GiB; only when they are made"),
    Option(name="stream_replicas", flag="--stream-replicas", env="BRIDGE_STREAM_REPLICAS",
           read=_positive, expects="a positive number",
           help="how many servers hold each stream and bucket; only when they are made"),
    Option(name="http_host", flag="--host", env="BRIDGE_HTTP_HOST", default="127.0.0.1",
           help="address of the HTTP endpoints"),
    Option(name="http_port", flag="--port", env="BRIDGE_HTTP_PORT", default="9090", read=_port,
           expects="a port", help="port of the HTTP endpoints; 0 takes a free one"),
    Option(name="http_token", env="BRIDGE_HTTP_TOKEN", secret=True,
           help="bearer token for POST /shutdown; needed where --host is not loopback"),
    Option(name="json", flag="--json", env="BRIDGE_JSON", default="false", read=_switch,
           expects="true or false", is_switch=True, help="publish JSON instead of MessagePack"),
    Option(name="zstd", flag="--zstd", env="BRIDGE_ZSTD", default="off", bare="chunks",
           read=ZSTD.__getitem__, expects="off, chunks or all",
           help="compress with zstd, by a dictionary per table: chunks of snapshots (--zstd alone),"
           " or all, which is single changes as well"),
    Option(name="durability", flag="--durability", env="BRIDGE_DURABILITY", default="auto",
           read=_durability, expects="auto, acked or synced",
           help="synced (auto) confirms changes older than --sync-interval; acked needs servers"
           " with sync_interval: always"),
    Option(name="sync_interval", flag="--sync-interval", env="BRIDGE_SYNC_INTERVAL", default="120",
           read=_seconds, expects="seconds",
           help="nats-server's sync_interval, in seconds; how long synced waits"),
    Option(name="on_lost_slot", flag="--on-lost-slot", env="BRIDGE_ON_LOST_SLOT", default="stop",
           read=_on_lost_slot, expects=" or ".join(ON_LOST_SLOT),
           help="when PostgreSQL discarded WAL that was not read yet: stop and say so, or recreate"
           " the slot and mark the gap in the stream, so that consumers take new snapshots"),
    Option(name="on_fork", flag="--on-fork", env="BRIDGE_ON_FORK", default="stop",
           read=_on_fork, expects=" or ".join(ON_FORK),
           help="if PostgreSQL lost transactions that the stream holds (failover, restore): stop,"
           " or mark the fork in the stream and go on; consumers take new snapshots"),
    Option(name="catalog_poll", flag="--catalog-poll", env="BRIDGE_CATALOG_POLL", default="3",
           read=_seconds, expects="seconds",
           help="seconds between looks at the catalog for DDL that sends no changes"),
    Option(name="max_in_flight_bytes", flag="--max-in-flight-bytes",
           env="BRIDGE_MAX_IN_FLIGHT_BYTES", default=str(8 << 20), read=_positive,
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

Values = Mapping[str, Any]
"""Every option by name, settled."""


def read_values(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    file: Path | None = None,
    *,
    needed: Collection[str] = (),
) -> Values:
    """Settle each option from its most particular source; `needed` ones must be there."""
    from_file = _read_file(file) if file else {}
    return {
        option.name: _settle(
            option, flags.get(option.name), environ, from_file, needed=option.name in needed
        )
        for option in OPTIONS
    }


def _settle(
    option: Option,
    flag: str | None,
    environ: Mapping[str, str],
    from_file: Mapping[str, str],
    *,
    needed: bool,
) -> Any:
    source, text = _find(option, flag, environ, from_file)
    if text is None:
        if needed:
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
        # Empty is how Compose and others write "not set".
        if environ.get(option.env):
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

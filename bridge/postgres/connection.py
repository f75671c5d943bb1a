"""Connections to PostgreSQL, with the session settings pinned, and its errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row

from bridge.config import PostgresConfig
from bridge.errors import (
    BadConfiguration,
    BridgeError,
    SlotBusy,
    SlotLost,
    SourceLost,
    SourceNotReady,
    SourceRefused,
    SourceStopping,
)
from schemas.values import SESSION_SETTINGS

APPLICATION = "walbridge"
CONNECT_TIMEOUT_SECONDS = 10

# What libpq says before there is a session carries no SQLSTATE; these words are all there is.
_REFUSALS: tuple[tuple[str, type[BridgeError], str | None], ...] = (
    ("password authentication failed", SourceRefused, None),
    ("no password supplied", SourceRefused, "Set POSTGRES_BRIDGE_PASSWORD."),
    ("certificate verify failed", SourceRefused,
     "Set PG_SSLROOTCERT to the CA that signed PostgreSQL's certificate."),
    ("does not match host name", SourceRefused, "Set PG_HOST to a name in the certificate."),
    ("does not support SSL", SourceRefused,
     "Set ssl = on in postgresql.conf, or PG_SSLMODE to prefer."),
    ("root certificate", BadConfiguration, "Check the file PG_SSLROOTCERT names."),
    ("certificate file", BadConfiguration, "Check the file PG_SSLCERT names."),
    ("private key file", BadConfiguration,
     "Check the file PG_SSLKEY names; only its owner may read it."),
    ("valid client certificate", SourceRefused, "Set PG_SSLCERT and PG_SSLKEY."),
    ("certificate authentication failed", SourceRefused,
     "Set PG_SSLCERT to a certificate whose common name is the role, or map it in pg_ident.conf."),
    ("certificate required", SourceRefused, "Set PG_SSLCERT and PG_SSLKEY."),
    ("unknown ca", SourceRefused, "Set PG_SSLCERT to a certificate that ssl_ca_file vouches for."),
    ("no encryption", SourceRefused,
     "Set PG_SSLMODE to verify-full and PG_SSLROOTCERT, or add a line to pg_hba.conf."),
    ("pg_hba.conf", SourceRefused, "Add a line for the role and database to pg_hba.conf."),
    ("is not permitted to log in", SourceRefused, "ALTER ROLE ... LOGIN, or run init.sh."),
    ("must be superuser or replication role", SourceRefused, "ALTER ROLE ... REPLICATION."),
    ("permission denied to start WAL sender", SourceRefused, "ALTER ROLE ... REPLICATION."),
    ("does not exist", SourceNotReady, "Check PG_DB and POSTGRES_BRIDGE_USER, or run init.sh."),
    # It may be about to be promoted.
    ("hot standby", SourceLost,
     "Point PG_HOST at the primary, or name all servers: PG_HOST=one,two."),
    # Backups, standbys and other snapshots take and leave them: worth another try.
    ("number of requested standby connections", SourceLost, "Raise max_wal_senders."),
)  # fmt: skip

_SLOT_LOST = (
    "can no longer get changes from replication slot",
    "invalidated",
    # WAL that the slot still needs, lost with a disk or left out of a copy.
    "requested WAL segment",
)

SNAPSHOT_GONE = "PostgreSQL does not hold the snapshot any more; a new one has a new id."

_SQLSTATES: dict[str, tuple[type[BridgeError], str | None]] = {
    "28P01": (SourceRefused, None),
    "28000": (SourceRefused, None),
    "42501": (SourceRefused, None),
    "42704": (SourceNotReady, None),
    "53400": (SourceLost, "Raise max_replication_slots, or drop slots that nobody uses."),
    "55006": (SlotBusy, None),
    "57P01": (SourceStopping, None),
    "72000": (SourceLost, f"{SNAPSHOT_GONE} Before PostgreSQL 17: raise old_snapshot_threshold."),
}


LOCKED = psycopg.errors.LockNotAvailable
"""A lock was not free within `lock_timeout`."""


def conninfo(config: PostgresConfig, **extra: Any) -> str:
    """Write a connection string with every setting that changes text output pinned."""
    settings = {**SESSION_SETTINGS}
    encoding = settings.pop("client_encoding")
    options = " ".join(f"-c {name}={value.replace(' ', '')}" for name, value in settings.items())
    parts: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "dbname": config.database,
        "user": config.user,
        "password": config.password,
        "sslmode": config.sslmode,
        "sslrootcert": config.sslrootcert,
        "sslcert": config.sslcert,
        "sslkey": config.sslkey,
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        # Of several hosts the primary; a standby has no slot that could be read and confirmed.
        "target_session_attrs": "primary",
        "keepalives_idle": 30,
        **_split_dsn(config),
    }
    # PG_DSN may have options of its own; the later ones win, so what is pinned stays pinned.
    pinned = {"options": f"{parts.pop('options', '')} {options}", "client_encoding": encoding}
    parts = {"application_name": APPLICATION, **parts, **extra, **pinned}
    return make_conninfo("", **{k: v for k, v in parts.items() if v is not None})


def _split_dsn(config: PostgresConfig) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(config.dsn or ""))
    except psycopg.ProgrammingError:
        # libpq quotes what it cannot read, and that may be the password.
        raise BadConfiguration(
            "PG_DSN is not a connection string",
            advice="Write postgresql://user:password@host:port/database, percent-encoded,"
            " or key=value pairs.",
        ) from None


def where(config: PostgresConfig) -> str:
    """Give the address for messages to people; it holds no secret."""
    if not config.dsn:
        return config.where
    given = _split_dsn(config)
    host, port = given.get("host", config.host), given.get("port", config.port)
    return f"{host}:{port}/{given.get('dbname', config.database)}"


async def connect(config: PostgresConfig) -> psycopg.AsyncConnection[DictRow]:
    """Open an ordinary connection for catalog questions."""
    with translated(config):
        return await psycopg.AsyncConnection[DictRow].connect(
            conninfo(config), autocommit=True, row_factory=dict_row
        )


@contextmanager
def translated(config: PostgresConfig) -> Iterator[None]:
    """Raise psycopg's errors as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, config) from error


def translate(error: psycopg.Error, config: PostgresConfig) -> BridgeError:
    """Say what an error of the server or of libpq means for the bridge."""
    text = " ".join(str(error).split()) or type(error).__name__
    what = f"PostgreSQL at {where(config)}: {text}"
    if any(words in text for words in _SLOT_LOST):
        return SlotLost(what)
    if found := _SQLSTATES.get(error.sqlstate or ""):
        kind, advice = found
        return kind(what, advice=advice)
    for words, kind, advice in _REFUSALS:
        if words in text and not isinstance(error, psycopg.ProgrammingError):
            return kind(what, advice=advice)
    return SourceLost(what)

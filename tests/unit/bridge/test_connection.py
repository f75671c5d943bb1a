"""What libpq and PostgreSQL say, in our words: the error's kind and what to do about it."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from bridge.config import PostgresConfig
from bridge.errors import (
    BadConfiguration,
    BridgeError,
    Disposition,
    SlotLost,
    SourceLost,
    SourceNotReady,
    SourceRefused,
)
from bridge.postgres.connection import conninfo, translate, where

SERVER = PostgresConfig(host="db", port=5432, database="shop", user="bridge", password="s3cret")


@pytest.mark.parametrize(
    ("said", "kind", "advice"),
    [
        ("SSL error: certificate verify failed", SourceRefused, "PG_SSLROOTCERT"),
        (
            'server certificate for "a" does not match host name "b"', SourceRefused, "PG_HOST",
        ),
        ("server does not support SSL, but SSL was required", SourceRefused, "PG_SSLMODE"),
        ('root certificate file "/ca.pem" does not exist', BadConfiguration, "PG_SSLROOTCERT"),
        (
            'certificate present, but not private key file "/x.key"', BadConfiguration, "PG_SSLKEY",
        ),
        ('could not open certificate file "/x.pem"', BadConfiguration, "PG_SSLCERT"),
        ("FATAL: connection requires a valid client certificate", SourceRefused, "PG_SSLCERT"),
        ("SSL error: tlsv1 alert unknown ca", SourceRefused, "PG_SSLCERT"),
        (
            "FATAL: number of requested standby connections exceeds max_wal_senders", SourceLost,
            "max_wal_senders",
        ),
        (
            'FATAL: no pg_hba.conf entry for host "h", user "u", database "d", no encryption',
            SourceRefused, "PG_SSLMODE",
        ),
        (
            'FATAL: no pg_hba.conf entry for host "h", user "u", database "d", SSL encryption',
            SourceRefused, "pg_hba.conf",
        ),
        ('FATAL: database "shop" does not exist', SourceNotReady, "PG_DB"),
        ("Connection refused", SourceLost, "PG_HOST"),
        ("server is in hot standby mode", SourceLost, "PG_HOST=one,two"),
        ("ERROR: requested WAL segment 0000 has already been removed", SlotLost, "recreate"),
        ("SSL error: unexpected eof while reading", SourceLost, "PG_HOST"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_setting_to_look_at(
    said: str, kind: type[BridgeError], advice: str
) -> None:
    error = translate(psycopg.OperationalError(f"connection failed: {said}"), SERVER)
    assert type(error) is kind
    assert advice in error.advice
    assert "db:5432/shop" in str(error)


def test_a_snapshot_too_old_is_worth_another_try_and_says_so() -> None:
    """Nothing is wrong with the connection, and the next snapshot is a new one."""
    error = translate(psycopg.errors.lookup("72000")("ERROR:  snapshot too old"), SERVER)
    assert error.disposition is Disposition.RETRY
    assert "snapshot too old" in str(error)
    assert "new id" in error.advice


def test_the_parts_of_a_connection_string_win_and_the_rest_stays() -> None:
    config = PostgresConfig(
        host="db", port=5432, database="shop", user="bridge", password="p", sslmode="verify-full",
        dsn="postgresql://other:5433/else",
    )  # fmt: skip
    parts = psycopg.conninfo.conninfo_to_dict(conninfo(config))
    assert (parts["host"], parts["port"], parts["dbname"]) == ("other", "5433", "else")
    assert (parts["user"], parts["sslmode"]) == ("bridge", "verify-full")
    assert where(config) == "other:5433/else"


@pytest.mark.parametrize("dsn", ["postgresql://u:s3cret%zz@h/d", "host=h password s3cret"])
def test_a_damaged_connection_string_is_not_quoted(dsn: str) -> None:
    config = PostgresConfig(host="db", port=5432, database="shop", user="bridge", dsn=dsn)
    with pytest.raises(BadConfiguration, match="PG_DSN") as raised:
        conninfo(config)
    assert "s3cret" not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_a_connection_string_with_settings_of_its_own_is_taken() -> None:
    """What it pins differently would change values, and what we do not pin is its own affair."""
    dsn = "dbname=shop application_name=mine options='-c DateStyle=German -c jit=off'"
    parts = psycopg.conninfo.conninfo_to_dict(conninfo(replace(SERVER, dsn=dsn)))
    options = str(parts["options"])
    assert parts["application_name"] == "mine"
    assert "-c jit=off" in options
    assert options.rindex("DateStyle=ISO") > options.rindex("DateStyle=German")

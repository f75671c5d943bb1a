"""How to reach PostgreSQL, for `verify`: the bridge's own variables, so that one file serves both.

Nothing else of the lake consumer talks to the database, so nothing here is needed to follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lake_consumer.options import Option, Values

PG_OPTIONS = (
    Option(name="pg_host", env="PG_HOST", default="127.0.0.1",
           help="PostgreSQL's host, for `verify`"),
    Option(name="pg_port", env="PG_PORT", default="5432", help="PostgreSQL's port"),
    Option(name="pg_database", env="PG_DB", default="postgres", help="database of the publication"),
    Option(name="pg_user", env="POSTGRES_BRIDGE_USER", default="bridge",
           help="role that may read the tables"),
    Option(name="pg_password", env="POSTGRES_BRIDGE_PASSWORD", secret=True,
           help="that role's password"),
    Option(name="pg_dsn", env="PG_DSN", secret=True,
           help="a whole connection string; its parts win over the other variables"),
    Option(name="pg_sslmode", env="PG_SSLMODE", help="TLS to PostgreSQL, in libpq's words"),
    Option(name="pg_sslrootcert", env="PG_SSLROOTCERT",
           help="file of the CA that signed PostgreSQL's certificate; then verify-full is the"
           " default mode"),
    Option(name="pg_sslcert", env="PG_SSLCERT", help="file of a client certificate"),
    Option(name="pg_sslkey", env="PG_SSLKEY", help="file of that certificate's key"),
    Option(name="publication", flag="--pub", env="BRIDGE_PUBLICATION",
           help="the bridge's publication; needed by `verify` where it has row filters, or other"
           " publications have more tables"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """Server, role and publication; secrets are left out of `repr`."""

    host: str
    port: int
    database: str
    user: str
    password: str | None = field(default=None, repr=False)
    dsn: str | None = field(default=None, repr=False)
    sslmode: str | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    publication: str | None = None

    @property
    def shown(self) -> str:
        """The address for messages to people; holds no secret."""
        return "PG_DSN" if self.dsn else f"{self.host}:{self.port}/{self.database}"


def postgres_options(values: Values, port: int) -> PostgresOptions:
    root = values["pg_sslrootcert"]
    return PostgresOptions(
        host=values["pg_host"] or "",
        port=port,
        database=values["pg_database"] or "",
        user=values["pg_user"] or "",
        password=values["pg_password"],
        dsn=values["pg_dsn"],
        # As the bridge does: whoever names a CA wants the certificate checked against it.
        sslmode=values["pg_sslmode"] or ("verify-full" if root else None),
        sslrootcert=root,
        sslcert=values["pg_sslcert"],
        sslkey=values["pg_sslkey"],
        publication=values["publication"],
    )

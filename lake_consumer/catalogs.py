"""Catalog addresses: one URI, told to Spark and to pyiceberg in the words of each.

What a kind of catalog wants to hear is a row of `KINDS`. Whatever else one needs is passed on as
properties, which are Iceberg's own names and so mean the same to both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from lake_consumer.errors import BadOption
from lake_consumer.options import Option, Values
from lake_consumer.stores import ObjectStore

_SQLITE = "sqlite:///"
_BUSY_SECONDS = 60
"""How long each waits for the other, who may be writing."""

_POSTGRES = ("postgresql://", "jdbc:postgresql://")

CATALOG_OPTIONS = (
    Option(name="catalog_uri", flag="--catalog-uri", env="LAKE_CATALOG_URI",
           help="sqlite:///FILE, postgresql://HOST/DATABASE, a REST catalog's http(s) address,"
           " thrift://HOST:PORT of a Hive metastore, or glue:; if not set, catalog.db in the"
           " warehouse folder"),
    Option(name="catalog_user", env="LAKE_CATALOG_USER", help="user of a PostgreSQL catalog"),
    Option(name="catalog_password", env="LAKE_CATALOG_PASSWORD", secret=True,
           help="that user's password"),
    Option(name="catalog_token", env="LAKE_CATALOG_TOKEN", secret=True,
           help="bearer token for a REST catalog"),
    Option(name="catalog_credential", env="LAKE_CATALOG_CREDENTIAL", secret=True,
           help="CLIENT_ID:SECRET for a REST catalog, which gives a token for it"),
    Option(name="catalog_properties", env="LAKE_CATALOG_PROPERTIES", secret=True,
           help="whatever else the catalog needs, in Iceberg's own names, for Spark and pyiceberg"
           " alike: KEY=VALUE,KEY=VALUE"),
)  # fmt: skip

Words = Callable[["CatalogUri"], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of catalog is told."""

    prefixes: tuple[str, ...]
    spark: Words
    pyiceberg: Words


@dataclass(frozen=True, slots=True)
class CatalogUri:
    """Where the catalog is and who we are there, and how the store of its tables is reached.

    Secrets are left out of `repr`, so that no log can show them.
    """

    uri: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credential: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: ObjectStore | None = None

    def __post_init__(self) -> None:
        if not any(self.uri.startswith(kind.prefixes) for kind in KINDS):
            raise BadOption(
                f"catalog {self.shown!r} is not supported",
                advice="Use sqlite:///PATH, postgresql://HOST/DATABASE, the http(s) address of a "
                "REST catalog, thrift://HOST:PORT of a Hive metastore, or glue:.",
            )

    @classmethod
    def from_values(cls, uri: str, values: Values, store: ObjectStore | None) -> CatalogUri:
        """Settle the catalog; what its address says of the user wins over the other options."""
        bare, user, password = split_user(uri)
        return cls(
            uri=bare,
            user=user or values["catalog_user"],
            password=password or values["catalog_password"],
            token=values["catalog_token"],
            credential=values["catalog_credential"],
            properties=read_properties(values["catalog_properties"] or ""),
            store=store,
        )

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if self.uri.startswith(kind.prefixes))

    @property
    def sqlite_file(self) -> Path | None:
        return Path(self.uri.removeprefix(_SQLITE)) if self.uri.startswith(_SQLITE) else None

    @property
    def is_postgres(self) -> bool:
        return self.uri.startswith(_POSTGRES)

    @property
    def shown(self) -> str:
        """The address without a password that may stand in it."""
        return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", self.uri)

    def spark(self) -> dict[str, str]:
        """Properties of Iceberg's Spark catalog."""
        store = {} if self.store is None else self.store.spark()
        return {**self.kind.spark(self), **store, **self.properties}

    def pyiceberg(self) -> dict[str, str]:
        """Properties of pyiceberg's catalog."""
        store = {} if self.store is None else self.store.pyiceberg()
        # Which Java class reads files is no business of Python's.
        shared = {k: v for k, v in self.properties.items() if not k.endswith("-impl")}
        return {**self.kind.pyiceberg(self), **store, **shared}


def split_user(uri: str) -> tuple[str, str | None, str | None]:
    """Take user and password out of an address."""
    if not uri.startswith(_POSTGRES):
        return uri, None, None
    parts = urlsplit(uri.removeprefix("jdbc:"))
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    return (
        bare,
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
    )


def read_properties(text: str) -> dict[str, str]:
    """Read KEY=VALUE,KEY=VALUE; a comma that is followed by no KEY= belongs to the value."""
    found: dict[str, str] = {}
    for part in re.split(r",(?=[\w.-]+=)", text.strip()) if text.strip() else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise BadOption(
                "LAKE_CATALOG_PROPERTIES is not KEY=VALUE,KEY=VALUE",
                advice="Write it such as LAKE_CATALOG_PROPERTIES=type=glue,client.region=eu-west-1",
            )
        found[key.strip()] = value.strip()
    return found


def _jdbc(uri: str, user: str | None, password: str | None) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": uri,
        "jdbc.schema-version": "V1",
        # SQLite has no users, and Iceberg insists on one.
        "jdbc.user": user or "lake",
        "jdbc.password": password or "lake",
    }


def _spark_sqlite(catalog: CatalogUri) -> dict[str, str]:
    busy = f"busy_timeout={_BUSY_SECONDS * 1_000}"
    return _jdbc(f"jdbc:sqlite:{catalog.sqlite_file}?{busy}", None, None)


def _spark_jdbc(catalog: CatalogUri) -> dict[str, str]:
    uri = catalog.uri if catalog.uri.startswith("jdbc:") else f"jdbc:{catalog.uri}"
    return _jdbc(uri, catalog.user, catalog.password)


def _pyiceberg_sqlite(catalog: CatalogUri) -> dict[str, str]:
    return {"type": "sql", "uri": f"{catalog.uri}?timeout={_BUSY_SECONDS}"}


def _pyiceberg_postgres(catalog: CatalogUri) -> dict[str, str]:
    bare = catalog.uri.removeprefix("jdbc:").removeprefix("postgresql://")
    who = quote(catalog.user or "", safe="")
    if catalog.password:
        who += ":" + quote(catalog.password, safe="")
    return {"type": "sql", "uri": f"postgresql+psycopg://{who + '@' if who else ''}{bare}"}


def _pyiceberg_jdbc(catalog: CatalogUri) -> dict[str, str]:
    uri = catalog.uri.removeprefix("jdbc:")
    return {"type": "sql", "uri": uri.replace("sqlite:/", "sqlite:////", 1)
            if uri.startswith("sqlite:/") else uri}  # fmt: skip


def _rest(catalog: CatalogUri) -> dict[str, str]:
    proof = {"token": catalog.token, "credential": catalog.credential}
    return {"type": "rest", "uri": catalog.uri, **{k: v for k, v in proof.items() if v}}


KINDS: tuple[Kind, ...] = (
    Kind((_SQLITE,), _spark_sqlite, _pyiceberg_sqlite),
    Kind(_POSTGRES, _spark_jdbc, _pyiceberg_postgres),
    Kind(("jdbc:",), _spark_jdbc, _pyiceberg_jdbc),
    Kind(("http://", "https://"), _rest, _rest),
    Kind(
        ("thrift://",),
        lambda catalog: {"type": "hive", "uri": catalog.uri},
        lambda catalog: {"type": "hive", "uri": catalog.uri},
    ),
    Kind(("glue:",), lambda _: {"type": "glue"}, lambda _: {"type": "glue"}),
)
"""The first row whose prefix fits is meant."""
